"""Which op of the module that was planned an op of the written one comes from, as texts of their places."""

from collections.abc import Iterator

from autoshard.mlir.context import ir
from autoshard.mlir.dead import drop_dead
from autoshard.mlir.early import update_early
from autoshard.mlir.inlining import inline_calls
from autoshard.mlir.locations import Locations
from autoshard.mlir.source import SourceModule
from autoshard.mlir.walk import function_named

_REPEATED = ("stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim")
"""What a written module has once for each sharding that it is wanted in; it moves nothing."""


def places_before(planned: SourceModule, original: SourceModule) -> dict[str, str]:
    """From places in `planned` to those in `original`, whose calls are inlined there and which has no constraints.

    Both are looked at with early updates (`mlir.early`), as a plan for some hardware has them. Empty where the ops are not the same
    otherwise: then nobody can say.
    """
    after, before = (_ops(source) for source in (planned, original))
    if [name for name, _ in after] != [name for name, _ in before]:
        return {}
    return {
        f"{name} {new}".strip(): f"{name} {old}".strip()
        for (name, new), (_, old) in zip(after, before, strict=True)
    }


def _ops(source: SourceModule) -> list[tuple[str, str]]:
    """Name and place of each op that main runs, in program order."""
    module = source.module.operation.clone().operation
    inline_calls(module, source.main)
    drop_dead(module, source.main)  # a planned module has none
    update_early(module, source.main)
    locations = Locations(source.name)
    main = function_named(module, source.main)
    return [(op.name, locations.text(op.location)) for op in _run(main) if op.name not in _REPEATED]


def _run(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for child in (view.operation for view in block.operations):
                if not child.name.startswith(("sdy.", "func.")):
                    yield child
                    yield from _run(child)
                elif child.name == "sdy.manual_computation":
                    yield from _run(child)
