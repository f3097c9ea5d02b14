"""`sensitivity`: how far the figures of the hardware may be off before another plan is better."""

import json
from pathlib import Path

import click

from autoshard.cli.explaining import module_of
from autoshard.cli.options import report_console, seed_option, threads_option, time_limit_option
from autoshard.cli.progress import progress_bar


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--module", help="The module of the plan. Default: the file that the plan was made from.")
@click.option("--hardware", metavar="NAME|FILE.toml", help="Chip profile. Default: the plan's.")
@click.option(
    "--figure",
    "figures",
    multiple=True,
    metavar="NAME",
    help="A figure, as link-bandwidth; may be repeated. Default: all in use.",
)
@click.option(
    "--span", type=float, default=16.0, show_default=True, help="Factors from 1/SPAN to SPAN are looked at."
)
@click.option(
    "--precision",
    type=float,
    default=0.01,
    show_default=True,
    help="To which part the ends of a range are found.",
)
@time_limit_option("For all figures together.")
@seed_option("Seed of the search.")
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print the ranges as JSON.")
@click.option(
    "--all", "show_all", is_flag=True, help="Print every argument and result that another plan moves."
)
def sensitivity(
    plan_file: Path,
    module: str | None,
    hardware: str | None,
    figures: tuple[str, ...],
    span: float,
    precision: float,
    time_limit: float,
    seed: int,
    threads: int,
    as_json: bool,
    show_all: bool,
) -> None:
    """Find the range of each hardware figure over which PLAN stays the best, and what is better beyond it.

    One figure is scaled at a time, for a latency that of a hop and of a whole collective together, for a peak that of all element
    types. "proved" says whether the solver has ruled out that anything is better; else nothing better was found.
    """
    from autoshard import pipeline
    from autoshard.plans import read_plan
    from autoshard.ranging import sensitivity_of
    from autoshard.report import sensitivity_data, sensitivity_text

    plan = read_plan(plan_file)
    with progress_bar() as progress:
        read = pipeline.read_planned(module_of(plan, module, plan_file), plan, hardware, progress)
        found = sensitivity_of(
            read,
            plan,
            figures=figures,
            span=span,
            precision=precision,
            time_limit_s=time_limit,
            seed=seed,
            threads=threads,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(sensitivity_data(found), indent=1))
    else:
        report_console().print(sensitivity_text(found, show_all=show_all))
