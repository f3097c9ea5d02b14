"""Predicted against emitted bytes of collectives, kind by kind, of every plan in a folder that `plans.py` made.

Bytes are those of the operand on one device times the runs in a step. A plan holds where each kind is within 5 % of what is emitted. What
has no counterpart of the same bytes on the other side is listed, with where it comes from. With `--programs` and `--held-out`, folders of
the modules that plans were made of, collectives of plans that are older than the cost model are derived anew, by what `autoshard check`
does; those of `--held-out` are marked as such in the table and counted by themselves. With `--keep-others`, rows of plans that the table
has and the folders have not stay in it, and in the plot and the counts.

A loop that ends by its data runs once in the judge's count and so often as `autoshard` takes it to in ours: what repeats so often counts
once for such a program.

python experiments/fidelity/collectives.py FOLDER... [--programs FOLDER] [--held-out FOLDER] [--table TABLE.csv [--keep-others]]
    [--plot PLOT.svg]
"""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plans import Setting, load_program, program_name
from plot import scatter

from autoshard.check.changes import find_changes
from autoshard.check.movement import find_collectives
from autoshard.check.moves import Prices
from autoshard.check.planned import read_shardings
from autoshard.check.reads import find_reads
from autoshard.check.rules import check_rules
from autoshard.mlir.repeats import DEFAULT_TRIP_COUNT
from autoshard.pipeline import Loaded
from autoshard.plans import Plan, emitted_bytes, read_plan

WITHIN = 0.05

_Row = tuple[str, bool, str, str, str, str, int, int, bool]
"""Of the table: program, held_out, plan, target, mesh, kind, predicted_bytes, emitted_bytes, within."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One plan, predicted and emitted bytes by kind."""

    program: str
    plan: str
    target: str
    mesh: str
    predicted: Mapping[str, int]
    emitted: Mapping[str, int]

    @property
    def kinds(self) -> list[str]:
        return sorted({*self.predicted, *self.emitted})

    def holds(self, kind: str) -> bool:
        predicted, emitted = self.predicted.get(kind, 0), self.emitted.get(kind, 0)
        return abs(predicted - emitted) <= WITHIN * emitted


@dataclass(slots=True)
class Anew:
    """Plans as the present version derives them from the programs that they were made of."""

    programs: Mapping[str, Path]
    _loaded: tuple[str, Setting, Loaded] | None = field(default=None, repr=False)  # the last one

    def derived(self, plan: Plan, program: str) -> Plan | None:
        """The plan with its collectives anew; None where its program is not there or it is not written so any more."""
        if program not in self.programs:
            return None
        loaded = self._program(program, Setting(plan.hardware, plan.mesh, plan.topology))
        planned, written = read_shardings(plan, loaded.program)
        if not written.ok:
            return None
        runs, _ = check_rules(planned)
        reads, _ = find_reads(planned, runs, plan.lowering)
        prices = Prices(loaded.hardware, loaded.communication, plan.lowering, plan.overlap)
        changes = find_changes(planned, reads, prices)
        collectives = find_collectives(planned, reads, changes, prices)
        return replace(plan, price=replace(plan.price, collectives=collectives))

    def _program(self, program: str, setting: Setting) -> Loaded:
        if self._loaded is None or self._loaded[:2] != (program, setting):
            self._loaded = program, setting, load_program(self.programs[program], setting)
        return self._loaded[2]


def judged(folders: Iterable[Path]) -> Iterator[tuple[Path, Plan, str, dict[str, Any]]]:
    """Each plan that was compiled, with what the judge said."""
    for folder in folders:
        for path in sorted(folder.glob("**/*.plan.json")):
            name = path.name.removesuffix(".plan.json")
            for found in sorted(path.parent.glob(f"{name}.*.json")):
                said = json.loads(found.read_text()) if found != path else {}
                if said.get("ok") and "collectives" in said:
                    yield path, read_plan(path), str(said.get("target", "")), said


def counted_once(plan: Plan, said: dict[str, Any]) -> Plan:
    """With one run of each loop whose trip count neither side knows."""
    if not any("trip count unknown" in note for note in said.get("notes", ())):
        return plan
    collectives = (
        replace(c, repeat=c.repeat // DEFAULT_TRIP_COUNT) if c.repeat % DEFAULT_TRIP_COUNT == 0 else c
        for c in plan.price.collectives
    )
    return replace(plan, price=replace(plan.price, collectives=tuple(collectives)))


def compared(path: Path, plan: Plan, target: str, said: dict[str, Any]) -> Compared:
    emitted: Counter[str] = Counter()
    for one in said["collectives"]:
        emitted[one["kind"].replace("-", "_")] += one["operand_bytes"] * one["times"]
    name = path.name.removesuffix(".plan.json")
    mesh = ",".join(f"{axis}={size}" for axis, size in plan.mesh)
    return Compared(path.parent.name, name, target, mesh, emitted_bytes(plan.price), emitted)


def unmatched(plan: Plan, said: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What is predicted and not emitted, and the other way round, largest first; equal bytes of a kind are one another's."""
    predicted = [
        (one.kind, one.bytes * c.repeat, f"{c.kind} at {c.where}")
        for c in plan.price.collectives
        for one in c.emitted
    ]
    emitted = [
        (c["kind"].replace("-", "_"), bytes_ * c["times"], f"{c['op_name'] or c['name']} in {c['in_']}")
        for c in said["collectives"]
        for bytes_ in c["elems"]
    ]
    return _beyond(predicted, emitted), _beyond(emitted, predicted)


def _beyond(these: list[tuple[str, int, str]], others: list[tuple[str, int, str]]) -> list[str]:
    left = Counter((kind, bytes_) for kind, bytes_, _ in others)
    found: list[tuple[int, str]] = []
    for kind, bytes_, where in these:
        if left[kind, bytes_]:
            left[kind, bytes_] -= 1
        else:
            found.append((bytes_, f"{kind} of {bytes_} bytes: {where}"))
    return [text for _, text in sorted(found, reverse=True)]


def _programs(folders: Iterable[Path]) -> dict[str, Path]:
    return {program_name(file): file for folder in folders for file in folder.glob("*.mlir*")}


def _others(table: Path, rows: Iterable[_Row]) -> Iterator[_Row]:
    """Rows of a table of plans that are not among those given."""
    anew = {(row[0], *row[2:5]) for row in rows}
    with table.open(newline="") as file:
        for one in csv.DictReader(file):
            if (one["program"], one["plan"], one["target"], one["mesh"]) not in anew:
                yield (
                    one["program"],
                    one["held_out"] == "True",
                    one["plan"],
                    one["target"],
                    one["mesh"],
                    one["kind"],
                    int(one["predicted_bytes"]),
                    int(one["emitted_bytes"]),
                    one["within"] == "True",
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--unmatched", type=int, default=5, help="how many to list for each side of a plan that is off"
    )
    parser.add_argument("--programs", type=Path, action="append", default=[])
    parser.add_argument("--held-out", type=Path, action="append", default=[])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--keep-others", action="store_true")
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    rows: list[_Row] = []
    plans: list[bool] = []
    held_counts: Counter[tuple[str, bool]] = Counter()
    held_out = _programs(asked.held_out)
    anew = Anew({**_programs(asked.programs), **held_out})
    for path, plan, target, said in judged(asked.folders):
        if anew.programs:
            derived = anew.derived(plan, path.parent.name)
            if derived is None:
                print(f"left out: {path}, which the present version does not read")
                continue
            plan = derived
        plan = counted_once(plan, said)
        found = compared(path, plan, target, said)
        rows += [
            (
                found.program,
                found.program in held_out,
                found.plan,
                target,
                found.mesh,
                kind,
                found.predicted.get(kind, 0),
                found.emitted.get(kind, 0),
                found.holds(kind),
            )
            for kind in found.kinds
        ]
        plans.append(all(map(found.holds, found.kinds)))
        groups = (f"{target} {found.mesh}", found.plan.rstrip("0123456789"))
        whose = "held-out programs" if found.program in held_out else "other programs"
        held_counts.update((group, plans[-1]) for group in (*groups, whose))
        figures = ", ".join(
            f"{kind} {found.predicted.get(kind, 0) / 1e6:.3f} MB for {found.emitted.get(kind, 0) / 1e6:.3f}"
            for kind in found.kinds
        )
        print(f"{'ok ' if plans[-1] else 'OFF'} {found.program} {found.plan}: {figures or 'no collectives'}")
        if not plans[-1]:
            for side, lines in zip(("predicted only", "emitted only"), unmatched(plan, said), strict=True):
                for line in lines[: asked.unmatched]:
                    print(f"      {side}: {line}")
    if asked.table is not None and asked.keep_others:
        others = list(_others(asked.table, rows))
        rows = sorted([*rows, *others])
        by_plan: dict[tuple[str, ...], list[_Row]] = {}
        for row in others:
            by_plan.setdefault((row[0], *row[2:5]), []).append(row)
        for (_, plan_name, target, mesh), its in by_plan.items():
            plans.append(all(row[-1] for row in its))
            whose = "held-out programs" if its[0][1] else "other programs"
            held_counts.update(
                (group, plans[-1]) for group in (f"{target} {mesh}", plan_name.rstrip("0123456789"), whose)
            )
    if not plans:
        sys.exit("no compiled plans in these folders; make them with plans.py --judge")
    held = sum(row[-1] for row in rows)
    print(
        f"{sum(plans)} of {len(plans)} plans within {WITHIN:.0%} in every kind, {held} of {len(rows)} kinds"
    )
    for group in sorted({group for group, _ in held_counts}):
        good, bad = (held_counts[group, is_good] for is_good in (True, False))
        print(f"{group}: {good} of {good + bad} plans")
    if asked.table is not None:
        with asked.table.open("w", newline="") as file:
            writer = csv.writer(file)
            columns = "program held_out plan target mesh kind predicted_bytes emitted_bytes within"
            writer.writerow(columns.split())
            writer.writerows(rows)
    if asked.plot is not None:
        points: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            points.setdefault(row[5], []).append((row[6], row[7]))
        asked.plot.write_text(scatter(points, "predicted bytes", "emitted bytes"))


if __name__ == "__main__":
    main()
