"""A module and a request in, a program on its hardware out: what planning, pricing and checking start from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import costmodels
from autoshard.cost import Lowering
from autoshard.errors import AutoshardError
from autoshard.hardware import layout_of, load_hardware, place_mesh, profile_of
from autoshard.mlir.forms import Form, form_named
from autoshard.mlir.listing import Listing
from autoshard.mlir.read import Handles, read
from autoshard.mlir.source import SourceModule, load, resolve_mesh, warnings_of_meshes
from autoshard.overlaps import Overlap, overlap_named
from autoshard.plans import Plan, require_same_module
from autoshard.program import (
    Compiler,
    Program,
    build_program,
    donated_pairs,
    refuse_unsound,
    warnings_of_state,
    with_group_demands,
    with_whole_ops,
    without_unreduced,
)
from autoshard.progress import Progress, silent
from autoshard.requests import Request, budget, given_pairs
from autoshard.sharding import Mesh
from costmodels import Communication, Hardware
from costmodels.figures import Torus


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module read for a request, with everything that writing the plan needs."""

    source: SourceModule
    listing: Listing  # with the demands on members of sharding groups spread to all members
    as_written: Listing
    handles: Handles
    program: Program
    mesh: Mesh
    hardware: Hardware
    communication: Communication
    memory_bytes: int | None
    form: Form
    overlap: Overlap

    @property
    def lowering(self) -> Lowering:
        """How the compiler that the form is for carries collectives out on this hardware."""
        return lowering_of(self.form, self.hardware)


def lowering_of(form: Form, hardware: Hardware) -> Lowering:
    """How the compiler that a form is for carries collectives out on this hardware."""
    return "xla-tpu" if form == "xla" and isinstance(hardware.topology, Torus) else "shardy"


def compiler_of(form: Form, hardware: Hardware, devices: int) -> Compiler:
    """What is known of the compiler of so many devices; on one nothing is gathered."""
    is_xla_tpu = lowering_of(form, hardware) == "xla-tpu"
    if not is_xla_tpu:
        return Compiler(
            is_xla_tpu, products_apart=bool(hardware.chip.products_apart), memory_bytes=hardware.hbm_bytes
        )
    return Compiler(
        is_xla_tpu,
        hardware.keeps_narrow_operands,
        ends_products_in_place=devices == 1 or not hardware.gathers_behind_compute,
        updates_early=not hardware.gathers_behind_compute,
        scatters_last=not hardware.gathers_behind_compute,
        keeps_grouped_operands=hardware.keeps_grouped_operands,
        keeps_costly_operands=hardware.keeps_costly_operands,
        keeps_erfc=hardware.keeps_erfc,
        keeps_wide_results=hardware.keeps_wide_results,
        nested_flop_per_byte=hardware.nested_flop_per_byte,
        nested_from_channels=hardware.nested_from_channels,
        doubles_exponentials=hardware.doubles_exponentials,
        repeats_packed_erfc=hardware.repeats_packed_erfc(devices),
        narrows_packed=hardware.narrows_packed,
        masks_apart=hardware.masks_apart,
        stores_masks=hardware.stores_masks,
        picks_behind_loops=hardware.gathers_behind_compute,
        lays_out_early=hardware.gathers_behind_compute,
        gathers_apart=hardware.sparse_core is not None,
        memory_bytes=hardware.hbm_bytes,
        devices=devices,
    )


def overlap_of(form: Form, hardware: Hardware) -> Overlap:
    """What runs behind compute in what the compiler makes that a form is for, as far as known: see the profile."""
    hides = lowering_of(form, hardware) == "xla-tpu" and hardware.gathers_behind_compute
    return "async" if hides else "none"


def keeps_partial_sums(form: Form) -> bool:
    """Whether a form can say that a value is a partial sum."""
    return form in ("shardy", "shardy-collectives")


@dataclass(frozen=True, slots=True)
class ReadModule:
    """A module read and its mesh placed on the hardware, before its demands are looked at together."""

    source: SourceModule
    as_written: Listing
    handles: Handles
    mesh: Mesh
    hardware: Hardware
    communication: Communication
    memory_bytes: int | None
    carry: Sequence[tuple[int, int]] | None  # None: the donated arguments
    form: Form
    overlap: Overlap

    @property
    def lowering(self) -> Lowering:
        return lowering_of(self.form, self.hardware)

    def carried_pairs(self) -> Sequence[tuple[int, int]]:
        """(result, argument) of state that is fed to the next step."""
        if self.carry is not None:
            return self.carry
        return donated_pairs(self.as_written)


def load_module(
    module: str | bytes | Path | SourceModule, request: Request, progress: Progress = silent
) -> Loaded:
    """Read a module, place its mesh on the hardware, and analyse it.

    Raises:
        ClashError: demands that contradict each other.
        AutoshardError: the module, mesh, hardware, topology or carried pairs are not usable as asked.
    """
    found = read_module(module, request, progress)
    progress("analysing the program", None)
    return analyse(found)


def read_module(
    module: str | bytes | Path | SourceModule, request: Request, progress: Progress = silent
) -> ReadModule:
    """Raises AutoshardError: the module or something of the request is not usable as asked."""
    form, overlap, carry = form_named(request.form), request.overlap, given_pairs(request.carry)
    hardware = load_hardware(request.hardware)
    overlap = overlap_of(form, hardware) if overlap is None else overlap_named(overlap)
    memory_bytes = budget(request.memory_bytes, hardware)
    progress("reading the module", None)
    source = module if isinstance(module, SourceModule) else load(module)
    mesh = resolve_mesh(source, list(request.mesh) if request.mesh is not None else None)
    communication = place_mesh(hardware, [(axis.name, axis.size) for axis in mesh.axes], request.layout)
    compiler = compiler_of(form, hardware, mesh.num_devices)
    as_written, handles = read(
        source,
        mesh,
        drops_dead=True,
        updates_early=compiler.updates_early,
        changes_in_front=compiler.is_xla_tpu,
    )
    about_meshes = warnings_of_meshes(source, mesh, is_asked=request.mesh is not None)
    about_state = warnings_of_state(as_written) if request.carry == "auto" else ()
    as_written = replace(as_written, warnings=(*about_meshes, *about_state, *as_written.warnings))
    refuse_unsound(as_written)
    if not keeps_partial_sums(form):
        as_written = without_unreduced(as_written)
    if form == "xla":
        as_written = with_whole_ops(as_written)
    return ReadModule(
        source,
        as_written,
        handles,
        mesh,
        hardware,
        communication,
        memory_bytes,
        carry,
        form,
        overlap,
    )


def analyse(read: ReadModule) -> Loaded:
    """Raises ClashError: demands that contradict each other; AutoshardError: carried pairs that cannot be."""
    listing = with_group_demands(read.as_written)
    if listing is not read.as_written:
        refuse_unsound(listing)
    program = build_program(listing, read.carry, compiler_of(read.form, read.hardware, read.mesh.num_devices))
    return loaded_with(read, listing, program)


def loaded_with(read: ReadModule, listing: Listing, program: Program) -> Loaded:
    """What was read, with a program made of it."""
    return Loaded(
        read.source,
        listing,
        read.as_written,
        read.handles,
        program,
        read.mesh,
        read.hardware,
        read.communication,
        read.memory_bytes,
        read.form,
        read.overlap,
    )


def with_figures(loaded: Loaded, hardware: Hardware) -> Loaded:
    """The same program on a profile with other figures, laid out the same way."""
    mesh = [(axis.name, axis.size) for axis in loaded.mesh.axes]
    layout = layout_of(loaded.communication, loaded.hardware)
    return replace(loaded, hardware=hardware, communication=place_mesh(hardware, mesh, layout))


def read_planned(
    module: str | bytes | Path, found: Plan, hardware: str | Path | None = None, progress: Progress = silent
) -> ReadModule:
    """The module of a plan, read as it was for the plan; `hardware` None takes the profile that the plan names.

    Raises:
        AutoshardError: the module cannot be read, or the plan is for another one, or for hardware whose network is of another kind.
    """
    profile = profile_of(found.hardware)
    if hardware is None and profile not in costmodels.names():
        raise AutoshardError(
            f"the plan is for {profile!r}, which is no built-in profile, and a plan keeps the name only",
            where="the plan",
            fix=f"name the profile's file: --hardware FILE.toml{found.hardware.removeprefix(profile)}",
        )
    if hardware is not None:
        _require_same_network(found, load_hardware(hardware))
    source = load(module)
    require_same_module(found, source.sha256, "the plan")
    return read_module(
        source,
        Request(
            found.mesh,
            hardware or found.hardware,
            found.topology,
            found.memory_bytes,
            found.carry,
            form_named(found.form),
            found.slices,
            found.placement or None,
            overlap_named(found.overlap),
        ),
        progress,
    )


def _require_same_network(found: Plan, hardware: Hardware) -> None:
    """Raises AutoshardError: a plan on a torus for hardware with nodes, or the other way round: its topology means nothing there."""
    is_on_torus, is_torus = found.slices is not None, isinstance(hardware.topology, Torus)
    if is_on_torus != is_torus:
        kinds = {True: "a torus", False: "nodes"}
        raise AutoshardError(
            f"the plan is for {kinds[is_on_torus]} of {found.hardware}, and {hardware.name} has {kinds[is_torus]}",
            where="the plan",
            fix=f"leave the hardware out, or plan the module for {hardware.name}",
        )
