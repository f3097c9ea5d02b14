"""The price that XLA:TPU's latency-hiding scheduler puts on a collective (`costmodels.scheduled`), for loops that it leaves unscheduled.

It schedules computations with an asynchronous op in them only; collectives in the bodies of other loops have no price of its own.
"""

from collections.abc import Sequence

from autoshard.hardware import scheduled_ns
from autoshard.xla.collectives import CompiledCollective
from autoshard.xla.targets import Target

_KINDS = {"ragged-all-to-all": "all_to_all", "collective-broadcast": "collective_permute"}


def scheduler_ns(one: CompiledCollective, target: Target, ids: Sequence[int]) -> float | None:
    """Of one run; `ids` of the devices that partitions run on. None where the scheduler's prices for the family are not known."""
    if target.profile is None:
        return None
    coordinates = [_coordinates(ids[partition], target.topology) for partition in one.group]
    spans = [len(set(along)) for along in zip(*coordinates, strict=True)]
    kind = _KINDS.get(one.kind, one.kind.replace("-", "_"))
    bytes_ = one.result_bytes if kind == "all_gather" else one.operand_bytes
    return scheduled_ns(target.profile, kind, bytes_, spans, target.topology)


def _coordinates(device: int, topology: tuple[int, ...]) -> tuple[int, ...]:
    place: list[int] = []
    for size in topology:
        place.append(device % size)
        device //= size
    return tuple(place)
