"""In which operands an op is linear, and whether its split reduction factors leave addends: what makes a partial sum sound.

A value is a partial sum over an axis when the values of the devices along it have to be added to be the value. An op may work on
partial sums where op(sum of parts) = sum of op(parts). Shardy checks nothing of this; it is decided here, from the op's definition in the
StableHLO specification. Rounding differs as it does between any two orders of a sum; conversions that lose bits or wrap are not linear.
"""

from collections.abc import Callable

from autoshard.mlir.context import Value, ir
from autoshard.mlir.flops import TypedOp
from autoshard.mlir.listing import Listing
from autoshard.sharding import TensorType

Ways = tuple[tuple[int, ...], ...]
"""Each a set of operands in which the op is jointly linear: all of them partial over the same axes, no other, and so is the result."""

NUMBER = ("f", "bf", "i", "ui", "complex<f")
FLOATS_WITHIN = {
    "f32": ("bf16", "f16"),
    "f64": ("bf16", "f16", "f32"),
}  # what each holds without loss; a sum of the narrow ones would be rounded where one of the wide is not
_EACH_ALONE = frozenset(
    {
        "stablehlo.dot_general",
        "stablehlo.dot",
        "stablehlo.convolution",
        "stablehlo.multiply",
        "chlo.ragged_dot",
    }
)
_ALL_TOGETHER = frozenset(
    {"stablehlo.add", "stablehlo.subtract", "stablehlo.negate", "stablehlo.concatenate", "stablehlo.pad", "stablehlo.complex"}
)  # fmt: skip
_FIRST = frozenset(
    {
        "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.slice", "stablehlo.reverse",
        "stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.real", "stablehlo.imag",
        "sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier",
    }
)  # fmt: skip
_CONSTANTS = frozenset({"stablehlo.constant", "sdy.constant"})
_SUMS = frozenset({"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution", "chlo.ragged_dot"})
_BODIED = frozenset({"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter"})


def linear_ways(op: TypedOp) -> Ways:
    """All ways in which an op with one result is linear; none where it is not, or nobody knows."""
    if len(op.results) != 1 or not _is_number(op.results[0]):
        return ()
    if op.name in _ALL_TOGETHER:
        return (tuple(range(len(op.operands))),)
    if op.name in _EACH_ALONE:
        return ((0,), (1,))
    if op.name in _FIRST:
        return ((0,),)
    rule = _OTHERS.get(op.name)
    return rule(op) if rule is not None else ()


def leaves_addends(op: TypedOp) -> bool:
    """Whether the results of devices that each have a part of the reduction factors add up to the whole result."""
    if len(op.results) != 1 or not _is_number(op.results[0]):
        return False
    return op.name in _SUMS or (op.name == "stablehlo.reduce" and body_name(op.op) == "stablehlo.add")


def body_name(op: ir.Operation) -> str:
    """The op that reduces two numbers in the region of a reduce, reduce_window or scatter; "" for any other region, and for other ops."""
    return reducer_name(op) if op.name in _BODIED else ""


def reducer_name(op: ir.Operation) -> str:
    """The op that reduces two numbers in an op's only region; "" where it does anything else."""
    block = op.regions[0].blocks[0]
    if len(block.operations) != 2 or len(block.arguments) != 2:
        return ""
    inner, end = (view.operation for view in block.operations)
    reads_both = sorted(map(_argument_number, inner.operands)) == [0, 1]
    returns_it = (
        len(end.operands) == 1 and end.operands[0] == inner.result if len(inner.results) == 1 else False
    )
    return inner.name if reads_both and returns_it else ""


def is_zero(op: ir.Operation) -> bool:
    """Whether the op is a constant of zeros, which is a partial sum of zeros as well."""
    number = splat_of(op)
    return isinstance(number, float) and number == 0.0


def splat_of(op: ir.Operation) -> bool | float | None:
    """The finite number or predicate that a constant has everywhere; None of anything else."""
    if op.name not in _CONSTANTS:
        return None
    try:
        value = op.attributes["value"]
    except TypeError:  # complex numbers, which the bindings do not hand out
        return None
    if not isinstance(value, ir.DenseFPElementsAttr | ir.DenseIntElementsAttr) or not value.is_splat:
        return None
    number = str(value.get_splat_value()).split(" ", 1)[0]
    if number in ("true", "false"):
        return number == "true"
    return None if number.startswith("0x") else float(number)  # the bits of what is no finite number


def zero_values(listing: Listing) -> frozenset[int]:
    """Values that are zero everywhere: constants, and what ops make of them that are linear in nothing else."""
    zeros: set[int] = set()
    for op in listing.ops:
        is_converted = op.name == "stablehlo.convert" and op.operands[0] in zeros
        if op.is_zero or is_converted or any(all(op.operands[i] in zeros for i in way) for way in op.linear):
            zeros.update(op.results)
    return frozenset(zeros)


def _argument_number(value: Value) -> int:
    return ir.BlockArgument(value).arg_number if isinstance(value.owner, ir.Block) else -1


def _is_number(type_: TensorType | None) -> bool:
    return type_ is not None and type_.dtype != "i1" and type_.dtype.startswith(NUMBER)


def _quotient(op: TypedOp) -> Ways:
    """Linear in the dividend; the quotient of integers is rounded."""
    result = op.results[0]
    return ((0,),) if result is not None and result.dtype.startswith(("f", "bf", "complex<f")) else ()


def _widening(op: TypedOp) -> Ways:
    before, after = op.operands[0], op.results[0]
    if before is None or after is None:
        return ()
    return ((0,),) if before.dtype in (after.dtype, *FLOATS_WITHIN.get(after.dtype, ())) else ()


def _sum_with_init(op: TypedOp) -> Ways:
    """A sum of the operand and an initial value, which has to be zero to be a part."""
    return ((0, 1),) if len(op.operands) == 2 and body_name(op.op) == "stablehlo.add" else ()


_OTHERS: dict[str, Callable[[TypedOp], Ways]] = {
    "stablehlo.convert": _widening,
    "stablehlo.divide": _quotient,
    "stablehlo.dynamic_update_slice": lambda op: ((0, 1),),
    "stablehlo.reduce": _sum_with_init,
    "stablehlo.reduce_window": _sum_with_init,
    "stablehlo.select": lambda op: ((1, 2),),
}
