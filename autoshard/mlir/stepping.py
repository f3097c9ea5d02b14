"""Stacks of layers that a scan steps through along another dimension than the first.

jax transposes them in front of the scan, which takes slices along the first dimension. XLA:TPU moves nothing for that: it lays what the
loop carries out as it lies and slices it there (MaxText, which stacks its layers along the second dimension: decoding, reading and training
on v5e, v6e and v5p, libtpu 0.0.52). So the loop is given the stack, and slices along the dimension where the layers are.
"""

from dataclasses import dataclass

from autoshard.mlir.context import Value, ir
from autoshard.mlir.trips import terminator
from autoshard.mlir.walk import SHARDING

_SLICE, _TRANSPOSE, _WHILE = "stablehlo.dynamic_slice", "stablehlo.transpose", "stablehlo.while"


@dataclass(frozen=True, slots=True)
class _Carried:
    """What one loop carries of a stack, unchanged, and the slices of it that its body takes."""

    loop: ir.Operation
    position: int
    slices: tuple[ir.Operation, ...]

    def holds(self, type_: ir.Type) -> None:
        """Let it be of that type."""
        self.loop.results[self.position].set_type(type_)
        for region in self.loop.regions:
            region.blocks[0].arguments[self.position].set_type(type_)


def step_as_stacked(owner: ir.Operation) -> None:
    """Of all loops in the op, in place."""
    for region in owner.regions:
        for block in region.blocks:
            for view in list(block.operations):
                op = view.operation
                if op.name == _TRANSPOSE:
                    _give_as_stacked(op)
                else:
                    step_as_stacked(op)


def _give_as_stacked(turned: ir.Operation) -> None:
    """Give the loops that alone read a transposed stack, layer by layer, the stack itself, where its last dimension stays."""
    dims = list(ir.DenseI64ArrayAttr(turned.attributes["permutation"]))
    uses = [(use.owner.operation, use.operand_number) for use in turned.results[0].uses]
    is_along_rows = dims[1:] == sorted(dims[1:]) and dims[-1:] == [len(dims) - 1]
    if not uses or not is_along_rows or SHARDING in turned.attributes:
        return
    carried = [_carried(loop, position) for loop, position in uses]
    found = [one for one in carried if one is not None]
    if len(found) < len(uses):
        return
    stack = turned.operands[0]
    for one in found:
        for op in one.slices:
            _slice_as_stacked(op, stack.type, dims[0])
        one.holds(stack.type)
    turned.results[0].replace_all_uses_with(stack)
    turned.erase()


def _carried(loop: ir.Operation, position: int) -> _Carried | None:
    """None where the loop is none, changes it, hands it on, or does anything but slice one layer at a time."""
    if loop.name != _WHILE or SHARDING in loop.attributes or any(True for _ in loop.results[position].uses):
        return None
    condition, body = (region.blocks[0] for region in loop.regions)
    held = body.arguments[position]
    if any(True for _ in condition.arguments[position].uses):
        return None
    end = terminator(body)
    readers = [use.owner.operation for use in held.uses if use.owner.operation != end]
    is_unchanged = end.operands[position] == held and sum(operand == held for operand in end.operands) == 1
    if not readers or not is_unchanged or not all(_takes_a_layer(op, held) for op in readers):
        return None
    return _Carried(loop, position, tuple(readers))


def _takes_a_layer(op: ir.Operation, stack: Value) -> bool:
    if op.name != _SLICE or op.operands[0] != stack or SHARDING in op.attributes:
        return False
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    return sizes[0] == 1 and sizes[1:] == list(ir.RankedTensorType(stack.type).shape)[1:]


def _slice_as_stacked(op: ir.Operation, stack: ir.Type, dim: int) -> None:
    """Take the layer along that dimension; it is what it was but for a reshape."""
    layer, (held, *starts) = op.results[0].type, list(op.operands)
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    order = [*range(1, dim + 1), 0, *range(dim + 1, len(sizes))]
    shape = [sizes[number] for number in order]
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            _SLICE,
            results=[ir.RankedTensorType.get(shape, ir.RankedTensorType(stack).element_type)],
            operands=[held, *(starts[number] for number in order)],
            attributes={"slice_sizes": ir.DenseI64ArrayAttr.get(shape)},
        )
        as_before = ir.Operation.create("stablehlo.reshape", results=[layer], operands=[made.results[0]])
    op.results[0].replace_all_uses_with(as_before.results[0])
    op.erase()
