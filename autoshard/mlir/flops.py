"""Floating-point (or integer) operations of a whole op, from its types, its rule and a few attributes.

A multiply-add counts 2. What a convolution would read of padding, and between the elements of a dilated operand, as gradients of strided
ones do, counts nothing, as in XLA's `HloCostAnalysis` and by XLA:TPU's cycles (libtpu 0.0.51 and 0.0.52, v5e: the gradient by the input of
4x4 windows at stride 2 takes those of the convolution itself, ResNet-50 forward 3.6 % less than with padding). An FFT of length N counts 5
N log2 N (the usual figure for radix 2; Cooley and Tukey). A sort is a network of n/2 exchanges in L (L + 1) / 2 stages, L = log2 n
(Batcher), of 52 operations each; the largest few of n take half as many (both by the times of XLA on an H200: experiments/calibration).
Pure data movement counts 0: its price is its bytes. So do collectives, whose price is that of their communication.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.mlir.context import ir, stablehlo
from autoshard.mlir.listing import Window
from autoshard.sharding import OpShardingRule, TensorType
from autoshard.sharding.rule import factor_volume

MATMULS = frozenset(
    {
        "stablehlo.dot_general",
        "stablehlo.dot",
        "stablehlo.convolution",
        "stablehlo.dynamic_conv",
        "chlo.ragged_dot",
    }
)
DOTS = frozenset({"stablehlo.dot_general", "stablehlo.dot"})
DATA_MOVEMENT = frozenset(
    {
        "chlo.constant", "chlo.constant_like", "sdy.constant", "sdy.propagation_barrier", "sdy.reshard",
        "sdy.sharding_constraint", "stablehlo.after_all", "stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all",
        "stablehlo.bitcast_convert", "stablehlo.broadcast", "stablehlo.broadcast_in_dim",
        "stablehlo.collective_broadcast", "stablehlo.collective_permute", "stablehlo.complex",
        "stablehlo.concatenate", "stablehlo.constant", "stablehlo.create_token", "stablehlo.dynamic_gather",
        "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice", "stablehlo.gather",
        "stablehlo.get_dimension_size", "stablehlo.get_tuple_element", "stablehlo.imag", "stablehlo.infeed",
        "stablehlo.iota", "stablehlo.outfeed", "stablehlo.pad", "stablehlo.partition_id", "stablehlo.real",
        "stablehlo.recv", "stablehlo.reduce_scatter", "stablehlo.replica_id", "stablehlo.reshape", "stablehlo.reverse", "stablehlo.send",
        "stablehlo.slice", "stablehlo.torch_index_select", "stablehlo.transpose", "stablehlo.tuple",
    }
)  # fmt: skip

_RUNNING_BLOCK = 128

_EXCHANGE = 52

# Vector operations per element of a software expansion, rounded: polynomials and range reduction of Cephes-like libraries; erf and
# erfc, all of whose branches are worked out, by XLA's times on an H200 (experiments/calibration).
_WEIGHTS = {
    "stablehlo.divide": 4, "stablehlo.sqrt": 4, "stablehlo.rsqrt": 4, "stablehlo.cbrt": 10,
    "stablehlo.exponential": 8, "stablehlo.exponential_minus_one": 10, "stablehlo.log": 10,
    "stablehlo.log_plus_one": 12, "stablehlo.logistic": 12, "stablehlo.tanh": 12, "stablehlo.sine": 16,
    "stablehlo.cosine": 16, "stablehlo.tan": 20, "stablehlo.atan2": 20, "stablehlo.power": 20,
    "stablehlo.remainder": 8, "chlo.erf": 26, "chlo.erfc": 80, "chlo.erf_inv": 24, "chlo.lgamma": 40,
    "chlo.digamma": 40, "chlo.polygamma": 80, "chlo.zeta": 80, "chlo.bessel_i1e": 40, "stablehlo.rng": 20,
    "stablehlo.rng_bit_generator": 20,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TypedOp:
    """An op as far as its types and attributes tell; equal ones share rule and flops."""

    name: str
    operands: tuple[TensorType | None, ...]
    results: tuple[TensorType | None, ...]
    op: ir.Operation  # an example, for its attributes


def is_matmul(name: str, rule: OpShardingRule | None) -> bool:
    """Whether an op runs on the matrix unit.

    A dot that sums nothing is a multiplication with broadcast operands, and one by vectors, several or one, a multiplication and a
    reduction: XLA makes them so (`AlgebraicSimplifier`; seen with libtpu 0.0.51 and 0.0.52 for v5e, bf16 and f32, of scores of one query
    a head and of weights by a vector; matrices of two columns are multiplied).
    """
    if name not in DOTS or rule is None:
        return name in MATMULS
    lhs, rhs = ({f for dim in mapping for f in dim} for mapping in rule.operands)
    result = {f for dim in rule.results[0] for f in dim}
    large = {f for f, factor in enumerate(rule.factors) if factor.size > 1}
    return _sums(rule) and all(own & result & large for own in (lhs - rhs, rhs - lhs))


def _sums(rule: OpShardingRule) -> bool:
    """Whether the rule has a factor that the result lacks."""
    result = {f for dim in rule.results[0] for f in dim}
    return any(factor.size > 1 and f not in result for f, factor in enumerate(rule.factors))


def flops(op: TypedOp, rule: OpShardingRule | None, windows: Sequence[Window] = ()) -> int:
    """`windows`: of a convolution, over the dimensions of its first operand."""
    if op.name == "stablehlo.convolution":
        return _convolution(op, windows)
    counter = _COUNTERS.get(op.name)
    if counter is not None:
        return counter(op, rule)
    if op.name in DATA_MOVEMENT:
        return 0
    if op.name == "stablehlo.custom_call":
        return _elements(op.operands) + _elements(op.results)
    return _WEIGHTS.get(op.name, 1) * _largest(op.results)


def _elements(types: Sequence[TensorType | None]) -> int:
    return sum(type_.num_elements for type_ in types if type_ is not None)


def _largest(types: Sequence[TensorType | None]) -> int:
    return max((type_.num_elements for type_ in types if type_ is not None), default=0)


def _shape(type_: TensorType | None) -> tuple[int, ...]:
    return type_.shape if type_ is not None else ()


def _dot(op: TypedOp, rule: OpShardingRule | None) -> int:
    if rule is not None:
        return (2 if _sums(rule) else 1) * factor_volume(rule)
    lhs, result = _shape(op.operands[0]), _largest(op.results)
    return 2 * result * lhs[-1] if lhs else 2 * result


def _convolution(op: TypedOp, windows: Sequence[Window]) -> int:
    numbers = stablehlo.ConvDimensionNumbers(op.op.attributes["dimension_numbers"])
    images, kernel = _shape(op.operands[0]), _shape(op.operands[1])
    outputs = max(kernel[numbers.kernel_output_feature_dimension], 1)
    whole = _largest(op.results) * math.prod(kernel) // outputs
    read = math.prod(_rows_read(window, images[window.dim]) for window in windows)
    return 2 * whole * read // max(math.prod(window.count * window.size for window in windows), 1)


def _rows_read(window: Window, rows: int) -> int:
    """How many rows of all windows over a dimension are rows of the operand, not padding nor between rows."""
    offsets = np.arange(window.size, dtype=np.int64) * window.dilation - window.low
    last = (rows - 1) * window.base_dilation
    first_window = np.maximum(-(offsets // window.stride), 0)
    last_window = np.minimum((last - offsets) // window.stride, window.count - 1)
    period = window.base_dilation // math.gcd(window.base_dilation, window.stride)
    read = 0
    for number in range(min(period, window.count)):  # windows that lie alike between the rows
        is_row = (number * window.stride + offsets) % window.base_dilation == 0
        steps = (last_window - number) // period - (first_window - number - 1) // period
        read += int(np.maximum(steps, 0)[is_row].sum())
    return read


def _fft(op: TypedOp, _: OpShardingRule | None) -> int:
    length = math.prod(ir.DenseI64ArrayAttr(op.op.attributes["fft_length"]))
    return int(5 * max(_largest(op.operands), _largest(op.results)) * math.log2(max(length, 2)))


def _sort(op: TypedOp, _: OpShardingRule | None) -> int:
    """Of `_EXCHANGE` and stages see above."""
    dimension = ir.IntegerAttr(op.op.attributes["dimension"]).value if "dimension" in op.op.attributes else -1
    shape = _shape(op.operands[0])
    length = math.log2(max(shape[dimension] if shape else 1, 2))
    exchanges = _largest(op.operands) / 2 * length * (length + 1) / 2
    return int(exchanges * _EXCHANGE / (2 if op.name == "chlo.top_k" else 1))


def _reduce_window(op: TypedOp, _: OpShardingRule | None) -> int:
    """A running sum is made in blocks of 128 rows, sums of blocks added (pass reduce-window-rewriter; seen with libtpu 0.0.51 for v5e)."""
    sizes = _window_sizes(op)
    (before, after) = (_shape(types[0]) for types in (op.operands, op.results))
    is_running = before == after and all(size in (1, rows) for size, rows in zip(sizes, before, strict=False))
    window = math.prod(min(size, _RUNNING_BLOCK) if is_running else size for size in sizes)
    return _largest(op.results) * window


def _scattered_window(op: TypedOp, _: OpShardingRule | None) -> int:
    return _largest(op.operands[1:2]) * math.prod(_window_sizes(op))


def _window_sizes(op: TypedOp) -> tuple[int, ...]:
    attributes = op.op.attributes
    known = "window_dimensions" in attributes
    return tuple(ir.DenseI64ArrayAttr(attributes["window_dimensions"])) if known else ()


def _cholesky(op: TypedOp, _: OpShardingRule | None) -> int:
    shape = _shape(op.operands[0])
    return math.prod(shape) * shape[-1] // 3


def _triangular_solve(op: TypedOp, _: OpShardingRule | None) -> int:
    return _largest(op.results) * _shape(op.operands[0])[-1]


def _operand_elements(op: TypedOp, _: OpShardingRule | None) -> int:
    return _largest(op.operands)


def _updates(op: TypedOp, _: OpShardingRule | None) -> int:
    return _largest(op.operands[-1:])


def _select(op: TypedOp, _: OpShardingRule | None) -> int:
    return _largest(op.results)


def _ragged_dot(op: TypedOp, _: OpShardingRule | None) -> int:
    lhs, rhs = _shape(op.operands[0]), _shape(op.operands[1])
    return 2 * math.prod(lhs) * rhs[-1] if rhs else 0


_COUNTERS: dict[str, Callable[[TypedOp, OpShardingRule | None], int]] = {
    "chlo.ragged_dot": _ragged_dot,
    "chlo.top_k": _sort,
    "stablehlo.batch_norm_grad": lambda op, _: 8 * _largest(op.operands),
    "stablehlo.batch_norm_inference": lambda op, _: 4 * _largest(op.operands),
    "stablehlo.batch_norm_training": lambda op, _: 6 * _largest(op.operands),
    "stablehlo.cholesky": _cholesky,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot,
    "stablehlo.fft": _fft,
    "stablehlo.reduce": _operand_elements,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.scatter": _updates,
    "stablehlo.select": _select,
    "stablehlo.select_and_scatter": _scattered_window,
    "stablehlo.sort": _sort,
    "stablehlo.triangular_solve": _triangular_solve,
}
