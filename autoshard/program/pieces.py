"""Complements of error functions, which XLA makes in pieces and stores so where only a slice of each shard is read.

`chlo.erfc` is two rational functions, of which one is taken in each element. XLA:TPU stores its result at most, beside its operand,
wherever a fusion, a product or a collective reads all of a shard. A slice of the shard (a dimension that becomes split over more axes)
keeps it from joining the slice's fusion, and every part of the function that several others read is stored, as large as the shard. Seen
in what libtpu 0.0.51 compiles for v5e of a perceptron with exact GELU, as JAX writes it, in both types, read by a product and by an
addition; error functions, tanh, logistic functions, exponentials, logarithms and softmaxes are not in pieces (12 small programs).
"""

from collections.abc import Sequence

from autoshard.mlir.listing import Listing, Op
from autoshard.program.records import Kernel
from autoshard.sharding import dtype_bits

_WORD_BITS = 32
_NARROW_BYTES = 17
"""Four floats and which function is taken."""
_WIDE_BYTES = 28
"""Seven floats, of float32."""


def in_pieces(kernels: Sequence[Kernel], listing: Listing) -> dict[int, int]:
    """Of values that are made so, the bytes of all pieces for each element."""
    found: dict[int, int] = {}
    for kernel in kernels:
        if _is_elementwise(listing.ops[kernel.time]):
            pieces = [_bytes(listing.ops[number], listing) for number in kernel.ops]
            pieces += [found.get(use.value, 0) for use in kernel.uses]
            if any(pieces):
                found.update(dict.fromkeys(kernel.results, max(pieces)))
    return found


def _is_elementwise(op: Op) -> bool:
    """Also where its result is demanded, which a plan's own constraints read back as."""
    return (
        op.rule is not None
        and len(op.rule.results) == 1
        and all(m in (op.rule.results[0], ()) for m in op.rule.operands)
    )


def _bytes(op: Op, listing: Listing) -> int:
    type_ = listing.values[op.results[0]].type if op.name == "chlo.erfc" else None
    if type_ is None:
        return 0
    return _WIDE_BYTES if dtype_bits(type_.dtype) >= _WORD_BITS else _NARROW_BYTES
