"""`explain` and `why`: which demands cannot be met together, and what a value's sharding is good for."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoshard.cli.options import (
    Asked,
    read_model,
    report_console,
    request_options,
    seed_option,
    threads_option,
    time_limit_option,
)
from autoshard.cli.progress import progress_bar
from autoshard.errors import AutoshardError, ClashError

if TYPE_CHECKING:
    from autoshard.explanations import Explanation
    from autoshard.plans import Plan


@click.command()
@click.argument("model")
@click.option(
    "--infeasible", is_flag=True, help="Explain why there is no plan; the only thing to explain so far."
)
@request_options
@time_limit_option("For finding the clash and planning without each of its demands.")
@seed_option("Seed of the search.")
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print the clash as JSON.")
def explain(
    model: str, infeasible: bool, asked: Asked, time_limit: float, seed: int, threads: int, as_json: bool
) -> None:
    """Find the fewest demands of MODEL that clash, each as it was written and where, and the cheapest one to drop.

    Demands are shardings, sharding groups and the memory budget. Exit status 0, also where nothing clashes.
    """
    from autoshard import pipeline
    from autoshard.clashes import explain_read
    from autoshard.report import clash_data, clash_text

    if not infeasible:
        raise AutoshardError("explain what?", fix="add --infeasible, or use autoshard why for a plan")
    with progress_bar() as progress:
        read = pipeline.read_module(read_model(model), asked.request(), progress)
        found = explain_read(read, time_limit_s=time_limit, seed=seed, threads=threads, progress=progress)
    if as_json:
        click.echo(json.dumps(clash_data(found), indent=1))
    else:
        report_console().print(clash_text(found))


def explained(error: ClashError, found: "Explanation") -> ClashError:
    """The error with the fewest demands that clash, where they were found."""
    from autoshard.report import clash_lines

    if found.status != "clash":
        return error
    drop = "" if found.to_drop is None else f"the cheapest to drop: {found.to_drop.text}"
    return ClashError(clash_lines(found), where=error.where, fix=drop or error.fix)


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.argument("value", metavar="VALUE[=SHARDING]")
@click.option("--module", help="The module of the plan. Default: the file that the plan was made from.")
@click.option("--hardware", metavar="NAME|FILE.toml", help="Chip profile. Default: the plan's.")
@time_limit_option("For all plans that it takes.")
@seed_option("Seed of the search.")
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--all", "show_all", is_flag=True, help="Print every value that would move.")
def why(
    plan_file: Path,
    value: str,
    module: str | None,
    hardware: str | None,
    time_limit: float,
    seed: int,
    threads: int,
    as_json: bool,
    show_all: bool,
) -> None:
    """Say what binds the sharding of VALUE in PLAN, and what another one would cost, by planning anew with it.

    VALUE is the name of an argument, result or op, or arg3, result0, a line, or %12: its number in the plan. SHARDING is in
    Shardy's notation, as in 'arg3=[{"x"}, {}]'; without it the most plausible ones are tried.
    """
    from autoshard import pipeline
    from autoshard.alternatives import why_value
    from autoshard.plans import read_plan
    from autoshard.report import why_data, why_text

    plan = read_plan(plan_file)
    with progress_bar() as progress:
        read = pipeline.read_planned(module_of(plan, module, plan_file), plan, hardware, progress)
        found = why_value(
            read, plan, value, time_limit_s=time_limit, seed=seed, threads=threads, progress=progress
        )
    if as_json:
        click.echo(json.dumps(why_data(found), indent=1))
    else:
        report_console().print(why_text(found, is_asked="=[" in value, show_all=show_all))


def module_of(plan: "Plan", module: str | None, where: Path) -> str | bytes:
    """What to read the plan's module from.

    Raises:
        AutoshardError: it is not named, and not where the plan says.
    """
    if module is not None:
        return read_model(module)
    if plan.module_path and Path(plan.module_path).is_file():
        return plan.module_path
    embedded = read_model(None)
    if isinstance(embedded, bytes) and hashlib.sha256(embedded).hexdigest() == plan.module_sha256:
        return embedded
    gone = f"{plan.module_path} is not there any more" if plan.module_path else "the plan names no file"
    raise AutoshardError(gone, where=str(where), fix="name the plan's module: --module MODEL")
