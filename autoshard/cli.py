"""The command line: reads requests, calls the pipeline, prints. Every command imports what it needs when it runs, so --help is quick."""

import json
import math
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.pipeline import Request
    from autoshard.plans import Plan

EXAMPLE_MESH = "data=4,model=4"

_mesh_option = click.option(
    "--mesh",
    metavar="NAME=SIZE,…",
    help="Mesh axes, major to minor. Not needed where the module has one sdy.mesh.",
)
_hardware_option = click.option(
    "--hardware", default="tpu-v5e", show_default=True, metavar="NAME|FILE.toml", help="Chip profile."
)
_topology_option = click.option(
    "--topology", metavar="4x4", help="Physical shape of the devices. Default: the mesh's own shape."
)
_memory_option = click.option(
    "--memory",
    metavar="SIZE|none",
    help="Budget a device, as 16GB (10^9) or 15.75GiB (2^30). Default: the chip's usable memory less a margin of 7 % for "
    "what the compiler needs beyond the prediction.",
)
_carry_option = click.option(
    "--carry",
    default="auto",
    show_default=True,
    metavar="auto|none|FILE.json",
    help="Which results are next step's arguments and keep one sharding: the donated ones, none, or the pairs in a file "
    '{"carry": [[result, argument], …]}.',
)
_form_option = click.option(
    "--form",
    type=click.Choice(["xla", "shardy"]),
    default="xla",
    show_default=True,
    help="Whose compiler runs the plan: prices are of what it emits, and -o is written for it.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
_all_option = click.option("--all", "show_all", is_flag=True, help="Print every argument and result.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="autoshard", prog_name="autoshard")
def cli() -> None:
    """Find the cheapest legal sharding of every value of a StableHLO module on a mesh, and write the module back."""


@cli.command()
@click.argument("model", required=False)
@_mesh_option
@_hardware_option
@_topology_option
@_memory_option
@_carry_option
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="For solving.",
)
@_form_option
@click.option(
    "--constraints",
    type=click.Choice(["minimal", "all"]),
    default="minimal",
    show_default=True,
    help="xla form: sharding constraints only where propagation would decide otherwise, or at every value.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the planned module (.mlir, .mlirbc, .gz)."
)
@click.option("--plan-out", type=click.Path(path_type=Path), help="Write the plan as JSON.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@_json_option
@_all_option
def plan(
    model: str | None,
    mesh: str | None,
    hardware: str,
    topology: str | None,
    memory: str | None,
    carry: str,
    time_limit: float,
    form: str,
    constraints: str,
    output: Path | None,
    plan_out: Path | None,
    seed: int,
    as_json: bool,
    show_all: bool,
) -> None:
    """Plan MODEL (.mlir or .mlirbc, gzipped or not, - for standard input; left out: the embedded example)."""
    from autoshard import pipeline
    from autoshard.mlir import files

    if not math.isfinite(time_limit):
        raise AutoshardError(
            f"a time limit of {time_limit} s is no limit", fix="give a number of seconds, as in 60"
        )
    for path in (output, plan_out):
        if path is not None:
            files.require_writable(path)
    if output is not None and plan_out is not None and output.resolve() == plan_out.resolve():
        raise AutoshardError("-o and --plan-out name one file", where=str(output), fix="name two files")
    request = _request(
        mesh or (EXAMPLE_MESH if model is None else None), hardware, topology, memory, carry, form
    )
    with _progress() as progress:
        loaded = pipeline.load_module(_model(model), request, progress)
        found = pipeline.plan_loaded(loaded, time_limit_s=time_limit, seed=seed, progress=progress)
        has_plan = found.fits and found.status in ("optimal", "feasible")
        if has_plan and output is not None:
            progress("writing the module", None)
            files.write_module(
                output,
                pipeline.write_planned(loaded, found, constraints=pipeline.constraints_named(constraints)),
            )
        if has_plan and plan_out is not None:
            files.write_text(plan_out, found.to_json())
    _print(found, as_json, show_all)
    if not has_plan:
        sys.exit(1)


@cli.command()
@click.argument("model")
@_mesh_option
@_hardware_option
@_topology_option
@_memory_option
@_carry_option
@_form_option
@_json_option
@_all_option
def cost(
    model: str,
    mesh: str | None,
    hardware: str,
    topology: str | None,
    memory: str | None,
    carry: str,
    form: str,
    as_json: bool,
    show_all: bool,
) -> None:
    """Price the shardings that MODEL already has, completed by Shardy's propagation. Nothing is searched."""
    from autoshard import pipeline

    request = _request(mesh, hardware, topology, memory, carry, form)
    with _progress() as progress:
        loaded = pipeline.load_module(_model(model), request, progress)
        found = pipeline.cost_loaded(loaded, progress)
    _print(found, as_json, show_all)


@cli.command()
@click.argument("model")
@click.option(
    "--plan", "plan_file", required=True, type=click.Path(path_type=Path), help="The plan to check."
)
@click.option("--hardware", metavar="NAME|FILE.toml", help="Chip profile. Default: the plan's.")
@click.option(
    "--deep", is_flag=True, help="Also run Shardy's passes on the written module and compare the collectives."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(model: str, plan_file: Path, hardware: str | None, deep: bool, as_json: bool) -> None:
    """Check a plan for MODEL independently: legality, cost, peak memory, bound. Exit status 1 when a finding fails."""
    from autoshard import pipeline
    from autoshard.plans import read_plan

    found = read_plan(plan_file)
    with _progress() as progress:
        report = pipeline.check_plan(_model(model), found, hardware, deep=deep, progress=progress)
    click.echo(report.to_json() if as_json else report.to_text())
    if not report.passed:
        sys.exit(1)


@cli.command()
@click.argument("planned")
@click.option("--against", required=True, metavar="MODEL", help="The module before planning.")
@click.option(
    "--devices", type=click.IntRange(min=1), required=True, help="Number of CPU devices; the mesh's size."
)
@_carry_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def verify(planned: str, against: str, devices: int, carry: str, seed: int, as_json: bool) -> None:
    """Run PLANNED on N CPU devices and the original on one, on the same random inputs, and compare the results."""
    from autoshard import pipeline

    with _progress() as progress:
        report = pipeline.verify_modules(
            _model(planned), _model(against), devices, seed, _parse_carry(carry), progress
        )
    click.echo(report.to_json() if as_json else report.to_text())
    if not report.passed:
        sys.exit(1)


def _model(model: str | None) -> str | bytes:
    if model is None:
        from importlib import resources

        return resources.files("autoshard").joinpath("examples/transformer_train.mlir").read_bytes()
    return sys.stdin.buffer.read() if model == "-" else model


def _request(
    mesh: str | None, hardware: str, topology: str | None, memory: str | None, carry: str, form: str
) -> "Request":
    from autoshard.pipeline import Request, form_named
    from autoshard.report.units import parse_bytes

    return Request(
        mesh=None if mesh is None else _parse_mesh(mesh),
        hardware=hardware,
        topology=None if topology is None else _parse_topology(topology),
        memory_bytes="chip" if memory is None else None if memory.lower() == "none" else parse_bytes(memory),
        carry=_parse_carry(carry),
        form=form_named(form),
    )


def _parse_mesh(text: str) -> list[tuple[str, int]]:
    axes: list[tuple[str, int]] = []
    for item in text.split(","):
        name, equals, size = item.strip().partition("=")
        if not name or not equals or not size.strip().lstrip("-").isdecimal():
            raise AutoshardError(
                f"cannot read the mesh {text!r} at {item!r}", fix="write axes as in data=4,model=4"
            )
        axes.append((name.strip(), int(size)))
    return axes


def _parse_topology(text: str) -> tuple[int, ...]:
    sizes = text.lower().split("x")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise AutoshardError(f"cannot read the topology {text!r}", fix="write sizes as in 4x4 or 4x4x8")
    return tuple(map(int, sizes))


def _parse_carry(text: str) -> Any:
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


@contextmanager
def _progress() -> Generator[Callable[[str, float | None], None]]:
    """Phases on stderr while they run, when a person is looking."""
    if not sys.stderr.isatty():
        yield lambda phase, fraction: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def report(phase: str, fraction: float | None) -> None:
            bars.update(
                task, description=phase, total=None if fraction is None else 1, completed=fraction or 0
            )

        yield report


def _print(found: "Plan", as_json: bool, show_all: bool) -> None:
    from autoshard.report import print_summary, summary_data

    if as_json:
        click.echo(json.dumps(summary_data(found), indent=1))
        return
    from rich.console import Console

    width = None if sys.stdout.isatty() else 150
    print_summary(found, Console(width=width, soft_wrap=False, highlight=False), show_all=show_all)


def main() -> None:
    """Entry point: 0 done, 1 no plan or a check that failed, 2 a request that cannot be honoured."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("autoshard: interrupted", err=True)
        sys.exit(130)
    except AutoshardError as error:
        click.echo(f"autoshard: {error}", err=True)
        sys.exit(2)
