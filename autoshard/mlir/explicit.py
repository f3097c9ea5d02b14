"""Shardy's own passes on an annotated module: every reshard and every reduction as the collectives that they are.

The passes and their order are those of `sdy-export-pipeline{enable-insert-explicit-collectives}`, less what rewrites annotations (a plan is
closed, even and without edges) and less the merging of reshards, which a plan has chosen.
"""

import re
from collections.abc import Iterable, Mapping

from autoshard.mlir.collective import Collective
from autoshard.mlir.context import Value, ir, new_context
from autoshard.mlir.handwritten import user_collective
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.locations import Locations
from autoshard.mlir.manual import target_demand
from autoshard.mlir.meshes import all_meshes
from autoshard.mlir.one_device import hide_moves, show_moves
from autoshard.mlir.read import read
from autoshard.mlir.repeats import scope_repeats
from autoshard.mlir.reshards import StepParser, is_collective, mesh_of_step
from autoshard.mlir.signature import attributes_of
from autoshard.mlir.source import SourceModule
from autoshard.mlir.tensors import Shardings, TensorTypes
from autoshard.mlir.walk import SHARDING, Walked, walk
from autoshard.sharding import Mesh, TensorSharding

_INSERT = (
    "sdy-remove-sharding-groups,func.func(sdy-sharding-constraint-to-reshard),sdy-close-shardings,"
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives)"
)
_MERGE = "canonicalize{enable-patterns=sdy-collective region-simplify=disabled}"
_OP = re.compile(r'^(\s*(?:%\S+ = )?)"([^"]+)"\(', re.MULTILINE)
_HIDDEN_OP = re.compile(r'^(\s*(?:%\S+ = )?)"hidden\.([^"]+)"\(', re.MULTILINE)
_SEEN = frozenset(
    {
        "builtin.module", "func.func", "func.return", "stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier",
        "stablehlo.return", "stablehlo.while",
    }
)  # fmt: skip
"""Ops that shardings flow through: verifying a collective asks them."""


def with_collectives(module: ir.Operation) -> ir.Module:
    """A copy of a module that is annotated throughout and has its sharding rules, with explicit collectives.

    Raises:
        NativeAbortError: Shardy's passes died on the module.
    """
    module = module.clone().operation
    hide_moves(module)
    inserted = run_isolated(module, _INSERT)
    merged = run_isolated(_hidden(inserted.operation), _MERGE)
    done = ir.Module.parse(_HIDDEN_OP.sub(r'\1"\2"(', _generic(merged.operation)), module.context)
    show_moves(done.operation)
    return done


def _hidden(module: ir.Operation) -> ir.Operation:
    """The module with the user's ops under names that nobody knows, so that merging collectives neither folds them, nor drops the unused,
    nor takes equal constants of different shardings for one.
    """
    context = new_context()
    context.allow_unregistered_dialects = True

    def renamed(found: re.Match[str]) -> str:
        is_seen = found[2] in _SEEN or found[2].startswith("sdy.")
        return found[0] if is_seen else f'{found[1]}"hidden.{found[2]}"('

    return ir.Module.parse(_OP.sub(renamed, _generic(module)), context).operation


def _generic(module: ir.Operation) -> str:
    return str(module.get_asm(print_generic_op_form=True, enable_debug_info=True))


def collectives(source: SourceModule, mesh: Mesh) -> list[Collective]:
    """What Shardy's passes make explicit in a module that is annotated throughout (an unannotated value is replicated).

    Bytes are of one device; an all_slice is in the list, though it moves nothing.

    Raises:
        NativeAbortError: Shardy's passes died on the module.
    """
    _, handles = read(source, mesh)
    done = with_collectives(handles.walked.module)
    return listed_collectives(walk(done.operation, handles.entry), mesh, source.name)


def listed_collectives(done: Walked, mesh: Mesh, file: str) -> list[Collective]:
    """The collective ops of a module that is annotated throughout, the user's own in manual computations among them.

    Those on a mesh of other axes are left out.
    """
    locations = Locations(file)
    repeats, _ = scope_repeats(done, locations)
    known = _handed_in(done, mesh)
    types, parser = TensorTypes(), StepParser(mesh)
    shardings = Shardings(mesh, all_meshes(done.module), done.module.context)
    found: list[Collective] = []
    for op, scope in zip(done.ops, done.op_scopes, strict=True):
        if not is_collective(op):
            for value, sharding in _made(op, shardings).items():
                known[done.ids[value]] = sharding
            handwritten = user_collective(op, mesh)
            if handwritten is not None:
                found.append(
                    Collective(
                        handwritten.kind,
                        handwritten.groups[0],
                        _local_bytes(op.operands, done, known, types),
                        _local_bytes(op.results, done, known, types),
                        repeats[scope],
                        locations.text(op.location),
                    )
                )
            continue
        type_ = types[op.result.type]
        assert type_ is not None
        before = known.get(done.ids[op.operands[0]], TensorSharding.replicated_closed(type_.rank))
        step = parser.step(op, before)
        known[done.ids[op.result]] = step.out_sharding
        if mesh_of_step(before, step.out_sharding, mesh).axes != mesh.axes:
            continue
        bytes_ = before.local_bytes(type_), step.out_sharding.local_bytes(type_)
        found.append(Collective(step.kind, step.axes, *bytes_, repeats[scope], locations.text(op.location)))
    return found


def _local_bytes(
    values: Iterable[Value], walked: Walked, known: Mapping[int, TensorSharding], types: TensorTypes
) -> int:
    """Bytes of all the values on one device."""
    each = [(walked.ids[value], types[value.type]) for value in values]
    return sum(
        known.get(number, TensorSharding.replicated_closed(type_.rank)).local_bytes(type_)
        for number, type_ in each
        if type_ is not None
    )


def _made(op: ir.Operation, shardings: Shardings) -> dict[Value, TensorSharding]:
    if op.name in ("sdy.reshard", "sdy.sharding_constraint"):
        return {op.result: shardings.read(op.attributes["sharding"], op.result.type, "")}
    attribute = op.attributes.get(SHARDING)
    if attribute is None:
        return {}
    types = [result.type for result in op.results]
    return dict(zip(op.results, shardings.read_each(attribute, types, ""), strict=False))


def _handed_in(walked: Walked, mesh: Mesh) -> dict[int, TensorSharding]:
    """Shardings of arguments and of what data-flow ops carry, by value number."""
    shardings = Shardings(mesh, all_meshes(walked.module), walked.module.context)
    found: dict[int, TensorSharding] = {}
    for number, attributes in enumerate(attributes_of(walked.main, "arg_attrs", len(walked.block.arguments))):
        if SHARDING in attributes:
            found[number] = shardings.read(attributes[SHARDING], walked.values[number].type, "")
    for flow in walked.flows:
        sharding = target_demand(flow, shardings)
        if sharding is not None:
            found[flow.target] = sharding
    return found
