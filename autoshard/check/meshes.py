"""What moves between a mesh and others of its module, where Shardy has no collectives for it.

Meshes of the same axes differ in the order of devices only, and Shardy permutes; a mesh of other axes, or one device, is reached by way of
the whole value. The plan pays for that as if all devices took part: an all-gather of the value unless every device has it, and a slice
of what the target keeps.
"""

from collections.abc import Iterator

from autoshard.check.parts import axis_refs
from autoshard.sharding import AxisRef, Mesh, TensorSharding, TensorType

Step = tuple[str, tuple[AxisRef, ...], int]  # kind, axes and bytes, sized as a plan sizes them


def is_on_one_device(mesh: Mesh, sharding: TensorSharding) -> bool:
    return bool(sharding.mesh) and not mesh.named(sharding.mesh).axes


def has_no_collectives(mesh: Mesh, origin: TensorSharding, target: TensorSharding) -> bool:
    """Whether Shardy leaves a reshard between the two as it is, or fails on it."""
    if origin.mesh == target.mesh:
        return False
    axes = mesh.named(origin.mesh).axes
    return axes != mesh.named(target.mesh).axes or not axes


def steps_across(
    mesh: Mesh, type_: TensorType, origin: TensorSharding, target: TensorSharding
) -> Iterator[Step]:
    axes = axis_refs(tuple((axis.name, 1, axis.size) for axis in mesh.axes if axis.size > 1), mesh)
    if axes and (origin.num_shards > 1 or is_on_one_device(mesh, origin)):
        yield "all_gather", axes, type_.num_bytes
    if axes and target.num_shards > 1:
        yield "all_slice", axes, target.local_bytes(type_)
