"""Replica groups of an HLO collective, in each of the notations that XLA prints.

Lists `{{0,1},{2,3}}`; iota `[2,2]<=[2,2]T(1,0)`; a mesh and the axes that are joined, `mesh['a'=4,'b'=4] {'b'}`, where `'a':(2)2` is
the part of axis a of size 2 below a major part of size 2.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_LIST = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:,\s*device_ids=\((.*?)\)(?=\s*\{))?\s*\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_JOINED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")

Groups = tuple[tuple[int, ...], ...]


def replica_groups(attributes: str, num_devices: int) -> Groups:
    """Device numbers of each group; without any written, all devices are one."""
    if found := _IOTA.search(attributes):
        return _rows(_iota(found[1]))
    if found := _MESH.search(attributes):
        return _rows(_of_mesh(found[1], found[2], found[3]))
    if (found := _LIST.search(attributes)) and found[1]:
        return tuple(
            tuple(int(device) for device in group.split(",") if device)
            for group in re.findall(r"\{([\d,]*)\}", found[1])
        )
    return (tuple(range(num_devices)),)


def permuted_pairs(attributes: str) -> tuple[tuple[int, int], ...]:
    """(source, target) of a collective permute."""
    found = _PAIRS.search(attributes)
    pairs = re.findall(r"\{(\d+),(\d+)\}", found[1]) if found else []
    return tuple((int(source), int(target)) for source, target in pairs)


def _iota(text: str) -> NDArray[np.int64]:
    """`[groups,size]<=[dims]T(permutation)`: the devices 0, 1, … in `dims`, transposed, then cut into groups."""
    shape, _, source = text.partition("<=")
    return _order(source).reshape(_numbers(shape))


def _order(text: str) -> NDArray[np.int64]:
    """`[dims]T(permutation)` as a flat list of devices."""
    dims, _, permutation = text.partition("T")
    devices = np.arange(np.prod(_numbers(dims))).reshape(_numbers(dims))
    return (devices.transpose(_numbers(permutation)) if permutation else devices).reshape(-1)


def _of_mesh(axes: str, device_ids: str, joined: str) -> NDArray[np.int64]:
    wanted = [
        (name, int(pre or 1), int(part)) if part else (name, 1, 0)
        for name, pre, part in _JOINED.findall(joined)
    ]
    parts: list[tuple[str, int, int]] = []  # (axis, product of the parts above, size), major to minor
    for name, size in ((name, int(size)) for name, size in _AXIS.findall(axes)):
        cuts = sorted(
            {1, size} | {cut for n, pre, part in wanted if n == name and part for cut in (pre, pre * part)}
        )
        parts += [(name, above, below // above) for above, below in pairwise(cuts)]
    sizes = [size for _, _, size in parts]
    devices = np.arange(math.prod(sizes)) if not device_ids else _devices(device_ids)
    inner = [
        position
        for name, pre, part in wanted
        for position, (axis, above, _) in enumerate(parts)
        if axis == name and (part == 0 or pre <= above < pre * part)
    ]
    outer = [position for position in range(len(parts)) if position not in inner]
    group = math.prod(sizes[position] for position in inner)
    return devices.reshape(sizes).transpose([*outer, *inner]).reshape(-1, group)


def _devices(text: str) -> NDArray[np.int64]:
    """A list, or `[dims]T(permutation)`."""
    return _order(text.rpartition("<=")[2]) if "[" in text else np.array(_numbers(text))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _rows(groups: NDArray[np.int64]) -> Groups:
    rows: Sequence[Sequence[int]] = groups.tolist()
    return tuple(tuple(row) for row in rows)
