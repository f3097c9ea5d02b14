"""What a compiler made of a plan beside what was predicted, as text and as data."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoshard.hardware import profile_of
from autoshard.report.units import bytes_text, time_text
from autoshard.xla.beside import Side, by_kind, differences
from autoshard.xla.compiled import Compiled
from autoshard.xla.held_beside import HeldSide, held_differences, temporary_bytes
from autoshard.xla.prediction import Prediction, ScheduledTime
from autoshard.xla.targets import parse_target

_MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class CompileReport:
    """`prediction` is None where none was asked for; `places`: of the compiled module, as the prediction has them where it has others."""

    compiled: Compiled
    prediction: Prediction | None
    places: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def kinds(self) -> tuple[Side, ...]:
        predicted = () if self.prediction is None else self.prediction.collectives
        return by_kind(predicted, self.compiled.collectives)

    @property
    def differences(self) -> tuple[Side, ...]:
        if self.prediction is None:
            return ()
        readers = {constraint: self.places.get(op, op) for constraint, op in self.compiled.readers.items()}
        return differences(self.prediction.collectives, self.compiled.collectives, {**self.places, **readers})

    @property
    def held_differences(self) -> tuple[HeldSide, ...]:
        if self.prediction is None or self.prediction.held is None:
            return ()
        return held_differences(self.prediction.held, self.compiled)

    @property
    def note(self) -> str:
        """What to keep in mind where the prediction is for other hardware than the target."""
        profile = parse_target(self.compiled.target).profile
        if self.prediction is None or self.prediction.hardware == profile:
            return ""
        if profile is not None and profile_of(self.prediction.hardware) == profile:
            return "times are predicted as the compiler's scheduler prices them"
        has_none = "" if profile is not None else f", since there is no profile of {self.compiled.target}"
        return (
            f"the prediction is for {self.prediction.hardware}{has_none}: what its compiler makes of collectives and memory, and every "
            "time, is not that of the target"
        )

    def to_json(self) -> str:
        data: dict[str, object] = {"fits": True, "compiled": self.compiled.to_data()}
        if self.prediction is not None:
            data["prediction"] = msgspec.to_builtins(self.prediction)
            data["kinds"] = msgspec.to_builtins(self.kinds)
            data["differences"] = msgspec.to_builtins(self.differences)
            data["held_differences"] = [
                {**msgspec.to_builtins(side), "difference_bytes": side.difference_bytes}
                for side in self.held_differences
            ]
            data["note"] = self.note
        return msgspec.json.format(msgspec.json.encode(data), indent=1).decode()

    def to_text(self, width: int = 150, *, show_all: bool = False) -> str:
        file = io.StringIO()
        console = Console(file=file, width=width, highlight=False)
        compiled = self.compiled
        form = "in full" if compiled.is_full else "up to scheduling and buffer assignment"
        console.print(
            f"Compiled for {compiled.target} by {compiled.compiler} {form} in {compiled.compile_s:.1f} s"
        )
        if self.prediction is not None:
            console.print(f"Predicted: {self.prediction.source}, on {self.prediction.hardware}")
        if self.note:
            console.print(f"note: {self.note}")
        for table in (self._collectives(), self._memory(), self._time()):
            if table is not None:
                console.print(table)
        if show_all:
            self._print_each(console)
        self._print_differences(console, show_all)
        self._print_held(console, show_all)
        for warning in compiled.warnings:
            console.print(f"warning: {warning}")
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"

    def _collectives(self) -> Table:
        table = _table(
            "collectives", "group", *_pair("count"), *_pair("operand bytes a device"), "difference"
        )
        for side in self.kinds:
            table.add_row(
                side.kind,
                _group_text(side.group_size),
                str(side.predicted.count),
                str(side.compiled.count),
                bytes_text(side.predicted.operand_bytes),
                bytes_text(side.compiled.operand_bytes),
                _difference(side.predicted.operand_bytes, side.compiled.operand_bytes),
            )
        if not self.kinds:
            table.add_row("none")
        return self._without_prediction(table)

    def _memory(self) -> Table:
        memory = self.compiled.memory
        table = _table("memory a device", "predicted", "compiled", "difference")
        predicted = 0 if self.prediction is None else self.prediction.peak_bytes
        table.add_row(
            "peak",
            bytes_text(predicted),
            bytes_text(memory.total_bytes),
            _difference(predicted, memory.total_bytes),
        )
        for name, size in (
            ("  arguments", memory.argument_bytes),
            ("  outputs", memory.output_bytes),
            ("  of which in donated arguments", -memory.alias_bytes),
        ):
            table.add_row(name, "", ("-" if size < 0 else "") + bytes_text(abs(size)))
        held = None if self.prediction is None else self.prediction.held
        temporary = 0 if held is None else temporary_bytes(held)
        table.add_row(
            "  temporary",
            "" if held is None else bytes_text(temporary),
            bytes_text(memory.temporary_bytes),
            "" if held is None else _difference(temporary, memory.temporary_bytes),
        )
        return self._without_prediction(table)

    def _time(self) -> Table | None:
        time = self.compiled.time
        if time is None:
            return None
        predicted = self.prediction
        scheduled = None if predicted is None else predicted.scheduled
        columns = ("predicted", *([] if scheduled is None else [_AT_SCHEDULER]), "compiler's estimate")
        table = _table("time of a step", *columns)
        compute = "matrix products at peak" if time.fusions_ns is None else "fusions"
        compute_ns = time.matmul_ns if time.fusions_ns is None else time.fusions_ns
        names = ("compute", "communication", "step")
        sides = [_times(predicted), *([] if scheduled is None else [_times(scheduled)])]
        estimates = (compute_ns, time.communication_ns, time.step_ns)
        notes = (f"  ({compute})", "", "")
        for name, *predictions, theirs, note in zip(names, *sides, estimates, notes, strict=True):
            table.add_row(name, *predictions, "?" if theirs is None else time_text(theirs) + note)
        empty = [""] * (len(columns) - 1)
        if scheduled is not None:
            exposed = time_text(sum(time.exposed_ns.values()))
            table.add_row("  waiting for what is asynchronous", "", time_text(scheduled.waited_ns), exposed)
        for label, parts in (
            ("waiting for asynchronous", time.exposed_ns),
            ("synchronous", time.synchronous_ns),
        ):
            for kind, ns in parts.items():
                if ns >= 1000:
                    table.add_row(f"  {label} {kind}", *empty, time_text(ns))
        if time.unscheduled_ns:
            table.add_row("  in loops without a schedule", *empty, time_text(time.unscheduled_ns))
        return self._without_prediction(table)

    def _without_prediction(self, table: Table) -> Table:
        if self.prediction is None:
            table.columns = [one for one in table.columns if one.header not in _PREDICTED]
        return table

    def _place(self, side: Side) -> str:
        """Of a constraint, with the op that reads through it."""
        return self._op_of(side.predicted_where or side.compiled_where)

    def _print_each(self, console: Console) -> None:
        """Every compiled collective, those that move most first."""
        if not self.compiled.collectives:
            return
        table = _table("compiled collective", "groups", "operand bytes of a run", "runs", "for the op")
        table.columns[-1].justify = "left"
        for one in sorted(self.compiled.collectives, key=lambda one: (-one.total_bytes, one.kind, one.name)):
            is_permute = one.kind == "collective-permute"
            groups = f"{one.groups} pairs" if is_permute else f"{one.groups} of {one.group_size}"
            places = dict.fromkeys(map(self._op_of, one.where))
            others = f" and for {len(places) - 1} more" if len(places) > 1 else ""
            where = Text(next(iter(places), _UNNAMED) + others)
            table.add_row(one.kind, groups, bytes_text(one.operand_bytes), str(one.times), where)
        console.print(table)

    def _print_differences(self, console: Console, show_all: bool) -> None:
        found = self.differences
        if self.prediction is None:
            return
        if not found:
            console.print(
                "Every collective is as predicted, op by op."
                if self.kinds
                else "No collectives on either side."
            )
            return
        table = _table("difference", "kind", "group", "predicted", "compiled", "for the op")
        table.columns[0].justify, table.columns[1].justify, table.columns[-1].justify = (
            "right",
            "left",
            "left",
        )
        for side in found if show_all else found[:_MOST_ROWS]:
            sign = "+" if side.difference_bytes > 0 else "-"
            table.add_row(
                sign + bytes_text(abs(side.difference_bytes)),
                side.kind,
                _group_text(side.group_size),
                bytes_text(side.predicted.operand_bytes),
                bytes_text(side.compiled.operand_bytes),
                Text(self._place(side)),
            )
        console.print(table)
        if not show_all and len(found) > _MOST_ROWS:
            console.print(f"… {len(found) - _MOST_ROWS} smaller differences (--all shows them)")

    def _print_held(self, console: Console, show_all: bool) -> None:
        """What is in memory at the peak: where both sides differ, or what the compiler has where nothing is predicted."""
        rows: list[tuple[str, ...]] = []
        if self.prediction is not None and self.prediction.held is not None and self.compiled.held:
            titles = ("temporary memory at the peak", "predicted", "compiled", "for the op")
            for side in self.held_differences:
                sign = "+" if side.difference_bytes > 0 else "-"
                sides = (side.predicted_bytes, side.compiled_bytes)
                difference = sign + bytes_text(abs(side.difference_bytes))
                rows.append((difference, *map(bytes_text, sides), self._op_of(side.where)))
        else:
            titles = ("temporary memory at the peak", "compiled as", "for the op")
            rows = [(bytes_text(one.bytes), one.type, self._op_of(one.where)) for one in self.compiled.held]
        if not rows:
            return
        table = _table(*titles)
        table.columns[0].justify, table.columns[-1].justify = "right", "left"
        for row in rows if show_all else rows[:_MOST_ROWS]:
            table.add_row(*map(Text, row))
        console.print(table)
        if not show_all and len(rows) > _MOST_ROWS:
            console.print(f"… {len(rows) - _MOST_ROWS} smaller ones (--all shows them)")

    def _op_of(self, where: str) -> str:
        """Of a constraint, with the op that reads through it."""
        reader = self.compiled.readers.get(where)
        return where or _UNNAMED if reader is None else f"{where}, read by {reader}"


_UNNAMED = "(the compiler names none)"
_AT_SCHEDULER = "predicted at its prices"
_PREDICTED = ("predicted", "difference", "predicted count", "predicted operand bytes a device")


def _times(of: Prediction | ScheduledTime | None) -> tuple[str, str, str]:
    """Compute, communication and step."""
    if of is None:
        return "", "", ""
    return time_text(of.compute_ns), time_text(of.communication_ns), time_text(of.step_ns)


def _group_text(group_size: int) -> str:
    return f"of {group_size}" if group_size else "pairs"


def _pair(name: str) -> tuple[str, str]:
    return f"predicted {name}", f"compiled {name}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _difference(predicted: int, compiled: int) -> str:
    """Of what was compiled from what was predicted."""
    if predicted == compiled:
        return "none"
    return f"{(compiled - predicted) / predicted:+.1%}" if predicted else "not predicted"
