"""The windows through which ops read an operand that they do not take row by row, dimension by dimension."""

from collections.abc import Sequence
from dataclasses import replace

from autoshard.mlir.context import ir, stablehlo
from autoshard.mlir.flops import TypedOp
from autoshard.mlir.listing import Window
from autoshard.sharding import TensorType


def windows_of(op: TypedOp) -> tuple[Window, ...]:
    """One for each dimension that is read so, of each operand; none for other ops and where a shape is unknown."""
    first, result = op.operands[0] if op.operands else None, op.results[0] if op.results else None
    if first is None or result is None:
        return ()
    match op.name:
        case "stablehlo.convolution":
            return _convolved(op, result)
        case "stablehlo.reduce_window":
            dims = range(first.rank)
            windows = _windows(op, dims, _numbers(op, "window_dimensions", first.rank), result.shape)
            return tuple(
                replace(w, operand=operand) for operand in range(len(op.operands) // 2) for w in windows
            )
        case "stablehlo.select_and_scatter":
            source = op.operands[1]
            sizes = _numbers(op, "window_dimensions", first.rank)
            counts = source.shape if source is not None else first.shape
            return _windows(op, range(first.rank), sizes, counts, is_scattered=True)
        case "stablehlo.slice":
            return _sliced(op, first, result)
        case "stablehlo.pad":
            return _padded(op, first, result)
        case "stablehlo.reverse":
            dims = list(ir.DenseI64ArrayAttr(op.op.attributes["dimensions"]))
            return tuple(_rows(dim, first.shape[dim], stride=-1, low=1 - first.shape[dim]) for dim in dims)
        case _:
            return ()


def _rows(dim: int, count: int, *, stride: int = 1, low: int = 0, base_dilation: int = 1) -> Window:
    return Window(dim, count, 1, stride, low, 1, base_dilation)


def _sliced(op: TypedOp, first: TensorType, result: TensorType) -> tuple[Window, ...]:
    starts, strides = (_numbers(op, name, first.rank) for name in ("start_indices", "strides"))
    return tuple(
        _rows(dim, count, stride=strides[dim], low=-starts[dim])
        for dim, count in enumerate(result.shape)
        if count != first.shape[dim]
    )


def _padded(op: TypedOp, first: TensorType, result: TensorType) -> tuple[Window, ...]:
    lows, between = (_numbers(op, name, first.rank) for name in ("edge_padding_low", "interior_padding"))
    return tuple(
        _rows(dim, count, low=lows[dim], base_dilation=between[dim] + 1)
        for dim, count in enumerate(result.shape)
        if lows[dim] or between[dim] or count != first.shape[dim]
    )


def _convolved(op: TypedOp, result: TensorType) -> tuple[Window, ...]:
    numbers = stablehlo.ConvDimensionNumbers(op.op.attributes["dimension_numbers"])
    kernel = op.operands[1]
    if kernel is None:
        return ()
    sizes = [kernel.shape[dim] for dim in numbers.kernel_spatial_dimensions]
    counts = [result.shape[dim] for dim in numbers.output_spatial_dimensions]
    return _windows(op, list(numbers.input_spatial_dimensions), sizes, counts)


def _windows(
    op: TypedOp,
    dims: Sequence[int],
    sizes: Sequence[int],
    counts: Sequence[int],
    *,
    is_scattered: bool = False,
) -> tuple[Window, ...]:
    rank = len(dims)
    strides = _numbers(op, "window_strides", rank)
    base = _numbers(op, "lhs_dilation" if "lhs_dilation" in op.op.attributes else "base_dilations", rank)
    apart = _numbers(op, "rhs_dilation" if "rhs_dilation" in op.op.attributes else "window_dilations", rank)
    padding = _padding(op, rank)
    return tuple(
        Window(dim, counts[i], sizes[i], strides[i], padding[i], apart[i], base[i], is_scattered)
        for i, dim in enumerate(dims)
    )


def _numbers(op: TypedOp, name: str, rank: int) -> list[int]:
    """An attribute with a number for each dimension; 1 each where it is not written."""
    return list(ir.DenseI64ArrayAttr(op.op.attributes[name])) if name in op.op.attributes else [1] * rank


def _padding(op: TypedOp, rank: int) -> list[int]:
    """Rows of padding before the first, in each dimension."""
    if "padding" not in op.op.attributes:
        return [0] * rank
    written = ir.DenseIntElementsAttr(op.op.attributes["padding"])
    return [int(written[0] if written.is_splat else written[2 * dim]) for dim in range(rank)]
