"""Options that several commands take, what their text means, and how the answer is printed."""

import functools
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoshard.errors import AutoshardError
from autoshard.hardware import AUTO, refuse_auto
from autoshard.mlir.forms import FORMS, form_named
from autoshard.overlaps import OVERLAPS, overlap_named

if TYPE_CHECKING:
    from rich.console import Console

    from autoshard.breakdown import Breakdown
    from autoshard.comparisons import Comparison
    from autoshard.confirming import Confirmed
    from autoshard.explanations import Explanation
    from autoshard.held import HeldMemory
    from autoshard.pipeline import Request
    from autoshard.plans import Plan

_Option = Callable[[Callable[..., None]], Callable[..., None]]
_HIGHEST_SEED = 2**31 - 1  # CP-SAT takes no larger one

_AXES = "Mesh axes, major to minor. Not needed where the module has one sdy.mesh."
_mesh_option = click.option("--mesh", metavar="NAME=SIZE,…", help=_AXES)
_searched_mesh_option = click.option(
    "--mesh", metavar="NAME=SIZE,…|auto", help=f"{_AXES} auto: the best mesh of so many --devices."
)
hardware_option = click.option(
    "--hardware",
    default="tpu-v5e",
    show_default=True,
    metavar="NAME|FILE.toml",
    help="Chip profile; with :scheduler behind it, priced as the scheduler of XLA's compiler does.",
)
topology_option = click.option(
    "--topology",
    metavar="4x4",
    help="Physical shape of the devices, of one slice; in nodes NODESxCHIPS. Default: a slice as the chips come, nearest to a cube "
    "(16 of v5e as 4x4, of v5p as 2x2x4); the fullest nodes that the mesh divides into.",
)
slices_option = click.option(
    "--slices",
    type=click.IntRange(min=1),
    metavar="N",
    help="So many tori, joined by the data centre network. Default: the fewest that hold the mesh.",
)
_RIDES = (
    "Which physical dimensions each mesh axis rides on, major to minor, as in data=slices,x=1,y=0+2; 0:(2)4 is a part of "
    "one. Default: row-major, devices by their ids."
)
placement_option = click.option("--placement", metavar="AXIS=DIM+…,…", help=_RIDES)
_searched_placement_option = click.option(
    "--placement", metavar="AXIS=DIM+…,…|auto", help=f"{_RIDES} auto: the best of all."
)
_memory_option = click.option(
    "--memory",
    metavar="SIZE|none",
    help="Budget a device, as 16GB (10^9) or 15.75GiB (2^30). Default: the chip's usable memory less a margin of 5.3 % (GPUs: 15 %) for "
    "what the compiler needs beyond the prediction.",
)
carry_option = click.option(
    "--carry",
    default="auto",
    show_default=True,
    metavar="auto|none|FILE.json",
    help="Which results are next step's arguments and keep one sharding: the donated ones, none, or the pairs in a file "
    '{"carry": [[result, argument], …]}.',
)
form_option = click.option(
    "--form",
    type=click.Choice(FORMS),
    default="xla",
    show_default=True,
    help="Whose compiler runs the plan: prices are of what it emits, and -o is written for it. Prices of xla on TPUs are of what XLA "
    "makes of Shardy's collectives; on GPUs, and in all other forms, of those collectives as they are.",
)
overlap_option = click.option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    help="What runs behind compute: nothing, so that a step is the sum of its parts, or gathers and permutes of weights "
    "(and all that is there ahead of time), up to half of the least time of the product that reads them. Default: async for the "
    "form xla on hardware whose compiler always schedules so (TPU v5e), none otherwise.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
all_option = click.option("--all", "show_all", is_flag=True, help="Print every argument and result.")


@dataclass(frozen=True, slots=True)
class Asked:
    """Where and how a module is to run, as the user wrote it."""

    mesh: str | None
    hardware: str
    topology: str | None
    slices: int | None
    placement: str | None
    memory: str | None
    carry: str
    form: str
    overlap: str | None

    def request(self, default_mesh: str | None = None) -> "Request":
        """Raises AutoshardError: a text that says nothing."""
        refuse_auto(self.placement)
        refuse_auto_mesh(self.mesh)
        return self.with_auto(default_mesh)

    @property
    def is_search(self) -> bool:
        """Whether the mesh or its placement is to be searched for."""
        return AUTO in (self.mesh, self.placement)

    def with_auto(self, default_mesh: str | None = None) -> "Request":
        """The same for `plan`; a mesh that is to be searched for is None.

        Raises:
            AutoshardError: a text that says nothing.
        """
        from autoshard.requests import Request

        mesh = self.mesh if self.mesh is not None else default_mesh
        return Request(
            mesh=None if mesh is None or mesh == AUTO else parse_mesh(mesh),
            hardware=self.hardware,
            topology=None if self.topology is None else parse_topology(self.topology),
            memory_bytes="chip" if self.memory is None else parse_memory(self.memory),
            carry=parse_carry(self.carry),
            form=form_named(self.form),
            slices=self.slices,
            placement=self.placement,
            overlap=None if self.overlap is None else overlap_named(self.overlap),
        )


def refuse_auto_mesh(mesh: str | None) -> None:
    """Raises AutoshardError: a mesh that is to be searched for, where nothing is searched."""
    if mesh == AUTO:
        raise AutoshardError(
            "--mesh auto is for autoshard plan, which searches", fix="name axes, as in --mesh data=4,model=4"
        )


def refuse_half_a_search(asked: Asked, devices: int | None, axes: int | None) -> None:
    """Raises AutoshardError: options of --mesh auto without it, or the other way round."""
    if asked.mesh != AUTO:
        for option, number in (("--devices", devices), ("--axes", axes)):
            if number is not None:
                raise AutoshardError(
                    f"{option} {number} is for --mesh auto", fix="write --mesh auto, or name the axes"
                )
    elif devices is None:
        raise AutoshardError("--mesh auto of how many devices?", fix="add --devices, as in --devices 64")


def request_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `asked`, an Asked made of the options of a request."""
    return _with_asked(command, _mesh_option, placement_option)


def search_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same where the mesh and its placement may be searched for."""
    return _with_asked(command, _searched_mesh_option, _searched_placement_option)


def _with_asked(
    command: Callable[..., None], mesh_option: _Option, placed_option: _Option
) -> Callable[..., None]:
    @functools.wraps(command)
    def with_asked(
        mesh: str | None,
        hardware: str,
        topology: str | None,
        slices: int | None,
        placement: str | None,
        memory: str | None,
        carry: str,
        form: str,
        overlap: str | None,
        **others: Any,
    ) -> None:
        asked = Asked(mesh, hardware, topology, slices, placement, memory, carry, form, overlap)
        command(asked=asked, **others)

    made: Callable[..., None] = with_asked
    where = (mesh_option, hardware_option, topology_option, slices_option, placed_option)
    for option in reversed((*where, _memory_option, carry_option, form_option, overlap_option)):
        made = option(made)
    return made


def time_limit_option(help_text: str, *, default: float | None = 60, is_above_zero: bool = False) -> _Option:
    """`default` None: no limit."""
    return click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=is_above_zero),
        default=default,
        show_default="no limit" if default is None else True,
        metavar="SECONDS",
        callback=_finite,
        help=help_text,
    )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=usable_cores,
    show_default="the cores that it may use",
    help="Engines and jobs that run side by side; changes nothing but the speed.",
)


def seed_option(help_text: str) -> _Option:
    return click.option(
        "--seed", type=click.IntRange(0, _HIGHEST_SEED), default=0, show_default=True, help=help_text
    )


def _finite(_context: click.Context, _parameter: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        raise AutoshardError(
            f"a time limit of {seconds} s is no limit", fix="give a number of seconds, as in 60"
        )
    return seconds


def read_model(model: str | None) -> str | bytes:
    """What to load: a path, or the bytes of the embedded example or of standard input, which can be read only once."""
    from autoshard.mlir.source import ModuleBytes, read_standard_input

    if model is None:
        from importlib import resources

        data = resources.files("autoshard").joinpath("examples/transformer_train.mlir").read_bytes()
        return ModuleBytes(data, "the embedded example")
    return read_standard_input() if model == "-" else model


def parse_memory(text: str) -> int | None:
    """Bytes; None for `none`."""
    from autoshard.report.units import parse_bytes

    return None if text.lower() == "none" else parse_bytes(text)


def parse_mesh(text: str) -> list[tuple[str, int]]:
    axes: list[tuple[str, int]] = []
    for item in text.split(","):
        name, equals, size = item.strip().partition("=")
        if not name or not equals or not size.strip().lstrip("-").isdecimal():
            raise AutoshardError(
                f"cannot read the mesh {text!r} at {item!r}", fix="write axes as in data=4,model=4"
            )
        axes.append((name.strip(), int(size)))
    return axes


def parse_topology(text: str) -> tuple[int, ...]:
    sizes = text.lower().split("x")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise AutoshardError(f"cannot read the topology {text!r}", fix="write sizes as in 4x4 or 4x4x8")
    return tuple(map(int, sizes))


def parse_carry(text: str) -> Any:
    if text in ("auto", "none"):
        return text
    path = Path(text)
    try:
        data: Any = json.loads(path.read_text())
    except OSError as error:
        raise AutoshardError(
            f"cannot read the carry file: {error.strerror}",
            where=text,
            fix="name a file, or write auto or none",
        ) from None
    except ValueError as error:
        raise AutoshardError(f"not JSON: {error}", where=text) from None
    pairs: Any = data.get("carry") if isinstance(data, dict) else None
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        raise AutoshardError("no list of pairs", where=text, fix='write {"carry": [[result, argument], ...]}')
    return [(pair[0], pair[1]) for pair in pairs]


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(type(index) is int for index in item)


def print_plan(
    found: "Plan",
    as_json: bool,
    show_all: bool,
    clash: "Explanation | None" = None,
    parts: "tuple[Breakdown, HeldMemory] | None" = None,
    compared: "Comparison | None" = None,
    confirmed: "Confirmed | None" = None,
) -> None:
    """The summary of a plan; where there is none, also what clashes; where they are asked for, the parts of its time and of its memory;
    what it was the best of, and what the compiler said of it."""
    from autoshard.report import (
        breakdown_data,
        clash_data,
        clash_text,
        comparison_data,
        comparison_text,
        held_data,
        print_breakdown,
        print_held,
        print_summary,
        summary_data,
    )

    if as_json:
        data = summary_data(found) | ({} if clash is None else {"clash": clash_data(clash)})
        data |= {} if compared is None else comparison_data(compared)
        data |= {} if confirmed is None else confirmed.data()
        if parts is not None:
            data |= breakdown_data(parts[0]) | held_data(parts[1])
        click.echo(json.dumps(data, indent=1))
        return
    console = report_console()
    print_summary(found, console, show_all=show_all)
    if compared is not None:
        console.print(comparison_text(compared, show_all=show_all))
    if confirmed is not None:
        console.print(confirmed.text(), highlight=False)
    if clash is not None:
        console.print(clash_text(clash))
    if parts is not None:
        print_breakdown(parts[0], console, show_all=show_all)
        print_held(parts[1], console, show_all=show_all)


def report_console() -> "Console":
    """As wide as the terminal, or wide enough for most tables; wider for figures that it would cut."""
    from rich.console import Console

    from autoshard.report.whole import Whole

    width = None if sys.stdout.isatty() else 150
    console = Console(width=width, soft_wrap=False, highlight=False)
    console.push_render_hook(Whole(console))
    return console
