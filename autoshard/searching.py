"""Placements of a mesh, and meshes of so many devices, compared by the cheapest plan on each.

`examining` plans those that need it.
"""

from dataclasses import replace
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.examining import MeshAxes, Search, Searched
from autoshard.hardware import AUTO, compact_topology, layout_of, load_hardware, placements_of
from autoshard.loading import Loaded, load_module
from autoshard.mlir.source import SourceModule, load, own_meshes
from autoshard.program import priority_levels
from autoshard.progress import Progress, silent
from autoshard.requests import Request
from costmodels import placement_text
from costmodels.notation import ROW_MAJOR

AXIS_NAMES = ("x", "y", "z")
MOST_AXES = 2
"""Of a mesh, unless more are asked for: with three, a program has many times the choices."""


def plan_placements(
    loaded: Loaded,
    *,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress = silent,
) -> Searched:
    """The best plan of a module over all distinct placements of its mesh on the topology that it was loaded for.

    Args:
        time_limit_s: for solving, and pricing all placements but the one that the module was loaded on, which comes first.

    Raises:
        AutoshardError: demands of several priorities, whose plans have no one price to compare.
    """
    _refuse_levels(loaded)
    layout = layout_of(loaded.communication, loaded.hardware)
    axes = tuple((axis.name, axis.size) for axis in loaded.mesh.axes)
    models = placements_of(loaded.hardware, axes, layout.topology, layout.slices)
    search = Search(time_limit_s, seed, threads, progress)
    row = search.leave(axes, models)
    with search.ended_by_interrupt():
        search.examine(loaded, models, row, 1, is_first_asked=True)
    return search.result()


def plan_meshes(
    module: str | bytes | Path | SourceModule,
    devices: int,
    request: Request,
    *,
    most_axes: int = MOST_AXES,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress = silent,
) -> Searched:
    """The best plan of a module without a mesh over all meshes of so many devices, and all placements of each.

    Args:
        request: its mesh is what is searched, its placement too unless that is row-major; without a topology, the shape nearest to a cube.
        most_axes: of a mesh, at most 3; they are called x, y and z.
        time_limit_s: for all meshes together, those with few axes of even sizes first; only reading and pricing the first of them
            comes on top.

    Raises:
        AutoshardError: a placement of named axes, a module with meshes of its own, or a number of devices that the hardware does not
            come in.
    """
    if request.placement not in (None, AUTO, ROW_MAJOR):
        raise AutoshardError(
            f"placement {request.placement} names axes, and --mesh auto looks for them",
            fix=f"leave it out to have all placements compared, or name {ROW_MAJOR}",
        )
    source = module if isinstance(module, SourceModule) else load(module)
    named = own_meshes(source)
    if named:
        raise AutoshardError(
            f"the module names its meshes itself: {named}",
            where=source.name,
            fix="leave --mesh auto out: shardings on a mesh say what its axes are for, and another mesh has not got them",
        )
    hardware = load_hardware(request.hardware)
    topology, slices = request.topology, request.slices
    if topology is None:
        topology, slices = compact_topology(hardware, devices, slices)
    search = Search(time_limit_s, seed, threads, progress)
    meshes = mesh_shapes(devices, most_axes)
    most_placements = 1 if request.placement == ROW_MAJOR else None
    placed = [placements_of(hardware, axes, topology, slices)[:most_placements] for axes in meshes]
    rows = [search.leave(axes, models) for axes, models in zip(meshes, placed, strict=True)]
    with search.ended_by_interrupt():
        for number, (axes, models, row) in enumerate(zip(meshes, placed, rows, strict=True)):
            if number and search.left_s <= 0:
                break
            progress(f"mesh {_mesh_text(axes)}", number / len(meshes))
            where = placement_text(models[0].placement) or None
            asked = replace(request, mesh=axes, topology=topology, slices=slices, placement=where)
            search.examine(load_module(source, asked), models, row, len(meshes) - number)
    return search.result()


def mesh_shapes(devices: int, most_axes: int) -> list[MeshAxes]:
    """The ways to write a number as a product of up to so many sizes above 1, largest first; few axes and even sizes come first.

    Raises:
        AutoshardError: no devices, or more axes than have names.
    """
    if devices < 1:
        raise AutoshardError(f"{devices} devices", fix="give a number from 1")
    if not 1 <= most_axes <= len(AXIS_NAMES):
        raise AutoshardError(
            f"meshes of up to {most_axes} axes", fix=f"give a number from 1 to {len(AXIS_NAMES)}"
        )
    shapes = _products(devices, most_axes, devices) if devices > 1 else [(1,)]
    ordered = sorted(shapes, key=lambda shape: (len(shape), shape))
    return [tuple(zip(AXIS_NAMES, shape, strict=False)) for shape in ordered]


def _products(number: int, parts: int, largest: int) -> list[tuple[int, ...]]:
    if number == 1:
        return [()]
    if not parts:
        return []
    sizes = (size for size in range(2, min(number, largest) + 1) if number % size == 0)
    return [(size, *rest) for size in sizes for rest in _products(number // size, parts - 1, size)]


def _refuse_levels(loaded: Loaded) -> None:
    if len(priority_levels(loaded.listing)) > 1:
        raise AutoshardError(
            "demands of several priorities are planned level by level, by which placements cannot be compared",
            where=loaded.source.name,
            fix="name one placement, or give the demands one priority",
        )


def _mesh_text(axes: MeshAxes) -> str:
    return ",".join(f"{name}={size}" for name, size in axes)
