"""Reshards between meshes that Shardy has no collectives for: of different axes, or to and from one device.

    split over axes -> other axes      all_gather of the whole value, then all_slice of the part that is kept
    one device -> the plan's mesh      the same: the all_gather stands for a broadcast of the whole value
    split over axes -> one device      all_gather of the whole value
    whole -> anything                  all_slice, or nothing

Each counts over all devices: which axes of the plan's mesh the groups of another mesh run along is not looked at.
"""

from autoshard.mlir.collective import CollectiveStep
from autoshard.sharding import AxisRef, Mesh, TensorSharding


def is_crossing(mesh: Mesh, before: TensorSharding, after: TensorSharding) -> bool:
    """Whether the two are on meshes of different axes, or on different devices; `mesh` is the plan's."""
    origin, target = mesh.named(before.mesh), mesh.named(after.mesh)
    return origin != target and (origin.axes != target.axes or target.is_one_device)


def crossing(mesh: Mesh, before: TensorSharding, after: TensorSharding) -> tuple[CollectiveStep, ...]:
    """The collectives that stand for a reshard between meshes of different axes."""
    axes = tuple(AxisRef(axis.name, axis.size) for axis in mesh.axes if axis.size > 1)
    if not axes:
        return ()
    steps: list[CollectiveStep] = []
    is_everywhere = before.is_fully_replicated and not mesh.named(before.mesh).is_one_device
    if not is_everywhere:
        steps.append(CollectiveStep("all_gather", axes, TensorSharding.replicated_closed(before.rank)))
    if not after.is_fully_replicated:
        steps.append(CollectiveStep("all_slice", axes, after.as_closed()))
    return tuple(steps)
