"""What Python callers use: `autoshard.plan(...)`, `plan_placements`, `plan_meshes`, `price`, `explain`, `why` and `sensitivity`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from autoshard import searching
from autoshard.alternatives import why_value
from autoshard.arguments import Taken, checked
from autoshard.clashes import explain_read
from autoshard.explanations import Explanation, Sensitivity, Why
from autoshard.hardware import AUTO, Layout, refuse_auto
from autoshard.loading import load_module, read_module, read_planned
from autoshard.mlir.forms import Form
from autoshard.overlaps import Overlap
from autoshard.pipeline import cost_loaded, plan_loaded
from autoshard.plans import Plan
from autoshard.progress import Progress
from autoshard.ranging import sensitivity_of
from autoshard.requests import Carry, Request
from autoshard.searching import MOST_AXES, Searched

MeshLike = Mapping[str, int] | Sequence[tuple[str, int]]
_PLAN = Taken.of("a plan, as autoshard.plan returns it", Plan)


@checked()
def plan(
    module: str | bytes | Path,
    *,
    mesh: MeshLike | None = None,
    hardware: str | Path = "tpu-v5e",
    topology: tuple[int, ...] | None = None,
    slices: int | None = None,
    placement: str | None = None,
    memory_bytes: int | Literal["chip"] | None = "chip",
    carry: Carry = "auto",
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    form: Form = "xla",
    overlap: Overlap | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The cheapest sharding found for a module, with its lower bound.

    Args:
        module: a path, or the text or bytecode of the module (gzipped or not).
        mesh: axis sizes, major to minor; None takes the module's own mesh.
        topology: physical shape of the devices, of one of `slices` where there are several; None: a slice as the chips come.
        placement: what each axis rides on, as "data=slices,x=1,y=0"; None: row-major.
        memory_bytes: budget a device; "chip" is the chip's usable memory less a margin of 5.3 % (GPUs: 15 %), None no limit.
        carry: state fed to the next step: "auto" (donated arguments; `jax.buffer_donor` ones with results of their types in order),
            "none", or (result index, argument index) pairs.
        form: whose compiler will run the plan; prices are of what it emits, see `Plan.lowering`.
        overlap: what runs behind compute: "none" (a step is the sum of its parts) or "async" (gathers and permutes of weights); None:
            "async" for the form "xla" on hardware whose compiler always schedules so (TPU v5e), "none" otherwise.
        time_limit_s: for solving; the best plan so far is returned when it strikes.
        threads: how many engines of the solver at a time; changes nothing but the speed.

    Raises:
        AutoshardError: the request cannot be honoured as written. A plan that does not fit is no error: see `Plan.fits`.
    """
    loaded = load_module(
        module,
        _request(mesh, hardware, Layout(topology, slices, placement), memory_bytes, carry, form, overlap),
        *_optional(progress),
    )
    return plan_loaded(
        loaded,
        time_limit_s=time_limit_s,
        seed=seed,
        threads=threads,
        **_told(progress),
    )


@checked()
def plan_placements(
    module: str | bytes | Path,
    *,
    mesh: MeshLike | None = None,
    hardware: str | Path = "tpu-v5e",
    topology: tuple[int, ...] | None = None,
    slices: int | None = None,
    memory_bytes: int | Literal["chip"] | None = "chip",
    carry: Carry = "auto",
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    form: Form = "xla",
    overlap: Overlap | None = None,
    progress: Progress | None = None,
) -> Searched:
    """The best plan over all placements of the mesh that can differ in price, and what is proved of each; arguments as in `plan`.

    Args:
        time_limit_s: for solving, all of them together.
    """
    asked = _request(mesh, hardware, Layout(topology, slices), memory_bytes, carry, form, overlap)
    loaded = load_module(module, replace(asked, placement=AUTO), *_optional(progress))
    limits: dict[str, Any] = {"time_limit_s": time_limit_s, "seed": seed, "threads": threads}
    return searching.plan_placements(loaded, **limits, **_told(progress))


@checked()
def plan_meshes(
    module: str | bytes | Path,
    *,
    devices: int,
    most_axes: int = MOST_AXES,
    hardware: str | Path = "tpu-v5e",
    topology: tuple[int, ...] | None = None,
    slices: int | None = None,
    placement: Literal["auto", "row-major"] = "auto",
    memory_bytes: int | Literal["chip"] | None = "chip",
    carry: Carry = "auto",
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    form: Form = "xla",
    overlap: Overlap | None = None,
    progress: Progress | None = None,
) -> Searched:
    """The best plan of a module without a mesh over all meshes of so many devices, and what is proved of each; the rest is as in `plan`.

    Args:
        most_axes: of a mesh; 3 take long. They are called x, y and z.
        topology: None: the shape nearest to a cube that the chips come in.
        placement: whether other placements than row-major are compared too.
        time_limit_s: for solving, all of them together.
    """
    asked = _request(None, hardware, Layout(topology, slices), memory_bytes, carry, form, overlap)
    limits: dict[str, Any] = {"time_limit_s": time_limit_s, "seed": seed, "threads": threads}
    return searching.plan_meshes(
        module,
        devices,
        replace(asked, placement=placement),
        most_axes=most_axes,
        **limits,
        **_told(progress),
    )


@checked()
def price(
    module: str | bytes | Path,
    *,
    mesh: MeshLike | None = None,
    hardware: str | Path = "tpu-v5e",
    topology: tuple[int, ...] | None = None,
    slices: int | None = None,
    placement: str | None = None,
    memory_bytes: int | Literal["chip"] | None = "chip",
    carry: Carry = "auto",
    form: Form = "xla",
    overlap: Overlap | None = None,
) -> Plan:
    """The price of the shardings that a module already has, completed by Shardy's propagation; arguments as in `plan`."""
    return cost_loaded(
        load_module(
            module,
            _request(mesh, hardware, Layout(topology, slices, placement), memory_bytes, carry, form, overlap),
        )
    )


@checked()
def explain(
    module: str | bytes | Path,
    *,
    mesh: MeshLike | None = None,
    hardware: str | Path = "tpu-v5e",
    topology: tuple[int, ...] | None = None,
    slices: int | None = None,
    placement: str | None = None,
    memory_bytes: int | Literal["chip"] | None = "chip",
    carry: Carry = "auto",
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    form: Form = "xla",
    overlap: Overlap | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Why a module has no plan: the fewest demands that clash, and what dropping each would bring; arguments as in `plan`."""
    read = read_module(
        module,
        _request(mesh, hardware, Layout(topology, slices, placement), memory_bytes, carry, form, overlap),
        *_optional(progress),
    )
    return explain_read(
        read,
        time_limit_s=time_limit_s,
        seed=seed,
        threads=threads,
        **_told(progress),
    )


@checked(plan=_PLAN)
def why(
    module: str | bytes | Path,
    plan: Plan,
    value: str,
    *,
    hardware: str | Path | None = None,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress | None = None,
) -> Why:
    """What binds a value's sharding in a plan for the module, and what others would cost.

    Args:
        value: as `autoshard why` takes it: a name, `arg3`, `result0`, `%12` or a line, alone or as in `arg3=[{"x"}, {}]`.
        hardware: chip profile; None takes the one that the plan names.
    """
    return why_value(
        read_planned(module, plan, hardware),
        plan,
        value,
        time_limit_s=time_limit_s,
        seed=seed,
        threads=threads,
        **_told(progress),
    )


@checked(plan=_PLAN)
def sensitivity(
    module: str | bytes | Path,
    plan: Plan,
    *,
    hardware: str | Path | None = None,
    figures: Sequence[str] = (),
    span: float = 16.0,
    precision: float = 0.01,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress | None = None,
) -> Sensitivity:
    """The range of each hardware figure over which a plan stays the best, and what is better beyond it.

    Args:
        hardware: chip profile; None takes the one that the plan names.
        figures: as "link-bandwidth" (see `autoshard.ranging.FIGURES`); none: all that the plan's topology uses.
        span: factors from 1/span to span are looked at.
        precision: to which part of the factor the ends of a range are found.
    """
    return sensitivity_of(
        read_planned(module, plan, hardware),
        plan,
        figures=figures,
        span=span,
        precision=precision,
        time_limit_s=time_limit_s,
        seed=seed,
        threads=threads,
        **_told(progress),
    )


def _request(
    mesh: MeshLike | None,
    hardware: str | Path,
    layout: Layout,
    memory_bytes: int | Literal["chip"] | None,
    carry: Carry,
    form: Form,
    overlap: Overlap | None,
) -> Request:
    refuse_auto(layout.placement)
    axes = list(mesh.items()) if isinstance(mesh, Mapping) else list(mesh) if mesh is not None else None
    return Request(
        axes, hardware, layout.topology, memory_bytes, carry, form, layout.slices, layout.placement, overlap
    )


def _told(progress: Progress | None) -> dict[str, Any]:
    return {} if progress is None else {"progress": progress}


def _optional(progress: Progress | None) -> tuple[Progress, ...]:
    return (progress,) if progress is not None else ()
