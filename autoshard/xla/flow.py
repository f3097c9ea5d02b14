"""Follows a value backwards to the arguments of `main`, through data movement, loops, branches and calls."""

from collections.abc import Iterator
from typing import Any

from autoshard.mlir.context import ir
from autoshard.xla.prepare import walk

MOVES = {
    "stablehlo.bitcast_convert": (0,),
    "stablehlo.broadcast_in_dim": (0,),
    "stablehlo.convert": (0,),
    "stablehlo.dynamic_slice": (0,),
    "stablehlo.dynamic_update_slice": (0, 1),
    "stablehlo.gather": (0,),
    "stablehlo.pad": (0, 1),
    "stablehlo.reduce_precision": (0,),
    "stablehlo.reshape": (0,),
    "stablehlo.reverse": (0,),
    "stablehlo.select": (1, 2),
    "stablehlo.slice": (0,),
    "stablehlo.transpose": (0,),
    "sdy.propagation_barrier": (0,),
    "sdy.reshard": (0,),
    "sdy.sharding_constraint": (0,),
}
"""Ops whose result holds elements of these operands as they are, but for their type."""

_EVERY_OPERAND = ("stablehlo.concatenate", "stablehlo.scatter", "stablehlo.select_and_scatter")
_SAME_POSITION = (
    "stablehlo.optimization_barrier",
    "stablehlo.sort",
    "stablehlo.reduce",
    "stablehlo.all_gather",
)
_BRANCHES = ("stablehlo.case", "stablehlo.if")
_BODIES = ("sdy.named_computation", "sdy.manual_computation")


class Flow:
    """Which values a value may be a copy of; built once for a module."""

    def __init__(self, module: Any) -> None:
        self._functions: dict[str, Any] = {}
        self._calls: dict[str, list[Any]] = {}
        for op in walk(module):
            if op.name == "func.func":
                self._functions[ir.StringAttr(op.attributes["sym_name"]).value] = op
            elif op.name == "func.call":
                self._calls.setdefault(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, []).append(op)

    def sources(self, value: Any) -> Iterator[Any]:
        """Values that `value` copies elements of, one step back; nothing for a computed one."""
        if isinstance(value, ir.BlockArgument):
            yield from self._of_block_argument(value)
        else:
            yield from self._of_result(value.owner.operation, value.result_number)

    def influences(self, value: Any) -> Iterator[Any]:
        """Values that `value` is computed from, one step back."""
        if isinstance(value, ir.BlockArgument):
            owner = value.owner.owner.operation
            yield from self._of_block_argument(value)
            if owner.name not in ("func.func", "stablehlo.while", *_BODIES):  # a reducer, a comparator
                yield from owner.operands
            return
        op = value.owner.operation
        if op.name == "func.call" or op.name == "stablehlo.while":
            yield from self._of_result(op, value.result_number)
        else:
            yield from op.operands
            yield from (operand for region in op.regions for operand in _terminator(region).operands)

    def _of_result(self, op: Any, position: int) -> Iterator[Any]:
        operands = op.operands
        if op.name in MOVES:
            yield from (operands[i] for i in MOVES[op.name])
        elif op.name in _EVERY_OPERAND:
            yield from operands
        elif op.name in _SAME_POSITION:
            yield operands[position]
        elif op.name == "stablehlo.while":
            yield operands[position]
            yield _terminator(op.regions[1]).operands[position]
        elif op.name in _BRANCHES or op.name in _BODIES:
            yield from (_terminator(region).operands[position] for region in op.regions)
        elif op.name == "func.call":
            callee = self._functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            yield _terminator(callee.regions[0]).operands[position]

    def _of_block_argument(self, value: Any) -> Iterator[Any]:
        owner = value.owner.owner.operation
        position = value.arg_number
        if owner.name == "func.func":
            yield from (
                call.operands[position] for call in self._calls.get(owner.attributes["sym_name"].value, ())
            )
        elif owner.name == "stablehlo.while":
            yield owner.operands[position]
            yield _terminator(owner.regions[1]).operands[position]
        elif owner.name in _BODIES:
            yield owner.operands[position]


def _terminator(region: Any) -> Any:
    block = region.blocks[0]
    return block.operations[len(block.operations) - 1].operation
