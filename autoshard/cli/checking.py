"""`check` and `verify`: is a plan what it claims to be?"""

import sys
from pathlib import Path

import click

from autoshard.cli.options import carry_option, parse_carry, read_model, seed_option, time_limit_option
from autoshard.cli.progress import progress_bar


@click.command()
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
    with progress_bar() as progress:
        report = pipeline.check_plan(read_model(model), found, hardware, deep=deep, progress=progress)
    click.echo(report.to_json() if as_json else report.to_text())
    if not report.passed:
        sys.exit(1)


@click.command()
@click.argument("planned")
@click.option("--against", required=True, metavar="MODEL", help="The module before planning.")
@click.option(
    "--devices", type=click.IntRange(min=1), required=True, help="Number of CPU devices; the mesh's size."
)
@carry_option
@seed_option("Seed of the random inputs.")
@time_limit_option("Give up running either module after so long.", default=None, is_above_zero=True)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def verify(
    planned: str, against: str, devices: int, carry: str, seed: int, time_limit: float | None, as_json: bool
) -> None:
    """Run PLANNED on N CPU devices and the original on one, on the same random inputs, and compare the results."""
    from autoshard import pipeline

    with progress_bar() as progress:
        report = pipeline.verify_modules(
            read_model(planned),
            read_model(against),
            devices,
            seed,
            parse_carry(carry),
            time_limit_s=time_limit,
            progress=progress,
        )
    click.echo(report.to_json() if as_json else report.to_text())
    if not report.passed:
        sys.exit(1)
