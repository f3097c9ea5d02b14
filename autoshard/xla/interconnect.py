"""The price that XLA:TPU's latency-hiding scheduler puts on a collective, for loops that it leaves unscheduled.

It schedules computations with an asynchronous op in them only; collectives in the bodies of other loops have no price of its own. What it
charges elsewhere is linear in bytes, without latency, hops or wraparound: 2 S / (B k) for an all-reduce of S bytes over k whole physical
axes, S / (B k) for a reduce-scatter, the result over B for an all-gather (times (n - 1) / n but on v5e), (n - 1) / n S L / B for an
all-to-all over n devices whose longest axis has L chips, 2 S / B for a permute. Recovered from the schedules of single collectives by
libtpu 0.0.51, for groups that fill whole axes, on slices of v5e (4x4 to 16x16), v6e (4x4, 16x16) and v5p (4x4x4, 2x2x4).
"""

from collections.abc import Sequence

from autoshard.xla.collectives import CompiledCollective
from autoshard.xla.targets import Target

BYTES_PER_NS = {"v5e": 93.3, "v6e": 186.7, "v5p": 186.7}
"""Both directions of an axis, in the scheduler's own table; other families were not measured."""


def scheduler_ns(one: CompiledCollective, target: Target, ids: Sequence[int]) -> float | None:
    """Of one run; `ids` of the devices that partitions run on. None where the family's bandwidth is not known."""
    rate = BYTES_PER_NS.get(target.family)
    if rate is None:
        return None
    coordinates = [_coordinates(ids[partition], target.topology) for partition in one.group]
    spans = [len(set(along)) for along in zip(*coordinates, strict=True)]
    whole_axes = max(1, sum(1 < span == size for span, size in zip(spans, target.topology, strict=True)))
    longest = max((size for span, size in zip(spans, target.topology, strict=True) if span > 1), default=1)
    share = (one.group_size - 1) / max(one.group_size, 1)
    match one.kind:
        case "all-reduce":
            return 2 * one.operand_bytes / (rate * whole_axes)
        case "reduce-scatter":
            return one.operand_bytes / (rate * whole_axes)
        case "all-gather":
            return one.result_bytes / rate * (1 if target.family == "v5e" else share)
        case "all-to-all" | "ragged-all-to-all":
            return share * one.operand_bytes * longest / rate
        case _:
            return 2 * one.operand_bytes / rate


def _coordinates(device: int, topology: tuple[int, ...]) -> tuple[int, ...]:
    place: list[int] = []
    for size in topology:
        place.append(device % size)
        device //= size
    return tuple(place)
