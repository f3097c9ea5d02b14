"""A mesh and a hardware profile -> the communication model of that mesh on that hardware."""

import math
from collections.abc import Sequence

from .errors import HardwareError
from .figures import FullMesh, Link, Scheduler, Switch, Torus
from .network import Network
from .notation import ROW_MAJOR, as_given, parse_pieces
from .scheduled import ScheduledCommunication
from .shapes import (
    check_torus_shape,
    checked_mesh,
    default_node,
    default_torus_shape,
    divided,
    wraps,
)
from .switched import SwitchedCommunication
from .topology import MeshSizes, Placement, lay
from .torus import Dimension, TorusCommunication

Mesh = tuple[tuple[str, int], ...]


def outer_network(link: Link | None, devices_per_chip: int) -> Network | None:
    """One device's share of the network between nodes or slices; None where the profile has none."""
    if link is None:
        return None
    return Network(link.bytes_per_ns / devices_per_chip, link.latency_ns, link.overhead_ns)


def place_on_torus(
    mesh: MeshSizes,
    topology: Sequence[int] | None,
    slices: int | None,
    torus: Torus,
    link: Link,
    core_link: Link | None,
    cores: int,
    network: Network | None,
    placement: str | None = None,
) -> TorusCommunication:
    """Slices, then the torus's dimensions from the last to the first, then the devices of a chip: major to minor, as devices are numbered.

    `topology` has the dimensions from the first to the last.
    """
    axes = checked_mesh(mesh)
    if slices is not None and slices < 1:
        raise HardwareError(f"{slices} slices", where="slices", fix="Give a number from 1.")
    if topology is None and math.prod(size for _, size in axes) == 1:
        return TorusCommunication(_placed(axes, (1,), ("slices",), placement), (), 0.0, None)
    if topology is None:
        slices, shape = _default_slices(axes, slices, torus, cores, network)
    else:
        check_torus_shape(topology, torus, "topology")
        slices, shape = slices or 1, tuple(reversed(topology))
    if slices > 1 and network is None:
        raise HardwareError(f"{slices} slices need a network", fix="Add a [network] table to the profile.")
    closed = wraps(shape, torus)
    dimensions = [
        Dimension(size, link.bytes_per_ns / cores, link.latency_ns, ring)
        for size, ring in zip(shape, closed, strict=True)
    ]
    if core_link is not None and cores > 1:
        dimensions.append(Dimension(cores, core_link.bytes_per_ns, core_link.latency_ns, wraps=False))
    names = (
        "slices",
        *map(str, reversed(range(len(shape)))),
        *(["cores"] if len(dimensions) > len(shape) else []),
    )
    placed = _placed(axes, (slices, *(dimension.size for dimension in dimensions)), names, placement)
    return TorusCommunication(placed, tuple(dimensions), link.overhead_ns, network)


def place_for_scheduler(placed: TorusCommunication, scheduler: Scheduler) -> ScheduledCommunication:
    """The same mesh in the same place, as a scheduler prices it.

    Raises:
        HardwareError: several slices, of which it is not known what it takes them for.
    """
    if placed.placement.shape[0] > 1:
        raise HardwareError(
            f"{placed.placement.shape[0]} slices are not priced by a scheduler",
            where="slices",
            fix='Leave ":scheduler" out of the hardware\'s name.',
        )
    return ScheduledCommunication(placed.placement, tuple(one.size for one in placed.dimensions), scheduler)


def place_in_nodes(
    mesh: MeshSizes,
    topology: Sequence[int] | None,
    node: Switch | FullMesh,
    link: Link,
    network: Network | None,
    placement: str | None = None,
) -> SwitchedCommunication:
    """Nodes, then the chips of a node; `topology` is (chips,) or (nodes, chips of each)."""
    axes = checked_mesh(mesh)
    if topology is None:
        nodes, inner = default_node([size for _, size in axes], node.node_chips)
    elif len(topology) in (1, 2) and min(topology) > 0:
        nodes, inner = (1, *topology)[-2:]
    else:
        raise HardwareError(
            f"{tuple(topology)} is no topology of nodes", fix="Write (chips,) or (nodes, chips of each node)."
        )
    if inner > node.node_chips:
        raise HardwareError(f"{inner} chips in a node of {node.node_chips}", where="topology")
    if nodes > 1 and network is None:
        raise HardwareError(
            f"{nodes * inner} devices are more than one node of {node.node_chips}",
            fix="Add a [network] table to the profile.",
        )
    return SwitchedCommunication(
        placement=_placed(axes, (nodes, inner), ("nodes", "chips"), placement),
        link_bytes_per_ns=link.bytes_per_ns,
        link_per_peer=isinstance(node, FullMesh),
        latency_ns=link.latency_ns,
        overhead_ns=link.overhead_ns,
        all_reduce_speedup=(node.all_reduce_speedup or 1.0) if isinstance(node, Switch) else 1.0,
        network=network,
    )


def _placed(mesh: Mesh, shape: tuple[int, ...], names: tuple[str, ...], placement: str | None) -> Placement:
    devices, places = math.prod(size for _, size in mesh), math.prod(shape)
    if devices != places:
        raise HardwareError(
            f"the mesh has {devices} devices, the topology {topology_text(shape, names)} = {places}",
            where="topology",
            fix="Give a topology of as many devices, or slices=... for several of them.",
        )
    if placement is not None and placement != ROW_MAJOR:
        return Placement(mesh, shape, parse_pieces(placement, mesh, shape, names), names)
    pieces = lay([size for _, size in mesh], shape)
    if pieces is None:
        raise HardwareError(
            f"{', '.join(f'{name}={size}' for name, size in mesh)} does not divide {topology_text(shape, names)}",
            where="topology",
            fix="Give a topology in which every axis is a whole dimension, or a divisor of one, or a placement.",
        )
    return Placement(mesh, shape, pieces, names)


def topology_text(shape: Sequence[int], names: Sequence[str]) -> str:
    """Sizes as they are given: of slices and of the cores of a chip only where there are several."""
    sizes = dict(as_given(shape, names))
    slices, cores = sizes.pop("slices", 1), sizes.pop("cores", 1)
    text = _times([*sizes.values()] or [1])
    text = text if slices == 1 else f"{slices} slices of {text}"
    return text if cores == 1 else f"{text} chips of {cores}"


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _default_slices(
    mesh: Mesh, slices: int | None, torus: Torus, cores: int, network: Network | None
) -> tuple[int, tuple[int, ...]]:
    devices = math.prod(size for _, size in mesh)
    if devices % cores:
        raise HardwareError(
            f"{devices} devices do not fill chips of {cores} devices each",
            where="mesh",
            fix=f"Give a mesh of a multiple of {cores} devices.",
        )
    chips = devices // cores
    if slices and chips % slices:
        raise HardwareError(
            f"{chips} chips do not make {slices} slices of one size",
            where="slices",
            fix=f"Give a number that divides {chips}.",
        )
    fewest = -(-chips // torus.max_chips)
    if fewest > 1 and network is None:
        raise HardwareError(f"{chips} chips are more than a pod of {torus.max_chips}", where="mesh")
    for count in [slices] if slices else range(fewest, chips + 1):
        if chips % count == 0 and chips // count <= torus.max_chips:
            shape = default_torus_shape(divided([size for _, size in mesh], count), torus, cores)
            if shape is not None and lay([size for _, size in mesh], (count, *shape, cores)) is not None:
                return count, shape
        if network is None:
            break
    raise HardwareError(
        f"no slice of at most {torus.max_chips} chips fits a mesh of {_times([size for _, size in mesh])}",
        where="mesh",
        fix="Give the topology.",
    )
