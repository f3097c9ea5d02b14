"""Sums that XLA for TPUs scatters while the product that makes them runs ("windowed dot general").

Such a product is a loop: in each turn a device adds what it has for one device's part to what has come, and passes it on to the next.
Nothing waits but the first pass. Seen in what libtpu 0.0.51 compiles for v5e 2x4 and 4x4, v5p 2x2x4 and v6e 4x4, for any size of the
result, where

- the sum goes over all devices, and the result is cut over all of them along one dimension, evenly;
- there are 8 or 16 devices: on v5e 4x8 the passes are not asynchronous, with 64 devices and more there is no such loop, and none on
  slices of 2x2 (v5e, v6e, v5p 2x2x1).

Where nothing constrains the sum or the operand, groups of 4, 8 or 16 devices do the same over their axes alone, beside others that split
the product otherwise (v5e 4x4 and 8x8, v6e 4x4, v5p 2x2x4, there not along its line of 4). Plans have constraints there.

In the same way an operand is gathered while the product runs: in each turn a device multiplies with the part that it has, and passes it on.
That takes a product that is longer than a pass, an operand that is cut over all devices along one dimension, evenly, and a result that is
cut over all of them as the other operand is; and no constraint on the whole operand. Parts go both ways round at once. Seen on the same
hardware for operands on either side, cut along dimensions that are summed over or kept, cast before or not. Operands that are cut along a
batch dimension of the product (experts) are gathered so too, but wait for most of it.

Where parts go both ways and are cut along what is summed over, which is the last dimension of the other operand, in other than whole rows
of 128 lanes, that is laid out anew in front of the loop, so that parts of it lie along the sublanes (18944 and 16512 by eight, 33024 by
sixteen, bfloat16 and float32, v6e and v5p; not 18944 by four, one way round, and not where that is not the last dimension).

Convolutions are such loops too, unless they are in groups or depthwise (3x3, 1x1 and 7x7, of stride 1 and 2, bfloat16 and float32, v5e 4x4,
v6e 4x4, v5p 2x2x4). Their parts have few channels: what a training step of few images stores for them lies by images, padded to the lanes
(0.96 GB of a U-Net's that takes 0.49 otherwise). Plans have constraints there; modules as they are written have those loops.
A filter that is reversed goes without the pass ahead, 6 % fewer bytes than are counted.
"""

from collections.abc import Iterable

from autoshard.sharding.mesh import AxisRef, Mesh, axes_added, total_size
from autoshard.sharding.rule import OpShardingRule
from autoshard.sharding.tensor import TensorSharding

PRODUCT, CONVOLUTION = "stablehlo.dot_general", "stablehlo.convolution"
_FEWEST_DEVICES, _MOST_DEVICES = 8, 16
_FEWEST_IN_GROUP = 4


ONE_WAY = 4  # devices that pass parts on one way round
_LANES = 128


def cuts_rows(size: int, devices: int) -> bool:
    """Whether a loop over so many devices, both ways round, takes parts of a last dimension that are no whole rows of lanes."""
    return devices > ONE_WAY and size // devices % _LANES != 0


def may_loop(name: str, rule: OpShardingRule) -> bool:
    """Whether XLA may send parts while such an op runs: a product, or a convolution whose channels are in no groups."""
    return name == PRODUCT or (name == CONVOLUTION and not batch_dims(rule, 0))


def is_cut_over_all(
    before: TensorSharding, after: TensorSharding, shape: tuple[int, ...], mesh: Mesh
) -> bool:
    """Whether a whole value is cut evenly over all devices along one dimension, and they are few enough for such a loop."""
    if after.is_foreign or after.unreduced or not is_whole(before):
        return False
    cut = [(size, total_size(axes)) for size, axes in zip(shape, after.axes, strict=True) if axes]
    is_possible = _FEWEST_DEVICES <= mesh.num_devices <= _MOST_DEVICES
    return is_possible and len(cut) == 1 and cut[0][1] == mesh.num_devices and cut[0][0] % cut[0][1] == 0


def cut_in_groups(
    before: TensorSharding, after: TensorSharding, shape: tuple[int, ...], mesh: Mesh
) -> tuple[AxisRef, ...]:
    """The axes of groups in which a value is cut evenly along one dimension that is not split otherwise; none where that is not so or no
    such group loops.
    """
    if before.is_foreign or after.is_foreign or before.unreduced or after.unreduced:
        return ()
    pairs = list(zip(shape, before.axes, after.axes, strict=True))
    cut = [(size, was, axes) for size, was, axes in pairs if was != axes]
    if len(cut) != 1 or cut[0][1]:
        return ()
    size, _, axes = cut[0]
    count = total_size(axes)
    is_possible = _FEWEST_IN_GROUP <= count <= _MOST_DEVICES and count < mesh.num_devices
    return axes if is_possible and size % count == 0 else ()


def is_scatter(before: TensorSharding, after: TensorSharding, axes: Iterable[AxisRef]) -> bool:
    """Whether a sum over the axes that settles so is a reduce-scatter: it is split over exactly those in addition."""
    added: list[AxisRef] = []
    for mine, theirs in zip(before.axes, after.axes, strict=True):
        more = axes_added(mine, theirs)
        if more is None:
            return False
        added += more
    return set(added) == set(axes)


def is_split_over_all(made: TensorSharding, mesh: Mesh) -> bool:
    """Whether each device makes a part of its own."""
    return not made.is_foreign and not made.unreduced and made.num_shards == mesh.num_devices


def is_whole(sharding: TensorSharding) -> bool:
    """Whether each device of the mesh has all of it."""
    return not sharding.is_foreign and not sharding.unreduced and not any(sharding.axes)


def batch_dims(rule: OpShardingRule, operand: int) -> frozenset[int]:
    """Dimensions of an operand of a product that all operands and the result have."""
    each = (*rule.operands, *rule.results)
    shared = frozenset.intersection(*(frozenset(f for dim in mine for f in dim) for mine in each))
    return frozenset(
        dim for dim, factors in enumerate(rule.operands[operand]) if not shared.isdisjoint(factors)
    )


def is_gathered(before: TensorSharding, after: TensorSharding) -> bool:
    """Whether dimensions are split over fewer axes, and nothing else changes."""
    is_alike = before.unreduced == after.unreduced and before.mesh == after.mesh
    return is_alike and before.axes != after.axes and before.refines(after)
