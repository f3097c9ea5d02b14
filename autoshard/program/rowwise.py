"""Slices that gathers make and scatters take as rows, where the dimension before a slice does not fill tiles.

XLA:TPU gathers and scatters rows, as if all dimensions of the indices were one. Where the last of these is a multiple of 8 that is another
name of the same buffer; where it is not, the tiles of what is asked for have gaps, and it is copied: both are there meanwhile (libtpu
0.0.51, v5e: eleven small programs with 3, 8, 77 and 80 indices in the last dimension, forward and gradients).
"""

from collections.abc import Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.records import Kernel, Lifetime, MinorDims, Whole
from autoshard.sharding import TensorType

_TILE_ROWS = 8
_FEWEST_DIMS = 3


def copied_slices(
    kernels: Sequence[Kernel], listing: Listing, dims: Mapping[int, MinorDims], lives: Mapping[int, Lifetime]
) -> Iterator[tuple[int, Whole]]:
    """Values that are copied from or into rows, and these, for as long as it takes.

    Args:
        dims: how what gathers make and scatters take lies; slices are along the lanes.
    """
    made = {value for kernel in kernels for value in kernel.results} & dims.keys() & lives.keys()
    for kernel in kernels:
        op = listing.ops[kernel.time]
        if op.name == "stablehlo.gather":
            value = op.results[0]
        elif op.name == "stablehlo.scatter" and len(op.operands) == 3:
            value = op.operands[2]
        else:
            continue
        type_ = listing.values[value].type
        if value in made and type_ is not None and _has_gaps(type_, dims[value]):
            last = type_.rank - 1
            yield value, Whole(kernel.time, kernel.time + 1, type_, ((last,), tuple(range(last - 1)), True))


def as_asked(type_: TensorType, dims: MinorDims) -> MinorDims:
    """How a value lies for elementwise work that is copied from or into rows."""
    return ((type_.rank - 1,), (type_.rank - 2,), True) if _has_gaps(type_, dims) else dims


def _has_gaps(type_: TensorType, dims: MinorDims) -> bool:
    lanes, _, is_in_order = dims
    is_sliced = is_in_order and lanes == (type_.rank - 1,) and type_.rank >= _FEWEST_DIMS
    return is_sliced and type_.shape[-2] % _TILE_ROWS != 0
