"""Whether a plan is for this module, mesh and hardware at all."""

from autoshard.check.report import Finding, of_equality
from autoshard.mlir.forms import FORMS
from autoshard.plans import Plan
from autoshard.program import Program
from costmodels import Communication, Hardware, placement_text
from costmodels.hardware import Torus


def identity(plan: Plan, program: Program, hardware: Hardware, communication: Communication) -> list[Finding]:
    mesh = program.listing.mesh
    axes = tuple((axis.name, axis.size) for axis in mesh.axes)
    placed = communication.placement.mesh
    return [
        _module(plan, program),
        of_equality("mesh", _mesh_text(axes), _mesh_text(plan.mesh), "value and device numbers differ"),
        _other_meshes(plan, program),
        of_equality(
            "devices", _mesh_text(axes), _mesh_text(placed), "the hardware is laid out for another mesh"
        ),
        _device_order(plan, communication),
        of_equality("hardware", hardware.name, plan.hardware, "figures of one chip say nothing of another"),
        _lowering(plan, hardware),
        _carry(plan, program),
        _recomputed(plan, program),
    ]


def _other_meshes(plan: Plan, program: Program) -> Finding:
    """The meshes that foreign shardings are on."""
    expected, found = (
        "; ".join(f"{mesh.symbol} = {mesh.definition}" for mesh in sorted(meshes, key=lambda one: one.name))
        for meshes in (program.listing.mesh.others, plan.sharding_mesh().others)
    )
    return of_equality("other meshes", expected or "none", found or "none", "meshes beside the plan's")


def _device_order(plan: Plan, communication: Communication) -> Finding:
    """The devices that the plan has the mesh made of are those that its placement says."""
    placed = communication.placement
    order = list(plan.device_order) or list(range(len(placed.device_order())))
    expected = placed.device_order()
    detail = "" if order == expected else f"{placement_text(placed)} takes the devices in another order"
    return Finding("device order", order == expected, _order_text(expected), _order_text(order), detail)


def _order_text(order: list[int]) -> str:
    return "by coordinates" if order == sorted(order) else ", ".join(map(str, order[:5])) + ", ..."


def _mesh_text(axes: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes)


def _module(plan: Plan, program: Program) -> Finding:
    expected, found = program.listing.module_hash, plan.module_sha256
    detail = "" if expected == found else "the plan is for another module"
    return Finding("module", expected == found, f"sha256 {expected[:12]}", f"sha256 {found[:12]}", detail)


def _lowering(plan: Plan, hardware: Hardware) -> Finding:
    """The form's compiler for this hardware: Shardy's passes, or XLA, whose compiler for TPUs has ways of its own."""
    expected = "xla-tpu" if plan.form == "xla" and isinstance(hardware.topology, Torus) else "shardy"
    known = plan.form in FORMS
    detail = "" if known else f'there is no form "{plan.form}"'
    return Finding("lowering", known and expected == plan.lowering, expected, plan.lowering, detail)


def _carry(plan: Plan, program: Program) -> Finding:
    expected, found = set(program.carried_pairs), set(plan.carry)
    differing = ", ".join(f"{result}->{argument}" for result, argument in sorted(expected ^ found)[:5])
    detail = f"differ: {differing}" if differing else ""
    return Finding("carry", expected == found, f"{len(expected)} pairs", f"{len(found)} pairs", detail)


def _recomputed(plan: Plan, program: Program) -> Finding:
    """The values that the plan recomputes for each use are those that may be."""
    differing = sorted(set(plan.cloneable) ^ program.cloneable)
    detail = f"differ: values {', '.join(map(str, differing[:5]))}"
    return Finding(
        "recomputed", not differing, len(program.cloneable), len(plan.cloneable), detail if differing else ""
    )
