"""What running a convolution inside the one that reads it saves, as XLA:TPU seems to weigh it.

What the inner one makes is neither written nor read then, but made anew for every 256 channels of the outer one, and, where that has
windows of several rows, for the rows that two blocks of it share. Each runs as long as its operations, on whole vectors of channels, or
its memory traffic take, whichever is longer; an element counts four bytes, whatever its type, as all are worked on in float32. None that
sums more than 4096 products runs inside another.

Read off which values libtpu 0.0.52 stores of forty chains of convolutions on v5e, v5p, v6e and v4
(`experiments/fidelity/nesting.py`).
"""

from math import prod

from autoshard.mlir.listing import Listing
from autoshard.program.records import Kernel
from autoshard.sharding import TensorType

_MOST_SUMMED = 4096
_CHANNELS_AT_ONCE = 256  # of the outer one
_LANES = 128
_BLOCK_BYTES = 32 * 2**20  # of what the inner one makes at a time
_ELEMENT_BYTES = 4
_LEAST_SAVED = 0.03  # of the time of both


def saved_bytes(inner: Kernel, outer: Kernel, listing: Listing, flop_per_byte: int, devices: int) -> float:
    """In bytes of memory traffic over all devices, none of which counts for filters; 0 where they run one behind the other.

    Args:
        devices: that share the images.
    """
    made = inner.shape.results[0]
    before, between, behind = (
        type_.num_elements * _ELEMENT_BYTES
        for type_ in (inner.shape.operands[0], made, outer.shape.results[0])
    )
    is_empty = 0 in (before, between, behind)
    if is_empty or channels_of(inner)[0] * _window(inner) > _MOST_SUMMED:
        return 0
    again = -(-channels_of(outer)[1] // _CHANNELS_AT_ONCE) * _repeated(made, outer, devices)
    makes, reads = (
        listing.ops[kernel.time].flops * _padding(kernel) / flop_per_byte for kernel in (inner, outer)
    )
    apart = max(makes, before + between) + max(reads, between + behind)
    together = max(again * makes + reads, before + behind)
    return apart - together if together < (1 - _LEAST_SAVED) * apart else 0


def _padding(kernel: Kernel) -> float:
    """How much more a matrix unit works on whole vectors of what it sums and makes."""
    summed, made = channels_of(kernel)
    return prod(-(-size // _LANES) * _LANES / size for size in (summed * _window(kernel), made))


def channels_of(kernel: Kernel) -> tuple[int, int]:
    """Those that a convolution sums over, of a group, and those that it makes."""
    shape = kernel.shape
    slid, sizes = shape.slid_factors, {"k": 1, "n": 1}
    for factor, (role, size) in enumerate(zip(shape.matmul_roles, shape.rule.factors, strict=True)):
        if role in sizes and factor not in slid:
            sizes[role] *= size.size
    return sizes["k"], sizes["n"]


def _window(kernel: Kernel) -> int:
    return prod(window.size for window in kernel.shape.windows if window.operand == 0)


def _repeated(made: TensorType, outer: Kernel, devices: int) -> float:
    """How often each row is made, as neighbouring blocks of rows both need those at their edge."""
    window = next((one for one in outer.shape.windows if one.operand == 0 and one.size > 1), None)
    if window is None:
        return 1
    row_bytes = made.num_elements * _ELEMENT_BYTES / devices / made.shape[window.dim]
    rows = max(1, _BLOCK_BYTES // row_bytes)
    return (rows + window.size - 1) / rows
