"""Programs priced once for many tests."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

from autoshard import pipeline
from autoshard.cost import PricedGraph
from autoshard.pipeline import Loaded
from autoshard.sharding import AxisRef, Mesh
from autoshard.xla.compiling import compile_planned
from costmodels import Communication, load
from tests.programs import PROGRAMS

MESH = (("x", 4), ("y", 2))
HARDWARE = load("tpu-v5e")


def communication(mesh: Mesh) -> Communication:
    return HARDWARE.place([(axis.name, axis.size) for axis in mesh.axes])


def compiled_bytes(text: str, target: str) -> dict[str, int]:
    """Operand bytes on one device by kind, of all that the compiler emits."""
    found: Counter[str] = Counter()
    for one in compile_planned(text.encode(), target).collectives:
        found[one.kind.replace("-", "_")] += one.total_bytes
    return dict(found)


def collective_ns(communication: Communication, kind: str, bytes_: int, axes: Sequence[AxisRef]) -> int:
    """By costmodels; a slice moves nothing between devices, and reads and writes what it keeps."""
    if kind == "all_slice" or kind.endswith("_to_unreduced"):
        return math.ceil(2 * bytes_ * (1e9 / HARDWARE.hbm_bytes_per_s))
    keys = [(axis.name, axis.pre_size, axis.size) if axis.is_sub_axis else axis.name for axis in axes]
    kind = "collective_permute" if kind == "halo_exchange" else kind
    return getattr(communication, f"{kind}_ns")(bytes_, keys)


@cache
def program(name: str) -> tuple[Loaded, PricedGraph]:
    """One of tests/programs on `MESH`, without a memory limit, each collective carried out as it is."""
    return loaded(PROGRAMS[name](), MESH)


@cache
def loaded(text: str, mesh: tuple[tuple[str, int], ...] | None = None) -> tuple[Loaded, PricedGraph]:
    request = pipeline.Request(mesh=mesh, memory_bytes=None, form="shardy")
    found = pipeline.load_module(text.encode(), request)
    return found, pipeline.price(found)
