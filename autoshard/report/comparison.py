"""What a search over placements and meshes compared, as a table and as plain data."""

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.comparisons import Comparison, Examined
from autoshard.report.units import time_text

_MOST_ROWS = 24


def comparison_text(found: Comparison, *, show_all: bool = False) -> RenderableType:
    """Every mesh and placement with its best plan, its bound and what was proved; the winner first, then by bound."""
    rows = sorted(found.rows, key=lambda row: (row.verdict != "best", row.lower_bound_ns, row.mesh))
    shown = rows if show_all else rows[:_MOST_ROWS]
    title = "meshes and placements"
    if len(shown) < len(rows):
        title += f" ({len(shown)} of {len(rows)}; --all shows all)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("mesh", "placement", "step", "lower bound", "verdict", "why"):
        table.add_column(
            heading, justify="right" if heading in ("step", "lower bound") else "left", overflow="fold"
        )
    for row in shown:
        step = "-" if row.step_ns is None else time_text(row.step_ns)
        bound = time_text(row.lower_bound_ns) if row.lower_bound_ns else "-"
        table.add_row(Text(_mesh(row)), Text(row.placement), step, bound, row.verdict, Text(row.note))
    return Group(Text(f"{len(rows)} compared: {found.proved}"), table)


def comparison_data(found: Comparison) -> dict[str, Any]:
    """The same as plain data, in the order in which they were looked at; times in ns."""
    return {
        "comparison": {
            "proved": found.proved,
            "is_proved": found.is_proved,
            "lower_bound_ns": found.lower_bound_ns,
            "rows": [{**asdict(row), "mesh": dict(row.mesh)} for row in found.rows],
        }
    }


def _mesh(row: Examined) -> str:
    return ",".join(f"{name}={size}" for name, size in row.mesh)
