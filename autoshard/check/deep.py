"""The plan against Shardy's own passes: what those make of the written module is what the plan pays for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.check.emitted import HALO
from autoshard.check.movement import Totals, differences, totals
from autoshard.check.moves import axis_names
from autoshard.check.report import Finding, of_offenders
from autoshard.mlir.collective import LOCAL, Collective
from autoshard.plans import Plan, PlannedCollective


@dataclass(frozen=True, slots=True)
class AsWritten:
    """What the plan needs, as its compiler carries it out and as it is written.

    Attributes:
        carried_out: with what the compiler does before or after loops that do not change it there.
        in_loops: the same collectives where Shardy's passes leave them, in those loops.
        left: those of them that stand for reshards between meshes of different axes, of which Shardy makes no collectives.
    """

    carried_out: Sequence[PlannedCollective]
    in_loops: Sequence[PlannedCollective]
    left: Sequence[PlannedCollective]


def compare_emitted(plan: Plan, emitted: Sequence[Collective], written: AsWritten) -> Finding:
    """What moves nothing is left out: Shardy's passes merge slices into what comes before. So are groups of one device, and the rows that
    windows need: Shardy's passes leave those ops as they are, for the partitioner to exchange halos.
    """
    expected = emitted_totals(emitted, [name for name, _ in plan.mesh])
    _add(expected, _moving(written.left, plan))
    found = _moving(plan.price.collectives, plan)
    _add(found, _moving(written.in_loops, plan))
    _add(found, _moving(written.carried_out, plan), sign=-1)
    found = {key: total for key, total in found.items() if total != (0, 0)}
    what = "Shardy's passes emit the plan's collectives"
    return of_offenders("emitted", differences(expected, found), len(set(expected) | set(found)), what)


def _moving(collectives: Sequence[PlannedCollective], plan: Plan) -> Totals:
    alone = {name for name, size in plan.mesh if size == 1}
    names = [name for name, _ in plan.mesh]
    moving = [c for c in collectives if c.kind not in (*LOCAL, HALO) and not alone.issuperset(c.axes)]
    return totals([replace(c, axes=_in_order(c.kind, c.axes, names)) for c in moving])


def _in_order(kind: str, axes: tuple[str, ...], mesh_names: Sequence[str]) -> tuple[str, ...]:
    """Those of a reduce-scatter in the order of the mesh: `x:(1)2` before `x:(2)2` before `y`."""

    def order(axis: str) -> tuple[int, int]:
        name, _, part = axis.partition(":(")
        return mesh_names.index(name), int(part.partition(")")[0] or 1)

    return tuple(sorted(axes, key=order)) if kind == "reduce_scatter" else axes


def _add(found: Totals, more: Totals, sign: int = 1) -> None:
    for key, (count, bytes_) in more.items():
        others, there = found.get(key, (0, 0))
        found[key] = (others + sign * count, there + sign * bytes_)


def emitted_totals(emitted: Sequence[Collective], mesh_names: Sequence[str]) -> Totals:
    """(count, bytes) by kind and axes, sized as `costmodels` sizes them; those that move nothing are left out.

    Sums that are scattered have their axes in the order of the mesh; Shardy, and plans where Shardy's steps are theirs, have them in that
    of the dimensions.
    """
    found: Totals = {}
    for c in emitted:
        if c.kind in LOCAL or c.group_size == 1:
            continue
        key = (c.kind, _in_order(c.kind, axis_names(c.axes), mesh_names))
        count, bytes_ = found.get(key, (0, 0))
        size = c.result_bytes if c.kind == "all_gather" else c.operand_bytes
        found[key] = (count + c.repeat, bytes_ + size * c.repeat)
    return found
