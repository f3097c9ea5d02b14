"""Sums that XLA for TPUs scatters in a loop with the product that makes them.

Each of at most 16 devices passes parts of the result on to the next, one more time than there are devices. The loop is made where the
product's operations at the peak rate take longer than the bytes of a pass. What waits is the first pass, and what the product is too
short for.
"""

from dataclasses import dataclass

from autoshard.check.compute import kernel_ns, peak_ns
from autoshard.check.parts import num_shards, parts_of
from autoshard.check.planned import Planned
from autoshard.check.reads import KernelRead
from autoshard.sharding import TensorSharding, TensorType
from costmodels import Hardware

_MOST_DEVICES = 16


@dataclass(frozen=True, slots=True)
class InProduct:
    """`bytes` in all passes, on one device."""

    bytes: int
    waits_ns: int
    hidden_ns: int


def part_bytes(planned: Planned, read: KernelRead, value: int) -> int:
    """Of the part that a device passes on, where the result's sum may be scattered in the product; else 0.

    The sum is known to be scattered over all that it is summed over.
    """
    type_ = planned.type_of(value)
    made, left = planned.produced[value], planned.settled[value]
    is_product = planned.listing.ops[read.kernel.ops[-1]].name == "stablehlo.dot_general"
    if not is_product or made.unreduced or num_shards(tuple(p for a in made.axes for p in parts_of(a))) > 1:
        return 0
    return left.local_bytes(type_) if _is_one_even_cut(planned, left, type_) else 0


def _is_one_even_cut(planned: Planned, left: TensorSharding, type_: TensorType) -> bool:
    """Whether every device has a part of its own, of one dimension."""
    counts = [num_shards(parts_of(axes)) for axes in left.axes]
    devices = planned.mesh.num_devices
    return (
        devices <= _MOST_DEVICES
        and max(counts) == devices
        and type_.shape[counts.index(devices)] % devices == 0
    )


def in_product(
    planned: Planned, read: KernelRead, hardware: Hardware, part: int, pass_ns: int, latency_ns: int
) -> InProduct | None:
    """How a sum in parts of so many bytes goes, each pass taking `pass_ns` with its latency; None where there is no loop."""
    if peak_ns(read, hardware) <= pass_ns - latency_ns:
        return None
    product_ns = kernel_ns(planned, read, hardware)
    passes = planned.mesh.num_devices + 1
    waits_ns = max(pass_ns, passes * pass_ns - product_ns)
    return InProduct(passes * part, waits_ns, passes * pass_ns - waits_ns)
