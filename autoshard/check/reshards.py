"""What the plan's compiler makes of changes of sharding.

Once for readers that ask for the same, behind compute, in a loop with a product, or in every trip; across meshes see `meshes`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard.check.changes import Changes, Reshard
from autoshard.check.emitted import Sent, sent_for, sent_for_step, times_laid_out
from autoshard.check.merging import Asked, carried_out
from autoshard.check.meshes import steps_across
from autoshard.check.moves import Moved, Prices, laid_out_ns, ns_of, ns_of_one, type_sent
from autoshard.check.overlap import MOVED_AHEAD, scheduled_limits
from autoshard.check.padding import with_padding
from autoshard.check.planned import Planned
from autoshard.check.scattering import Loop, in_gathering
from autoshard.mlir.collective import LOCAL, CollectiveStep
from autoshard.sharding import Mesh, TensorSharding, TensorType, dtype_bits


def sent_by_reshards(planned: Planned, changes: Changes, prices: Prices) -> Iterator[Moved]:
    limits = scheduled_limits(planned, prices.hardware) if prices.overlap == "async" else {}
    yield from sent_across_meshes(planned.mesh, changes, prices, limits)
    together = carried_out([_asked(reshard, steps, prices) for reshard, steps in changes.moving])
    for (reshard, steps), types in zip(changes.moving, together, strict=True):
        alone = list(_sized(reshard, steps, prices))
        if reshard.loop is not None:
            yield from _in_loop(planned, reshard, reshard.loop, alone, prices)
            continue
        found = list(_merged(reshard, steps, types, alone, prices))
        if not reshard.is_sent:
            found = [replace(one, merged=()) for one in found]
        yield from _kept_in_loops(found, reshard)
        yield from _behind_compute(found, reshard.hideable_ns, limits.get(reshard.repeat, 0), prices)


def _kept_in_loops(steps: Sequence[Moved], reshard: Reshard) -> Iterator[Moved]:
    """What XLA leaves in the loops, in the trips beside the one that all steps run in: gathers, and what follows one or a slice."""
    first = _first_that_stays([step.kind for step in steps])
    for step in steps[first:]:
        if step.kind != "all_slice" and reshard.trips > step.repeat:
            yield replace(step, repeat=reshard.trips - step.repeat)


def _first_that_stays(kinds: Sequence[str]) -> int:
    return next((n for n, kind in enumerate(kinds) if kind in ("all_gather", "all_slice")), len(kinds))


def _in_loop(
    planned: Planned, reshard: Reshard, loop: Loop, steps: Sequence[Moved], prices: Prices
) -> Iterator[Moved]:
    """The one gather, its parts passed on while the product runs."""
    part = loop.held.local_bytes(type_sent(prices, reshard.type, reshard.travels))
    pass_ns = ns_of_one(prices, "collective_permute", part, loop.axes)
    for step in steps:
        inside = in_gathering(planned, loop, prices.hardware, part, pass_ns, ns_of(prices, step))
        passed = (Sent("collective_permute", loop.axes, inside.bytes),)
        all_ns = inside.waits_ns + inside.hidden_ns
        yield replace(step, sent=passed, merged=None, hidden_ns=inside.hidden_ns, passes_ns=all_ns)


def _asked(reshard: Reshard, steps: Sequence[CollectiveStep], prices: Prices) -> Asked | None:
    if prices.lowering != "xla-tpu" or reshard.reader_of is None or not reshard.is_sent:
        return None
    shardings = (reshard.origin, *(step.out_sharding for step in steps))
    inside = reshard.inside_of if reshard.trips > reshard.repeat else None
    stays = 1 + _first_that_stays([step.kind for step in steps])
    return Asked(
        *reshard.reader_of, shardings, reshard.copied or reshard.travels, inside, stays, reshard.again
    )


def _merged(
    reshard: Reshard,
    steps: Sequence[CollectiveStep],
    types: Sequence[TensorType | None],
    alone: Sequence[Moved],
    prices: Prices,
) -> Iterator[Moved]:
    """The steps of a change with what is sent for them once all readers are served."""
    for number, one in enumerate(alone):
        if number >= len(types) and reshard.copied is None:
            yield one
            continue
        travels = types[number] if number < len(types) else reshard.copied
        wide = replace(reshard, travels=travels) if travels is not None else None
        yield replace(
            one, merged=list(_sized(wide, steps, prices))[number].merged if wide is not None else ()
        )


def sent_across_meshes(
    mesh: Mesh, changes: Changes, prices: Prices, limits: Mapping[int, int]
) -> Iterator[Moved]:
    for reshard in changes.across:
        found = _stepping_across(mesh, reshard, prices)
        yield from _behind_compute(found, reshard.hideable_ns, limits.get(reshard.repeat, 0), prices)


def _stepping_across(mesh: Mesh, reshard: Reshard, prices: Prices) -> Iterator[Moved]:
    travels = type_sent(prices, reshard.type, reshard.travels)
    times = _times_as_wide(reshard.type, travels)
    steps = steps_across(mesh, reshard.type, reshard.origin, reshard.target)
    as_sent = steps_across(mesh, travels, reshard.origin, reshard.target)
    for (kind, axes, bytes_), (_, _, fewer) in zip(steps, as_sent, strict=True):
        sent = sent_for(prices.compiler, kind, axes, fewer, times)
        yield Moved(kind, axes, bytes_, reshard.repeat, reshard.op, sent, fewer)


def _behind_compute(
    found: Iterable[Moved], hideable_ns: int, limit_ns: int, prices: Prices
) -> Iterator[Moved]:
    """The steps of one reshard, those that can run ahead hidden as far as that goes, first to last.

    `limit_ns`: up to which a scheduler hides its share of what is not there ahead of time.
    """
    if not (hideable_ns or limit_ns):
        yield from found
        return
    steps = list(found)
    is_ahead = [s.kind in MOVED_AHEAD and not s.is_waited_for for s in steps]
    ahead = [
        ns_of(prices, s) - laid_out_ns(prices, s) if a else 0 for s, a in zip(steps, is_ahead, strict=True)
    ]
    left = min(hideable_ns, sum(ahead) * 9 // 10)
    left += min((sum(ahead) - left) * prices.hardware.hidden_percent // 100, limit_ns)
    for step, ns in zip(steps, ahead, strict=True):
        hidden_ns = min(left, ns)
        left -= hidden_ns
        yield replace(step, hidden_ns=hidden_ns)


def _sized(reshard: Reshard, steps: Sequence[CollectiveStep], prices: Prices) -> Iterator[Moved]:
    before = reshard.origin
    for step in steps:
        held = step.out_sharding if step.kind in ("all_gather", *LOCAL) else before
        travels = type_sent(prices, reshard.type, reshard.travels)
        sent = sent_for_step(prices.compiler, step, before, travels, _times_as_wide(reshard.type, travels))
        bytes_ = held.local_bytes(reshard.type)
        kept = held.local_bytes(travels)
        compiled = sent
        if step.kind == "reduce_scatter" and sent:
            compiled = with_padding(prices, sent, before, step.out_sharding, travels)
        is_gather = step.kind == "all_gather" and any(one.kind == step.kind for one in sent)
        is_laid_out = is_gather and prices.lowering == "xla-tpu"
        often = times_laid_out(before, step.out_sharding) if is_laid_out else 0
        yield Moved(
            step.kind,
            step.axes,
            bytes_,
            reshard.repeat,
            reshard.op,
            sent,
            kept,
            merged=compiled,
            laid_out=often,
            is_waited_for=often > 0 and prices.starts_early and travels.num_elements < prices.apart_below,
        )
        before = step.out_sharding


LaidOut = frozenset[tuple[TensorType, TensorType, TensorSharding, TensorSharding]]
"""(type, as it travels, from, to) of what is gathered along several dimensions on the way."""


def find_laid_out(changes: Changes, prices: Prices) -> LaidOut:
    """Of all changes of sharding, those that XLA:TPU lays out anew behind a gather."""
    return frozenset(
        (reshard.type, reshard.travels, reshard.origin, reshard.target)
        for reshard, steps in changes.moving
        if any(one.laid_out for one in _sized(reshard, steps, prices))
    )


def _times_as_wide(type_: TensorType, travels: TensorType) -> int:
    return dtype_bits(type_.dtype) // max(dtype_bits(travels.dtype), 1)
