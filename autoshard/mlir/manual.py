"""Manual computations: which axes are manual where, and what their in_shardings and out_shardings say on either side of the edge."""

from dataclasses import replace

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, sdy
from autoshard.mlir.locations import Locations
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.walk import MANUAL, Flow, Walked
from autoshard.sharding import AxisRef, Crossing, Mesh, TensorSharding, without_axes


def manual_axes_of(walked: Walked, mesh: Mesh) -> list[tuple[AxisRef, ...]]:
    """For each scope, the axes of the manual computations around its ops."""
    found: list[tuple[AxisRef, ...]] = []
    for scope in walked.scopes:
        around = found[scope.parent] if found else ()
        own = _names(scope.owner) if scope.kind == MANUAL else ()
        found.append((*around, *(mesh.axis(name) for name in own)))
    return found


def refuse_useless(walked: Walked, locations: Locations) -> None:
    """Raises AutoshardError at a manual computation with manual axes that nothing enters or leaves, as Shardy's newer verifier does."""
    for scope in walked.scopes:
        op = scope.owner
        if scope.kind == MANUAL and not len(op.operands) and not len(op.results) and _names(op):
            raise AutoshardError(
                f"a manual computation over {', '.join(_names(op))} without operands and results",
                where=locations.text(op.location),
                fix="give it what it computes on, or no manual axes",
            )


def _names(op: ir.Operation) -> tuple[str, ...]:
    axes = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    return tuple(axes[i] for i in range(len(axes)))


def own_axes(flow: Flow, mesh: Mesh) -> tuple[AxisRef, ...]:
    return tuple(mesh.axis(name) for name in _names(flow.owner)) if flow.kind == MANUAL else ()


def crossing_of(flow: Flow, shardings: Shardings) -> Crossing | None:
    """None where the flow is not at the edge of a manual computation."""
    if flow.kind != MANUAL:
        return None
    names = _names(flow.owner)
    written = _written(flow, shardings)
    axes = (tuple(a for a in dim.axes if a.name in names and a.size > 1) for dim in written.dims)
    return Crossing(tuple(axes), flow.is_argument)


def target_demand(flow: Flow, shardings: Shardings, where: str = "") -> TensorSharding | None:
    """What the user demands of the target: of what enters a manual computation, on its free axes.

    A dimension with manual axes has no priority: they are there before anything is decided.

    Raises:
        AutoshardError: a partial sum over a manual axis.
    """
    attribute = flow.owner.attributes.get(flow.sharding_attribute)
    if attribute is None:
        return None
    written = shardings.read_at(attribute, flow.index, flow.type, where)
    if flow.kind != MANUAL:
        return None if written.says_nothing else written
    if written.is_foreign:
        raise AutoshardError(
            f"{written} at the edge of a manual computation is on another mesh than the plan's {shardings.mesh.symbol}",
            where=where,
            fix="write the manual computation on the mesh that is planned for",
        )
    names = frozenset(_names(flow.owner))
    if any(axis.name in names for axis in written.unreduced):
        raise AutoshardError(
            f"{written} at the edge of a manual computation is a partial sum over a manual axis, which is not supported yet",
            where=where,
            fix="sum inside with stablehlo.all_reduce, and declare the result replicated",
        )
    if flow.is_argument:
        return without_axes(written, names)
    dims = tuple(
        replace(dim, priority=None) if any(axis.name in names for axis in dim.axes) else dim
        for dim in written.dims
    )
    alone = frozenset(axis.name for axis in written.used_axes() if axis.name in names and axis.size == 1)
    return without_axes(replace(written, dims=dims), alone)


def written_sharding(flow: Flow, planned: TensorSharding, shardings: Shardings) -> TensorSharding:
    """What is written at the edge for `planned` of the target: the manual axes as the user wrote them, then the planned free ones."""
    if flow.kind != MANUAL:
        return planned
    names = frozenset(_names(flow.owner))
    written, free = _written(flow, shardings), without_axes(planned, names)
    dims = [
        (*(axis for axis in old if axis.name in names), *new)
        for old, new in zip(written.axes, free.axes, strict=True)
    ]
    replicated = tuple(axis for axis in written.replicated if axis.name in names)
    return TensorSharding(TensorSharding.closed(dims).dims, replicated, planned.unreduced)


def _written(flow: Flow, shardings: Shardings) -> TensorSharding:
    return shardings.read_at(flow.owner.attributes[flow.sharding_attribute], flow.index, flow.type, "")
