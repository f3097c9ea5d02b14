"""The interface that every communication model has.

What `bytes` means is the same for all models:

- `all_gather_ns`: the gathered result on one device;
- `reduce_scatter_ns`, `all_reduce_ns`, `all_to_all_ns`: the operand on one device;
- `collective_permute_ns`: what one device sends.

`bytes` is an int or an int64 array (or what numpy makes an array of), and the time has the same form, in whole nanoseconds
rounded up. `axes` are the axes and sub-axes whose devices form the group; a group of one device costs 0. A group that spans
several axes is one collective that uses all their links. Zero bytes cost the latency.
"""

from collections.abc import Sequence
from typing import Protocol

from .amounts import Amount
from .distinct import DimensionKind
from .topology import Axis, Placement

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")
"""The collectives that every model prices, each by its method `<kind>_ns`."""


class Communication(Protocol):
    """Times of collectives over the axes of a mesh that is laid on hardware."""

    @property
    def placement(self) -> Placement:
        """Where the mesh lies."""
        ...

    @property
    def dimension_kinds(self) -> tuple[DimensionKind, ...]:
        """What prices see of each dimension of the placement."""
        ...

    def all_gather_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Time to gather `bytes` (the result) on every device of the group."""
        ...

    def reduce_scatter_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Time to sum operands of `bytes` over the group and leave each device its part."""
        ...

    def all_reduce_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Time to sum operands of `bytes` over the group, the whole sum on every device."""
        ...

    def all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Time for each device to send an equal part of its `bytes` to every device of the group."""
        ...

    def relayed_all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """The same where parts are passed on from device to device along whole dimensions."""
        ...

    def collective_permute_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Time for each device to send `bytes` to the next one in the group, cyclically."""
        ...
