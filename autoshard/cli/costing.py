"""`cost`: what an annotated module takes, and what one reshard takes. Nothing is searched."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from autoshard.cli.hardware import print_wide
from autoshard.cli.options import (
    Asked,
    all_option,
    form_option,
    hardware_option,
    json_option,
    parse_mesh,
    parse_topology,
    placement_option,
    print_plan,
    read_model,
    refuse_auto_mesh,
    request_options,
    slices_option,
    topology_option,
)
from autoshard.cli.progress import progress_bar
from autoshard.mlir.forms import form_named

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autoshard.queries import Reshard

MODULE = "module"


class _ModuleByDefault(click.Group):
    """A group whose first argument may be left out: `cost FILE` is `cost module FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_command = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_command else [MODULE, *args])


@click.group(cls=_ModuleByDefault, subcommand_metavar="MODULE [OPTIONS]  |  reshard [OPTIONS]")
def cost() -> None:
    """Price the shardings that MODULE already has, or one reshard. Nothing is searched.

    `cost MODULE` stands for `cost module MODULE`, whose options `cost module --help` lists.
    """


@cost.command(MODULE)
@click.argument("model")
@request_options
@click.option(
    "--explain",
    is_flag=True,
    help="Also print what bounds each kind of kernel, which op needs each collective and why, and what is in memory at its peak.",
)
@json_option
@all_option
def cost_module(model: str, asked: Asked, explain: bool, as_json: bool, show_all: bool) -> None:
    """Price the shardings that MODEL already has, completed by Shardy's propagation."""
    from autoshard import pipeline

    request = asked.request()
    with progress_bar() as progress:
        loaded = pipeline.load_module(read_model(model), request, progress)
        found = pipeline.price_as_written(loaded, progress)
        parts = (found.breakdown(), found.held()) if explain else None
        progress("scheduling", None)
        plan = found.plan_with_schedule()
    print_plan(plan, as_json, show_all, parts=parts)


@cost.command("reshard")
@click.option(
    "--shape", required=True, metavar="8192x8192xbf16", help="Sizes and element type of the whole tensor."
)
@click.option(
    "--from", "before", required=True, metavar="SHARDING", help="""Shardy's notation: '[{"x"}, {}]'."""
)
@click.option("--to", "after", required=True, metavar="SHARDING", help="The sharding to bring it to.")
@click.option("--mesh", required=True, metavar="NAME=SIZE,…", help="Mesh axes, major to minor.")
@hardware_option
@topology_option
@slices_option
@placement_option
@form_option
@json_option
def cost_reshard(
    shape: str,
    before: str,
    after: str,
    mesh: str,
    hardware: str,
    topology: str | None,
    slices: int | None,
    placement: str | None,
    form: str,
    as_json: bool,
) -> None:
    """Print the collectives that Shardy makes of a reshard, what the compiler carries them out as, and what they take.

    Prices are those that a plan pays for a value that travels in its own type.
    """
    from autoshard.queries import reshard
    from autoshard.report import shape_text

    refuse_auto_mesh(mesh)
    found = reshard(
        shape,
        before,
        after,
        mesh=parse_mesh(mesh),
        hardware=hardware,
        topology=None if topology is None else parse_topology(topology),
        slices=slices,
        placement=placement,
        form=form_named(form),
    )
    if as_json:
        click.echo(json.dumps({**asdict(found), "mesh": dict(found.mesh), "ns": found.ns}, indent=1))
        return
    mesh_text = ", ".join(f"{name}={size}" for name, size in found.mesh)
    lies = shape_text(found.topology, found.slices)
    click.echo(f"{found.type} on mesh {mesh_text}, {found.hardware} {lies}, carried out by {found.lowering}")
    click.echo(f"placement {found.placement}")
    click.echo(f"from {found.before}\nto   {found.after}")
    if found.steps:
        print_wide(_steps(found))
    click.echo(_total(found))
    for warning in found.warnings:
        click.echo(f"warning: {warning}")


def _steps(found: "Reshard") -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    from autoshard.report.units import bytes_text, time_text

    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "axes", "bytes a device", "time", "carried out as", "then"):
        table.add_column(heading, justify="right" if heading in ("bytes a device", "time") else "left")
    for step in found.steps:
        parts = [f"{one.kind} of {bytes_text(one.bytes)}" for one in step.emitted]
        parts += (
            [f"{step.copies} cop{'y' if step.copies == 1 else 'ies'} of the result"] if step.copies else []
        )
        emitted = " and ".join(parts)
        table.add_row(
            step.kind,
            Text(",".join(step.axes)),
            bytes_text(step.bytes),
            time_text(step.ns),
            emitted or "nothing sent",
            Text(step.sharding),
        )
    return table


def _total(found: "Reshard") -> str:
    from autoshard.report.units import time_text

    count = len(found.steps)
    return f"price {time_text(found.ns)} ({found.ns} ns, {count} collective{'' if count == 1 else 's'})"
