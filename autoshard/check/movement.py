"""The collectives that a plan needs, worked out from its shardings, sized and priced: of kernels (`sums`) and of reshards."""

from collections.abc import Sequence

from autoshard.check.changes import Changes
from autoshard.check.moves import Prices, priced
from autoshard.check.planned import Planned
from autoshard.check.reads import Reads
from autoshard.check.reshards import sent_across_meshes, sent_by_reshards
from autoshard.check.sums import sent_by_kernel, sent_by_user
from autoshard.plans import PlannedCollective


def find_collectives(
    planned: Planned, reads: Reads, changes: Changes, prices: Prices
) -> tuple[PlannedCollective, ...]:
    moved = [
        collective
        for kernel in reads.kernels
        for collective in sent_by_kernel(planned, kernel, reads, changes.left, prices)
    ]
    moved += [
        sent_by_user(planned, kernel, reads, prices)
        for kernel in reads.kernels
        if kernel.kernel.shape.collective
    ]
    moved += sent_by_reshards(planned, changes, prices)
    return tuple(priced(planned, collective, prices) for collective in moved)


def find_left_as_reshards(
    planned: Planned, changes: Changes, prices: Prices
) -> tuple[PlannedCollective, ...]:
    """Those of `find_collectives` that stand for reshards which Shardy leaves as they are."""
    moved = sent_across_meshes(planned.mesh, changes, prices, {})
    return tuple(priced(planned, collective, prices) for collective in moved)


Totals = dict[tuple[str, tuple[str, ...]], tuple[int, int]]


def totals(collectives: Sequence[PlannedCollective]) -> Totals:
    """(count, bytes) of every kind and axes."""
    found: Totals = {}
    for c in collectives:
        count, bytes_ = found.get((c.kind, c.axes), (0, 0))
        found[c.kind, c.axes] = (count + c.repeat, bytes_ + c.bytes * c.repeat)
    return found


def differences(expected: Totals, found: Totals) -> list[str]:
    """The groups that are not the same in both."""
    lines: list[str] = []
    for key in sorted(set(expected) | set(found)):
        mine, theirs = expected.get(key, (0, 0)), found.get(key, (0, 0))
        if mine != theirs:
            lines.append(
                f"{key[0]} over {','.join(key[1])}: expected {mine[0]} of {mine[1]} bytes in all, "
                f"the plan has {theirs[0]} of {theirs[1]}"
            )
    return lines
