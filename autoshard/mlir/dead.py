"""Ops that compute what nobody reads, or what they read, which no compiler runs.

jax leaves some behind where it differentiates: of a maximum, what a tie needs; of a convolution, a kernel of one position reversed. XLA
takes that for the kernel only after Shardy has propagated past it, and gathers both. Numpyro draws the indices of a plate in a loop, a
round each, also where nobody asks for them: XLA:TPU removes loops and branches too (libtpu 0.0.51).
"""

from autoshard.mlir.context import ir
from autoshard.mlir.repeated import changes_nothing
from autoshard.mlir.walk import SHARDING, function_named

_DIALECTS = frozenset({"stablehlo", "chlo"})
_CONTROL_FLOW = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while"})
_EFFECTS = frozenset(
    {f"stablehlo.{name}" for name in ("custom_call", "infeed", "outfeed", "recv", "send")}
    | {
        f"stablehlo.{name}"
        for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute")
    }
    | {"stablehlo.partition_id", "stablehlo.reduce_scatter", "stablehlo.replica_id", "stablehlo.rng"}
)
"""Ops that may do more than compute."""


def drop_dead(module: ir.Operation, entry: str) -> None:
    """Erase them from the entry function, in place; those that the user gave a sharding stay."""
    _drop(function_named(module, entry))


def _drop(owner: ir.Operation) -> None:
    for region in owner.regions:
        for block in region.blocks:
            for op in reversed(list(block.operations)):
                operation = op.operation
                is_given = SHARDING in operation.attributes
                if _is_dead(operation) and not is_given:
                    operation.erase()
                elif changes_nothing(operation) and not is_given:
                    operation.results[0].replace_all_uses_with(operation.operands[0])
                    operation.erase()
                elif operation.name in _CONTROL_FLOW or operation.name.startswith("sdy."):
                    _drop(operation)


def _is_dead(op: ir.Operation) -> bool:
    is_read = any(True for result in op.results for _ in result.uses)
    return len(op.results) > 0 and not is_read and _only_computes(op)


def _only_computes(op: ir.Operation) -> bool:
    """Without effects, and shardings that the user gave, in it or in what it holds."""
    if op.name.split(".")[0] not in _DIALECTS or op.name in _EFFECTS or SHARDING in op.attributes:
        return False
    inside = (
        inner.operation for region in op.regions for block in region.blocks for inner in block.operations
    )
    return all(map(_only_computes, inside))
