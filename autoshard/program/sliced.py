"""Elementwise results without a buffer that XLA stores whole where a device takes a part of what it has worked out.

One part is cut from what the work reads, if that is little work: XLA moves the slice up through it. Behind more than `_MOST_OPS` ops it
stays near the end, and all in front of it is worked out whole and stored (random numbers: a mask of 64x512x8192 takes 1.07 GB on each
of the devices that take a sixteenth of it). Of what several readers take different parts of, or one all and another a part, the whole is
stored whatever the work is (one-hot rows, 0.54 GB). Seen in what libtpu 0.0.52 compiles for v5e 4x4 and v6e 4x4 of 35 small programs:
one-hot rows, chains of two to a hundred ops on bfloat16 and 32 bit integers, hash functions; read by products, elementwise work or both.
"""

from collections.abc import Mapping, Sequence

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Kernel, Lifetime, Sliced
from autoshard.sharding import TensorType

_MOST_OPS, _MOVED_UP = 6, 2


def sliced_values(
    kernels: Sequence[Kernel], listing: Listing, lives: Mapping[int, Lifetime]
) -> dict[int, Sliced]:
    """Of all values whose parts would be worked out where they are read."""
    found, ops_behind, makers = dict[int, Sliced](), dict[int, int](), dict[int, Op]()
    for kernel in kernels:
        if not kernel.is_alias or not is_elementwise(listing.ops[kernel.time]):
            continue
        (value,) = kernel.results
        life = lives.get(value)
        if life is None or life.is_own_buffer or life.within is not None:
            continue
        mine = [op for op in map(listing.ops.__getitem__, kernel.ops) if is_elementwise(op)]
        makers.update({op.results[0]: op for op in mine})
        ops_behind[value] = len(mine) + sum(ops_behind.get(use.value, 0) for use in kernel.uses)
        found[value] = Sliced(_in_front(value, listing, makers), ops_behind[value] > _MOST_OPS)
    return found


def _in_front(value: int, listing: Listing, makers: Mapping[int, Op]) -> TensorType:
    """The type of what a slice is behind once it has been moved up through `_MOVED_UP` ops."""
    type_ = listing.values[value].type
    assert type_ is not None
    for _ in range(_MOVED_UP):
        operands = makers[value].operands if value in makers else ()
        above = ((one, listing.values[one].type) for one in operands if one in makers)
        value, type_ = next(
            ((one, other) for one, other in above if other is not None and other.shape == type_.shape),
            (value, type_),
        )
    return type_
