"""`explain`: which of the user's demands cannot be met together."""

import json
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
