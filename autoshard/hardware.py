"""Hardware by name and a mesh laid on it, with what `costmodels` refuses as errors of autoshard."""

from collections.abc import Generator, Sequence
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
