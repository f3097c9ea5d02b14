"""What planning and pricing are asked for besides the module, as a caller writes it; read, or refused where it says nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Literal

from autoshard.errors import AutoshardError
from autoshard.hardware import Layout
from autoshard.mlir.forms import Form
from autoshard.overlaps import Overlap
from costmodels import Hardware
from costmodels.figures import Torus

HIDING_MEMORY_SHARE = 0.947
"""Of what a program can have (`usable_hbm_bytes`), up to which XLA:TPU's scheduler runs collectives behind compute.

Where more than that is alive it begins them when they are needed: a product that gathers its operand, beside an argument of one size after
another, waits longer from 0.948 or 0.949 on v5e, 0.949 on v6e and 0.950 on v5p (libtpu 0.0.52; experiments/fidelity/hiding.py)."""

TPU_MARGIN, GPU_MARGIN = 1 - HIDING_MEMORY_SHARE, 0.15
"""Part of what a program can have that the default budget leaves free.

TPUs: below that the compiler hides communication. Of plans within a tenth of the budget the worst but one exceeded its prediction by 4.3 %
(libtpu 0.0.52, three chips), that one, of Llama-3 8B's forward pass on v5e, by 10 % until copies of what is gathered along several
dimensions were counted; of sixteen since, near the limit of v5e and v6e, the worst by 8.2 %, all of which compile. GPUs: twelve plans for
16 H100 that nothing was learnt from, compiled by XLA:GPU (jax 0.10.2; experiments/calibration), the worst of which exceeded theirs by
16.6 %."""

_MOST_BYTES = 2**63
MeshAxes = Sequence[tuple[str, int]]
Carry = Literal["auto", "none"] | Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Request:
    """Where and how a module is to run; what `plan` and `cost` take besides the module itself."""

    mesh: MeshAxes | None = None
    hardware: str | Path = "tpu-v5e"
    topology: tuple[int, ...] | None = None
    memory_bytes: int | Literal["chip"] | None = "chip"
    carry: Carry = "auto"
    form: Form = "xla"
    slices: int | None = None
    placement: str | None = None
    overlap: Overlap | None = None  # as the compiler does that the form is for

    @property
    def layout(self) -> Layout:
        return Layout(self.topology, self.slices, self.placement)


def given_pairs(carry: Carry) -> Sequence[tuple[int, int]] | None:
    """The pairs that are carried; None: the donated arguments."""
    if carry in ("auto", "none"):
        return None if carry == "auto" else ()
    try:
        return [(index(result), index(argument)) for result, argument in carry]
    except (TypeError, ValueError):
        raise AutoshardError(
            f"cannot read what is carried, {carry!r}",
            fix='write "auto", "none", or pairs of (result index, argument index)',
        ) from None


def budget(memory_bytes: float | Literal["chip"] | None, hardware: Hardware) -> int | None:
    """The memory limit of a device."""
    if memory_bytes is None:
        return None
    if memory_bytes == "chip":
        margin = TPU_MARGIN if isinstance(hardware.topology, Torus) else GPU_MARGIN
        return int(hardware.usable_hbm_bytes * (1 - margin))
    if isinstance(memory_bytes, str) or not 0 <= memory_bytes < _MOST_BYTES:
        raise AutoshardError(
            f"{memory_bytes!r} is no memory budget",
            fix='give a number of bytes, "chip", or None for no limit',
        )
    return int(memory_bytes)
