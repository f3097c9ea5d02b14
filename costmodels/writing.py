"""A profile as the text of its TOML file, figures with their sources beside them; `load` reads it back."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from .calibration import Calibration

if TYPE_CHECKING:
    from .hardware import Hardware


def profile_text(hardware: "Hardware", heading: str) -> str:
    """The file of a profile under a comment."""
    lines = [f"# {heading}"]
    table = ""
    for figure in hardware.figures():
        if figure.table != table:
            table = figure.table
            lines += ["", f"[{table}]"]
        lines.append(f"{figure.key} = {_value(figure.value)}")
        if figure.source:
            lines.append(f"{figure.key}_source = {_value(figure.source)}")
    if hardware.calibration is not None:
        lines += _calibration(hardware.calibration)
    return "\n".join(lines) + "\n"


def _calibration(found: Calibration) -> Iterator[str]:
    written: dict[str, Any] = msgspec.to_builtins(found)
    rows = {name: written.pop(name) for name in ("range", "residual")}
    yield from (
        "",
        "# What the fitted figures come from: tables, ranges (low, high) and residuals.",
        "[calibration]",
    )
    yield from (f"{key} = {_value(value)}" for key, value in written.items())
    for name, entries in rows.items():
        for entry in entries:
            yield from ("", f"[[calibration.{name}]]")
            yield from (f"{key} = {_value(value)}" for key, value in entry.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
