"""Tables of measurements and a base profile -> a profile whose fitted figures say where they come from.

    >>> made = costmodels.calibrate("h100", [Path("all_reduce.txt"), Path("matmul.csv")])
    >>> Path("mine.toml").write_text(made.text())

Figures that the measurements say nothing about stay the base's, with its sources.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .calibration import Calibration, Residual
from .errors import HardwareError
from .fitting import Fit, fit
from .hardware import Hardware
from .measurements import Batch, merged_ranges
from .profiles import SCHEDULED, load
from .reading_measurements import Given, read_measurements
from .writing import profile_text

_DIGITS = 7  # of a fitted figure


@dataclass(frozen=True, slots=True)
class FittedFigure:
    """A figure before and after; `relative_error` is the standard error of what was fitted, as a share."""

    name: str
    unit: str
    before: float | None
    after: float | None
    relative_error: float


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A fitted profile, how each figure changed, and what to beware of."""

    hardware: Hardware
    base: Hardware
    figures: tuple[FittedFigure, ...]
    warnings: tuple[str, ...]

    @property
    def calibration(self) -> Calibration:
        found = self.hardware.calibration
        assert found is not None, "calibrate sets it"
        return found

    def text(self) -> str:
        """The profile's TOML file."""
        return profile_text(
            self.hardware, f"{self.base.name}, calibrated to {', '.join(self.calibration.tables)}."
        )


def calibrate(
    base: str | Path,
    tables: Sequence[Path],
    *,
    name: str = "calibrated",
    mesh: tuple[tuple[str, int], ...] | None = None,
    topology: tuple[int, ...] | None = None,
    kind: str | None = None,
    devices: int | None = None,
) -> Calibrated:
    """Fit a base profile to tables of measurements (see `reading_measurements` for their forms).

    Args:
        mesh, topology: on what the collectives were measured; a table's axes are then names. Without, each row's group is laid
            as a mesh of its own.
        kind, devices: of nccl-tests output that does not say.

    Raises:
        HardwareError: a base or table that cannot be read, rows that are no measurements, or measurements that do not
            determine the figures they depend on.
    """
    profile = load(base)
    if profile.is_scheduled:
        raise HardwareError(
            f'"{base}" is priced as the compiler\'s scheduler does, which no measurement of the hardware changes',
            fix=f"Start from {str(base).removesuffix(SCHEDULED)}.",
        )
    given = Given(mesh, topology, kind, devices, profile.chip.devices_per_chip)
    read = [read_measurements(table, given) for table in tables]
    batches = [batch for each in read for batch in each.batches]
    where = ", ".join(map(str, tables))
    try:
        found = fit(profile, batches)
    except HardwareError as error:
        raise HardwareError(error.reason, where=error.where or where, fix=error.fix) from None
    warnings = (*(warning for each in read for warning in each.warnings), *found.warnings)
    return _calibrated(profile, found, batches, tables, name, warnings)


def _calibrated(
    base: Hardware,
    found: Fit,
    batches: Sequence[Batch],
    tables: Sequence[Path],
    name: str,
    warnings: tuple[str, ...],
) -> Calibrated:
    moved = {figure: each for each in found.knobs for figure in each.knob.figures}
    rounded = _rounded(found.hardware, tuple(moved))
    after = {f"{figure.table}.{figure.key}": figure for figure in rounded.figures()}
    before = {f"{figure.table}.{figure.key}": figure for figure in base.figures()}
    points = [point for batch in batches for point in batch.points()]
    calibration = Calibration(
        base.name,
        tuple(table.name for table in tables),
        tuple(hashlib.sha256(table.read_bytes()).hexdigest() for table in tables),
        tuple(figure for figure in moved if figure in after),
        merged_ranges(batches),
        tuple(
            Residual(point, _round(measured / 1e3), _round(fitted / 1e3))
            for point, measured, fitted in zip(points, found.measured_ns, found.fitted_ns, strict=True)
        ),
    )
    source = f"calibrated: {len(points)} measurements, rms error {calibration.rms:.2%}, worst {calibration.worst:.2%}; see [calibration]"
    sources = {key: source if key in moved else base.source(key) for key in after}
    figures = tuple(
        FittedFigure(
            key,
            (after.get(key) or before[key]).unit,
            _number(before.get(key)),
            _number(after.get(key)),
            float(each.error / each.value) if each.value else 0.0,
        )
        for key, each in moved.items()
        if key in after or key in before
    )
    hardware = msgspec.structs.replace(
        rounded, name=name, sources=tuple(sources.items()), calibration=calibration
    )
    return Calibrated(hardware, base, figures, warnings)


def _rounded(hardware: Hardware, figures: Sequence[str]) -> Hardware:
    """The profile with the fitted figures in as many digits as its file has."""
    for table, _, key in (figure.partition(".") for figure in figures):
        struct = getattr(hardware, table)
        value = getattr(struct, key)
        if value is not None:
            struct = msgspec.structs.replace(struct, **{key: _round(value)})
            hardware = msgspec.structs.replace(hardware, **{table: struct})
    return hardware


def _round(value: float) -> float:
    return float(f"{float(value):.{_DIGITS}g}")


def _number(figure: object) -> float | None:
    value = getattr(figure, "value", None)
    return float(value) if isinstance(value, (int, float)) else None
