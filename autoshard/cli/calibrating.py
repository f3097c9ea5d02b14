"""`calibrate`: measurements in, a hardware profile out."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoshard.cli.hardware import print_wide
from autoshard.cli.options import parse_mesh, parse_topology, topology_option
from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from costmodels import Calibrated


@click.command()
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--hardware", required=True, metavar="NAME|FILE.toml", help="The profile to start from.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The profile to write (.toml)."
)
@click.option("--mesh", metavar="NAME=SIZE,…", help="The mesh that axes are named of, major to minor.")
@topology_option
@click.option("--kind", metavar="all_reduce|…", help="Of nccl-tests output that does not say which it is.")
@click.option(
    "--group", type=click.IntRange(min=2), help="Devices of nccl-tests output that does not say how many."
)
@click.option("--json", "as_json", is_flag=True, help="Print figures, ranges and residuals as JSON.")
def calibrate(
    tables: tuple[Path, ...],
    hardware: str,
    output: Path,
    mesh: str | None,
    topology: str | None,
    kind: str | None,
    group: int | None,
    as_json: bool,
) -> None:
    """Fit latency, bandwidth and efficiency of a profile to measurements, and write the fitted profile.

    A TABLE is CSV with a header (kind, bytes, group, axes, time_us; of matrix products m, k, n, dtype, time_us; kind memory with
    bytes), or what nccl-tests prints. Of an all_gather, bytes are the result on one device, of the others the operand. Figures that the
    measurements say nothing about stay those of --hardware.
    """
    import costmodels
    from autoshard.hardware import hardware_errors
    from autoshard.mlir import files

    files.require_writable(output)
    _require_own_name(output, tables, costmodels.names())
    with hardware_errors():
        found = costmodels.calibrate(
            hardware,
            tables,
            name=output.stem,
            mesh=None if mesh is None else tuple(parse_mesh(mesh)),
            topology=None if topology is None else parse_topology(topology),
            kind=kind,
            devices=group,
        )
    files.write_text(output, found.text())
    if as_json:
        click.echo(json.dumps(_data(found), indent=1, ensure_ascii=False))
        return
    print_wide(_figures(found))
    print_wide(_residuals(found))
    click.echo(
        f"{len(found.calibration.residual)} measurements, rms error {found.calibration.rms:.2%}, ", nl=False
    )
    click.echo(f"worst {found.calibration.worst:.2%}; written to {output}")
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)


def _require_own_name(output: Path, tables: tuple[Path, ...], shipped: list[str]) -> None:
    if output.suffix != ".toml":
        raise AutoshardError("a profile's file ends in .toml", where=str(output), fix="name it mine.toml")
    if output.stem in shipped:
        raise AutoshardError(
            f"{output.stem} is a shipped profile, which that name would go on to mean",
            where=str(output),
            fix="choose another name",
        )
    if any(output.resolve() == table.resolve() for table in tables):
        raise AutoshardError("-o names a table of measurements", where=str(output), fix="choose another name")


def _figures(found: "Calibrated") -> "RenderableType":
    from rich.table import Table

    title = f"{found.hardware.name}, from {found.base.name}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("figure")
    for heading in ("before", "fitted", "±"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for row in found.figures:
        figures = ("-" if value is None else f"{value:.5g}" for value in (row.before, row.after))
        table.add_row(row.name, *figures, f"{row.relative_error:.1%}", row.unit)
    return table


def _residuals(found: "Calibrated") -> "RenderableType":
    from rich.table import Table

    table = Table(title="residuals", title_justify="left", box=None, pad_edge=False)
    table.add_column("measurement")
    for heading in ("measured µs", "fitted µs", "error"):
        table.add_column(heading, justify="right")
    for row in found.calibration.residual:
        table.add_row(row.point, f"{row.measured_us:.5g}", f"{row.fitted_us:.5g}", f"{row.relative:+.1%}")
    return table


def _data(found: "Calibrated") -> dict[str, Any]:
    import msgspec

    return {
        "name": found.hardware.name,
        "figures": [msgspec.to_builtins(figure) for figure in found.figures],
        "rms": found.calibration.rms,
        "worst": found.calibration.worst,
        "calibration": msgspec.to_builtins(found.calibration),
        "warnings": list(found.warnings),
    }
