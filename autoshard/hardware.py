"""Hardware by name and a mesh laid on it, with what `costmodels` refuses as errors of autoshard."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import costmodels
from autoshard.errors import AutoshardError
from costmodels import Communication, Hardware, placement_text
from costmodels.figures import Torus
from costmodels.scheduled import Group, ns_per_byte

KINDS = dict.fromkeys(costmodels.KINDS, "collectives") | {"matmul": "products", "memory": "kernels"}
"""What can be measured, and what many of them are called."""


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


def profile_of(hardware: str) -> str:
    """The profile that a plan's hardware is, whether priced by its links or by its compiler's scheduler."""
    return hardware.removesuffix(costmodels.SCHEDULED)


def scheduler_of(name: str) -> Hardware | None:
    """The profile at the prices of its compiler's scheduler; None where they are not known."""
    return load_hardware(profile_of(name)).at_scheduler()


def scheduled_ns(
    name: str, kind: str, bytes: int, spans: Sequence[int], shape: Sequence[int]
) -> float | None:
    """What a profile's scheduler takes a collective for, over devices at `spans` places of each dimension of a torus of that shape.

    `kind` and `bytes` as in `costmodels.collectives`. None where the scheduler's prices are not known.
    """
    scheduler = load_hardware(name).scheduler
    if scheduler is None:
        return None
    return bytes * ns_per_byte(scheduler, kind, Group.spanning(spans, shape))


AUTO = "auto"
"""What to write for a placement, or a mesh, that is to be searched for."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a mesh is to lie, as the user asked for it; None leaves it to the hardware."""

    topology: tuple[int, ...] | None = None
    """Chips: the torus's dimensions, or (chips of a node,) or (nodes, chips of each)."""
    slices: int | None = None
    """So many tori, joined by the data centre network."""
    placement: str | None = None
    """What each axis rides on, in the notation of `costmodels.notation`; None and "row-major": row-major; AUTO: the first that there is."""


def refuse_auto(placement: str | None) -> None:
    """Raises AutoshardError: a placement that is to be searched for, where nothing is searched."""
    if placement == AUTO:
        raise AutoshardError(
            "placement auto is for planning, which searches",
            fix="name a placement, as x=0,y=1, or use autoshard plan (autoshard.plan_placements)",
        )


def place_mesh(hardware: Hardware, mesh: Sequence[tuple[str, int]], layout: Layout) -> Communication:
    """Raises AutoshardError: a topology that the chips do not come in, or that the mesh does not divide; a placement that cannot be."""
    with hardware_errors():
        if layout.placement == AUTO:
            return hardware.placements(mesh, layout.topology, slices=layout.slices)[0]
        return hardware.place(mesh, layout.topology, slices=layout.slices, placement=layout.placement)


def placements_of(
    hardware: Hardware, mesh: Sequence[tuple[str, int]], topology: tuple[int, ...] | None, slices: int | None
) -> list[Communication]:
    """Raises AutoshardError: a topology that the chips do not come in, or on which no placement has the mesh."""
    with hardware_errors():
        return hardware.placements(mesh, topology, slices=slices)


def compact_topology(
    hardware: Hardware, devices: int, slices: int | None
) -> tuple[tuple[int, ...], int | None]:
    """Raises AutoshardError: the chips do not come in such a number."""
    with hardware_errors():
        return hardware.compact_topology(devices, slices)


def layout_of(communication: Communication, hardware: Hardware) -> Layout:
    """What to ask for to get this communication model again."""
    placement = communication.placement
    outer, *shape = placement.shape
    if not isinstance(hardware.topology, Torus):
        return Layout((outer, *shape) if outer > 1 else tuple(shape), None, placement_text(placement) or None)
    if hardware.chip.devices_per_chip > 1 and shape:
        shape = shape[:-1]
    return Layout(tuple(reversed(shape)) or (1,), outer, placement_text(placement) or None)


@dataclass(frozen=True, slots=True)
class PricedWork:
    """What a price was asked for: a collective of bytes and devices, a "matmul" of m, k, n and an element type, or "memory" of bytes."""

    kind: str
    sizes: Mapping[str, float]
    dtype: str | None = None


def extrapolated(hardware: Hardware, priced: Iterable[PricedWork]) -> tuple[str, ...]:
    """A warning for each kind whose price goes beyond what a calibrated profile was fitted to."""
    found: dict[str, list[str]] = {}
    for work in priced:
        if work.kind in KINDS:
            outside = hardware.outside_measured(work.kind, work.dtype, **work.sizes)
            found.setdefault(work.kind, []).extend([outside] if outside else [])
    return tuple(
        f"{hardware.name} is extrapolated: {sentences[0]}"
        + (f" ({len(sentences)} such {KINDS[kind]})" if len(sentences) > 1 else "")
        for kind, sentences in found.items()
        if sentences
    )
