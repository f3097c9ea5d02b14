"""What XLA for TPUs emits for a sum of which devices keep parts: these padded to equal chunks, and a permute of rows that this displaces.

Where the parts are not cut along a minor dimension; what all of sixteen devices or more keep is not padded, but of a slice of two unequal
dimensions (4x8). On both ways of a square of two by two there are twice the chunks.
"""

import math
from collections.abc import Sequence

from autoshard.check.emitted import Sent
from autoshard.check.moves import Prices
from autoshard.program import MinorDims
from autoshard.sharding import TensorSharding, TensorType, dtype_bits


def with_padding(
    prices: Prices,
    sent: Sequence[Sent],
    made: TensorSharding,
    kept: TensorSharding,
    type_: TensorType,
    minor: MinorDims | None = None,
) -> tuple[Sent, ...]:
    """In the place of the one sum that is `sent`, of what is made and kept so; `minor` are its minor dimensions."""
    (whole,) = sent
    divided = [
        dim for dim, (before, after) in enumerate(zip(made.axes, kept.axes, strict=True)) if before != after
    ]
    tiles, count = prices.hardware.tiles, whole.devices
    is_every_device = count == prices.compiler.devices > 15 and not _is_oblong(prices)
    has_parts_of_axes = len(divided) > 1 or any(axis.is_sub_axis for axis in whole.axes)
    if prices.lowering != "xla-tpu" or tiles is None or is_every_device or has_parts_of_axes:
        return (whole,)
    shape = made.local_shape(type_.shape)
    is_square = prices.communication.placement.covers_pairs([axis.name for axis in whole.axes])
    bytes_, added = tiles.scattered_part(
        shape, divided[0], count, dtype_bits(type_.dtype), minor, 2 if is_square else 1
    )
    padded = Sent("all_reduce", whole.axes, bytes_ * count)
    displaced = Sent("collective_permute", whole.axes, (count - 1) * added)
    return (padded, displaced) if added else (padded,)


def _is_oblong(prices: Prices) -> bool:
    """Whether the slice has two dimensions, which differ."""
    placed = prices.communication.placement.shape[1:]
    lengths = {length for length in placed if length > 1}
    return len(lengths) == 2 and math.prod(lengths) == math.prod(placed)
