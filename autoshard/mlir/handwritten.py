"""Collectives that the user wrote in a manual computation (`stablehlo.all_reduce` and its like): over which mesh axes they go.

StableHLO names devices: groups of partition numbers, which are positions in the mesh in the order of its devices. A group is a list of
axes where its devices are all those that differ in just these axes. Each axis is looked at as digits of prime size, so that sub-axes
are found too.

    channel handle   use_global_device_ids   a number in a group is          (StableHLO specification, "Process groups")
    absent           absent                  a replica; there is one, so numbers are taken for partitions
    given            absent                  a replica of all partitions, for all_reduce, all_gather and reduce_scatter; else a partition
    given            given                   replica * partitions + partition, which is the partition
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autoshard.mlir.context import ir, stablehlo
from autoshard.mlir.linearity import reducer_name
from autoshard.mlir.listing import UserCollective
from autoshard.sharding import AxisRef, Mesh, merge_sub_axes

Ints = NDArray[np.int64]

KINDS = {
    "stablehlo.all_gather": "all_gather",
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_broadcast": "all_reduce",  # a sum with zeros from all but one; nobody has a better way on every network
    "stablehlo.collective_permute": "collective_permute",
    "stablehlo.reduce_scatter": "reduce_scatter",
}
_OF_REPLICAS = frozenset({"stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.reduce_scatter"})


def user_collective(op: ir.Operation, mesh: Mesh) -> UserCollective | None:
    """None for other ops, and where no group has two devices."""
    kind = KINDS.get(op.name)
    if kind is None:
        return None
    positions = _positions(mesh)
    if op.name == "stablehlo.collective_permute":
        moved = _moved(_numbers(op.attributes["source_target_pairs"]), positions, mesh)
        return UserCollective(kind, (moved,)) if moved else None
    groups = _grouped(op, mesh)
    size = max(int((group >= 0).sum()) for group in groups)
    if size <= 1:
        return None
    axes = _axes(groups, positions, mesh)
    choices = tuple(_as_large(size, mesh)) if axes is None else (axes,)
    is_sum = op.name == "stablehlo.all_reduce" and reducer_name(op) == "stablehlo.add"
    if kind == "reduce_scatter":
        dimension = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
        return UserCollective(kind, choices, size, axes is not None, scatter_dim=dimension)
    return UserCollective(kind, choices, is_exact=axes is not None, is_sum=is_sum)


def _numbers(attribute: ir.Attribute) -> Ints:
    """[groups, members]; members that are missing are negative."""
    dense = ir.DenseIntElementsAttr(attribute)
    shape = ir.ShapedType(dense.type).shape
    return np.asarray([dense[i] for i in range(len(dense))], dtype=np.int64).reshape(shape)


def _grouped(op: ir.Operation, mesh: Mesh) -> Ints:
    """Groups of partition numbers."""
    groups = _numbers(op.attributes["replica_groups"])
    everyone = np.arange(mesh.num_devices, dtype=np.int64)[None, :]
    if not groups.size:
        return everyone
    is_of_replicas = op.name in _OF_REPLICAS and "use_global_device_ids" not in op.attributes
    return everyone if is_of_replicas and _has_channel(op) else groups


def _has_channel(op: ir.Operation) -> bool:
    attribute = op.attributes.get("channel_handle")
    return attribute is not None and stablehlo.ChannelHandle(attribute).handle > 0


def _positions(mesh: Mesh) -> Ints:
    """[partitions, digits] coordinates of each device in the mesh, whose axes are looked at as digits of prime size."""
    sizes = [digit.size for digit in _digits(mesh)]
    order = np.asarray(mesh.device_ids or range(mesh.num_devices), dtype=np.int64)
    found = np.zeros((mesh.num_devices, len(sizes)), dtype=np.int64)
    found[order] = np.indices(sizes, dtype=np.int64).reshape(len(sizes), -1).T
    return found


def _digits(mesh: Mesh) -> list[AxisRef]:
    digits: list[AxisRef] = []
    for axis in mesh.axes:
        before = 1
        for prime in _primes(axis.size):
            digits.append(mesh.axis(axis.name, before, prime))
            before *= prime
    return digits


def _primes(number: int) -> Iterator[int]:
    factor = 2
    while number > 1:
        while number % factor == 0:
            yield factor
            number //= factor
        factor = factor + 1 if factor * factor < number else max(number, factor + 1)


def _moved(pairs: Ints, positions: Ints, mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes in which some source and its target differ, from the first to the last digit of each."""
    differs = (positions[pairs[:, 0]] != positions[pairs[:, 1]]).any(axis=0)
    changed = [digit for digit, one in zip(_digits(mesh), differs, strict=True) if one]
    spans: list[AxisRef] = []
    for axis in mesh.axes:
        mine = [digit for digit in changed if digit.name == axis.name]
        if mine:
            spans.append(mesh.axis(axis.name, mine[0].begin, mine[-1].end // mine[0].begin))
    return tuple(spans)


def _axes(groups: Ints, positions: Ints, mesh: Mesh) -> tuple[AxisRef, ...] | None:
    """The axes in which the devices of every group differ, and no others; None where there are no such axes."""
    if (groups < 0).any():
        return None
    varying = {_varying(positions[group]) for group in groups}
    digits = _digits(mesh)
    mine = [digit for digit, one in zip(digits, varying.pop(), strict=True) if one]
    is_whole = not varying and math.prod(digit.size for digit in mine) == groups.shape[1]
    return merge_sub_axes(mine, mesh) if is_whole else None


def _varying(members: Ints) -> tuple[bool, ...]:
    return tuple(map(bool, (members != members[0]).any(axis=0)))


def _as_large(size: int, mesh: Mesh) -> Iterator[tuple[AxisRef, ...]]:
    """Lists of axes of at least `size` devices that are smaller without any of their axes."""
    axes = [mesh.axis(axis.name) for axis in mesh.axes if axis.size > 1]
    for count in range(1, len(axes) + 1):
        for some in combinations(axes, count):
            devices = math.prod(axis.size for axis in some)
            if devices >= size and all(devices // axis.size < size for axis in some):
                yield some


def guessed_warning(found: Sequence[tuple[str, str]]) -> list[str]:
    """A warning that names the first of the collectives (op and location) whose groups are no axes."""
    if not found:
        return []
    name, where = found[0]
    collectives = "1 collective goes" if len(found) == 1 else f"{len(found)} collectives go"
    return [
        f"{collectives} over devices that are no axes of the mesh and is priced over the costliest axes of as many; first {name} at {where}"
    ]
