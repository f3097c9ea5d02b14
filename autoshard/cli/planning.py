"""`plan` and `problem`: a module and what it is to run on, in."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoshard.cli.explaining import explained
from autoshard.cli.options import (
    Asked,
    all_option,
    json_option,
    print_plan,
    read_model,
    refuse_half_a_search,
    request_options,
    search_options,
    seed_option,
    threads_option,
    time_limit_option,
)
from autoshard.cli.progress import progress_bar
from autoshard.errors import AutoshardError, ClashError
from autoshard.mlir.forms import UPSTREAM

if TYPE_CHECKING:
    from autoshard.xla.targets import Target

EXAMPLE_MESH = "data=4,model=4"
_EXPLAINING = 0.5  # times the time limit, on top of it, to say what clashes


@click.command()
@click.argument("model", required=False)
@search_options
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --mesh auto: of every mesh that is tried.",
)
@click.option(
    "--axes",
    type=click.IntRange(1, 3),
    metavar="N",
    help="With --mesh auto: the most axes of a mesh; 3 take long.  [default: 2]",
)
@time_limit_option(
    "For solving; of a search over meshes or placements, for all of them together, pricing included."
)
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
@click.option(
    "--confirm",
    metavar="TARGET",
    help="Compile the plan with XLA for that, as tpu:v5e:4x4 (see `compile`), and plan with less memory, up to four times, where it does "
    "not fit; --time-limit is of each plan, compiling has none.",
)
@seed_option("Seed of the search.")
@threads_option
@json_option
@all_option
def plan(
    model: str | None,
    asked: Asked,
    devices: int | None,
    axes: int | None,
    time_limit: float,
    constraints: str,
    output: Path | None,
    plan_out: Path | None,
    confirm: str | None,
    seed: int,
    threads: int,
    as_json: bool,
    show_all: bool,
) -> None:
    """Plan MODEL (.mlir or .mlirbc, gzipped or not, - for standard input; left out: the embedded example).

    Where there is no plan, what clashes is printed, as by `autoshard explain --infeasible`. With --mesh auto or --placement auto, the
    best plan of all meshes of so many devices and their placements is printed and written, and a table says what is proved of the others.
    """
    from autoshard import pipeline, searching
    from autoshard.clashes import explain_read
    from autoshard.mlir import files

    _require_outputs(asked, output, plan_out)
    if constraints == "all" and asked.form != "xla":
        raise AutoshardError(
            f"--constraints all is for the form xla, not {asked.form}", fix="leave it out, or name --form xla"
        )
    refuse_half_a_search(asked, devices, axes)
    target = None if confirm is None else _target(confirm, asked)
    request = asked.with_auto(EXAMPLE_MESH if model is None else None)
    limits: dict[str, Any] = {"seed": seed, "threads": threads}
    searched, confirmed = None, None
    with progress_bar() as progress:
        module = read_model(model)
        if devices is not None:
            searched = searching.plan_meshes(
                module,
                devices,
                request,
                most_axes=axes or searching.MOST_AXES,
                time_limit_s=time_limit,
                progress=progress,
                **limits,
            )
            read = pipeline.read_planned(module, searched.plan, asked.hardware, progress)
        else:
            read = pipeline.read_module(module, request, progress)
        explain = partial(
            explain_read, read, time_limit_s=_EXPLAINING * time_limit, progress=progress, **limits
        )
        try:
            loaded = pipeline.analyse(read)
            if searched is None and asked.is_search:
                searched = searching.plan_placements(
                    loaded, time_limit_s=time_limit, progress=progress, **limits
                )
            if target is not None:
                from autoshard.confirming import plan_confirmed

                confirmed = plan_confirmed(
                    loaded,
                    target,
                    constraints=pipeline.constraints_named(constraints),
                    time_limit_s=time_limit,
                    progress=progress,
                    **limits,
                )
                found = confirmed.plan
            elif searched is not None:
                found = searched.plan
            else:
                found = pipeline.plan_loaded(loaded, time_limit_s=time_limit, progress=progress, **limits)
        except ClashError as error:
            raise explained(error, explain()) from None
        is_first = confirmed is None or not confirmed.tries  # the budget is the one that was asked for
        clash = explain(is_infeasible=True) if found.status == "infeasible" and is_first else None
        has_plan = found.fits and found.status in ("optimal", "feasible")
        has_plan = has_plan and (confirmed is None or confirmed.fits)
        if has_plan and output is not None:
            text = None if confirmed is None else confirmed.module
            if text is None:
                progress("writing the module", None)
                named = pipeline.constraints_named(constraints)
                text = pipeline.write_planned(loaded, found, constraints=named)
            files.write_module(output, text)
        if has_plan and plan_out is not None:
            path = str(Path(model).resolve()) if model not in (None, "-") else ""
            files.write_text(plan_out, replace(found, module_path=path).to_json())
    compared = None if searched is None else searched.comparison
    print_plan(found, as_json, show_all, clash, compared=compared, confirmed=confirmed)
    if not has_plan:
        sys.exit(1)


def _require_outputs(asked: Asked, output: Path | None, plan_out: Path | None) -> None:
    """Raises AutoshardError: a file that cannot be written, or not as it is named."""
    from autoshard.mlir import files

    for path in (output, plan_out):
        if path is not None:
            files.require_writable(path)
    if output is None:
        return
    if plan_out is not None and output.resolve() == plan_out.resolve():
        raise AutoshardError("-o and --plan-out name one file", where=str(output), fix="name two files")
    if asked.form in UPSTREAM and ".mlirbc" in output.suffixes:
        raise AutoshardError(
            f"--form {asked.form} is written as text only", where=str(output), fix="name a .mlir file"
        )
    files.require_module_format(output)


def _target(confirm: str, asked: Asked) -> "Target":
    """Raises AutoshardError: no such target, or plans that are not compiled."""
    from autoshard.confirming import confirmed_target

    if asked.is_search or asked.form != "xla":
        raise AutoshardError(
            "--confirm compiles plans of one mesh and placement in the xla form",
            where=f"--confirm {confirm}",
            fix="name the mesh and the placement, and leave --form out",
        )
    return confirmed_target(confirm)


@click.command()
@click.argument("model", required=False)
@request_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write: contest JSON, compressed if its name ends in .gz.",
)
def problem(model: str | None, asked: Asked, output: Path) -> None:
    """Write the optimisation problem behind a plan for MODEL as JSON of the IOPDDL contest, for `autoshard solve`."""
    from autoshard import pipeline
    from autoshard.cli.solving import size_text
    from autoshard.mlir import files
    from autoshard.problem import write_iopddl

    files.require_writable(output)
    request = asked.request(EXAMPLE_MESH if model is None else None)
    with progress_bar() as progress:
        loaded = pipeline.load_module(read_model(model), request, progress)
        priced = pipeline.price_for_planning(loaded, progress)
        progress("writing the problem", None)
        name = output.name.removesuffix(".gz").removesuffix(".json")
        nodes = write_iopddl(priced.problem, output, name=name)
    click.echo(f"{output}: {size_text(priced.problem)}", err=True)
    if nodes > priced.problem.node_count:
        further = f"{nodes - priced.problem.node_count} further nodes hold the memory of copies"
        click.echo(f"{further}; the first {priced.problem.node_count} strategies are the plan's", err=True)
