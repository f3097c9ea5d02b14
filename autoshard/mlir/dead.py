"""Ops that compute what nobody reads, which no compiler runs.

jax leaves some behind where it differentiates: of a maximum, what a tie needs.
"""

from autoshard.mlir.context import ir
from autoshard.mlir.walk import SHARDING, function_named

_DIALECTS = frozenset({"stablehlo", "chlo"})
_EFFECTS = frozenset(
    {
        f"stablehlo.{name}"
        for name in ("case", "custom_call", "if", "infeed", "outfeed", "recv", "send", "while")
    }
    | {
        f"stablehlo.{name}"
        for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute")
    }
    | {"stablehlo.partition_id", "stablehlo.reduce_scatter", "stablehlo.replica_id", "stablehlo.rng"}
)
"""Ops that may do more than compute, or hold others that do; control flow stays whole."""


def drop_dead(module: ir.Operation, entry: str) -> None:
    """Erase them from the entry function, in place; those that the user gave a sharding stay."""
    _drop(function_named(module, entry))


def _drop(owner: ir.Operation) -> None:
    for region in owner.regions:
        for block in region.blocks:
            for op in reversed(list(block.operations)):
                operation = op.operation
                if _is_dead(operation):
                    operation.erase()
                elif operation.name in _EFFECTS or operation.name.startswith("sdy."):
                    _drop(operation)


def _is_dead(op: ir.Operation) -> bool:
    if op.name.split(".")[0] not in _DIALECTS or op.name in _EFFECTS or not len(op.results):
        return False
    is_read = any(True for result in op.results for _ in result.uses)
    return not is_read and SHARDING not in op.attributes
