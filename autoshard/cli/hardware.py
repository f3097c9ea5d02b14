"""`hardware`: the profiles that prices come from."""

import json
from typing import TYPE_CHECKING, Any

import click

from autoshard.cli.options import report_console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from costmodels import Hardware

_SCHEDULED = (
    "Times are those of the compiler's scheduler: of matrix products at chip.bf16_tflop_per_s, of collectives at scheduler.axis_gb_per_s. "
    "The other figures count for memory only."
)


@click.command()
@click.argument("name", required=False, metavar="[NAME|FILE.toml][:scheduler]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def hardware(name: str | None, as_json: bool) -> None:
    """List the hardware profiles, or the figures of one with their units and sources.

    With :scheduler behind it a profile is priced as the scheduler of XLA's compiler does: matrix products at peak and its own times of
    collectives, nothing else.
    """
    import costmodels
    from autoshard.hardware import load_hardware

    profiles = [load_hardware(each) for each in ([name] if name else costmodels.names())]
    if as_json:
        data = [_data(profile) for profile in profiles]
        click.echo(json.dumps(data[0] if name else data, indent=1, ensure_ascii=False))
    elif name:
        print_wide(_figures(profiles[0]))
        if profiles[0].is_scheduled:
            click.echo(f"\n{_SCHEDULED}")
    else:
        print_wide(_profiles(profiles))
        click.echo("\nautoshard hardware NAME lists all figures of one with their sources.")
        known = ", ".join(each.name for each in profiles if each.scheduler is not None)
        click.echo(
            f"NAME:scheduler is priced as the scheduler of XLA's compiler does (there is one for {known})."
        )


def _profiles(profiles: "list[Hardware]") -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name")
    for heading in ("memory GB", "HBM GB/s", "bf16 TFLOP/s", "f32 TFLOP/s", "link GB/s", "network GB/s"):
        table.add_column(heading, justify="right")
    table.add_column("topology")
    for each in profiles:
        devices = each.chip.devices_per_chip
        table.add_row(
            each.name,
            f"{each.hbm_bytes * devices / 1e9:.4g}",
            f"{each.chip.hbm_gb_per_s:g}",
            f"{each.chip.bf16_tflop_per_s:g}",
            f"{each.chip.f32_tflop_per_s:g}",
            f"{each.link.bytes_per_ns:g}",
            f"{each.network.bytes_per_ns:g}" if each.network else "-",
            _topology(each),
        )
    return table


def _topology(profile: "Hardware") -> str:
    from costmodels.figures import Torus

    shape = profile.topology
    if isinstance(shape, Torus):
        halves = ", 2 devices a chip" if profile.chip.devices_per_chip == 2 else ""
        return f"{shape.dimensions}-D torus, up to {shape.max_chips} chips{halves}"
    kind = str(shape.__struct_config__.tag)
    return f"{kind}, {shape.node_chips} chips a node"


def _figures(profile: "Hardware") -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=profile.name, title_justify="left", box=None, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("source", overflow="fold")
    for row in profile.figures():
        value = str(row.value).lower() if isinstance(row.value, bool) else _number(row.value)
        table.add_row(f"{row.table}.{row.key}", value, row.unit, Text(row.source))
    return table


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def _data(profile: "Hardware") -> dict[str, Any]:
    rows = {
        f"{row.table}.{row.key}": {"value": row.value, "unit": row.unit, "source": row.source}
        for row in profile.figures()
    }
    return {"name": profile.name, "priced_by": profile.priced_by, "figures": rows}


def print_wide(table: "RenderableType") -> None:
    report_console().print(table)
