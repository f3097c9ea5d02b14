"""Hardware by name and a mesh laid on it, with what `costmodels` refuses as errors of autoshard."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

import costmodels
from autoshard.errors import AutoshardError
from costmodels import Communication, Hardware


@contextmanager
def hardware_errors() -> Generator[None]:
    """Raises AutoshardError: whatever the cost models refuse meanwhile."""
    try:
        yield
    except costmodels.HardwareError as error:
        raise AutoshardError(error.reason, where=error.where, fix=error.fix) from None


def load_hardware(name: str | Path) -> Hardware:
    """Raises AutoshardError: an unknown name, or a file that is not a valid profile."""
    with hardware_errors():
        return costmodels.load(name)


def place_mesh(
    hardware: Hardware, mesh: Sequence[tuple[str, int]], topology: tuple[int, ...] | None
) -> Communication:
    """Raises AutoshardError: a topology that the chips do not come in, or that the mesh does not divide."""
    with hardware_errors():
        return hardware.place(mesh, topology)


def extrapolated(hardware: Hardware, collectives: Iterable[tuple[str, int, int]]) -> tuple[str, ...]:
    """A warning for each kind whose price goes beyond what a calibrated profile was fitted to; (kind, bytes, devices) in."""
    found: dict[str, list[str]] = {}
    for kind, bytes_, devices in collectives:
        if kind in costmodels.KINDS:
            outside = hardware.outside_measured(kind, bytes=bytes_, devices=devices)
            found.setdefault(kind, []).extend([outside] if outside else [])
    return tuple(
        f"{hardware.name} is extrapolated: {sentences[0]}"
        + (f" ({len(sentences)} such collectives)" if len(sentences) > 1 else "")
        for sentences in found.values()
        if sentences
    )
