"""Which physical shape a mesh gets when the user names none, and which shapes the chips come in."""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence

from .amounts import as_whole
from .errors import HardwareError
from .figures import Torus
from .topology import MeshSizes, lay


def checked_mesh(mesh: MeshSizes | Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """`mesh` as a tuple.

    Raises:
        HardwareError: what are no names and sizes, a size below 1 or no whole number, or a name twice.
    """
    pairs = mesh.items() if isinstance(mesh, Mapping) else mesh
    try:
        named: list[tuple[object, object]] | None = [(name, size) for name, size in pairs]
    except (TypeError, ValueError):
        named = None
    if named is None or not all(isinstance(name, str) for name, _ in named):
        raise HardwareError(
            f"{reprlib.repr(mesh)} is no mesh",
            where="mesh",
            fix='Write names and sizes, as in [("data", 8), ("model", 2)].',
        )
    axes = tuple((str(name), as_whole(f'axis "{name}" has size', size, where="mesh")) for name, size in named)
    for index, (name, size) in enumerate(axes):
        if size < 1:
            raise HardwareError(f'axis "{name}" has size {size}', where="mesh", fix="Sizes start at 1.")
        if any(name == other for other, _ in axes[:index]):
            raise HardwareError(f'axis "{name}" is there twice', where="mesh")
    return axes


def own_torus_shape(sizes: Sequence[int], torus: Torus, cores: int) -> tuple[int, ...] | None:
    """The shape of a slice with a dimension for each of the mesh axes `sizes`; None if the torus has none such."""
    own = tuple(size for size in divided(sizes[::-1], cores)[::-1] if size > 1)
    is_whole = math.prod(own) * cores == math.prod(sizes)
    return own if is_whole and _allowed(own, torus) and lay(sizes, (*own, cores)) is not None else None


def default_torus_shape(sizes: Sequence[int], torus: Torus, cores: int) -> tuple[int, ...] | None:
    """The shape of one slice, major to minor and in chips of `cores` devices each, for mesh axes `sizes`; None if none fits.

    Slices come in the shape that is nearest to a cube, the least sum of dimensions: 16 chips of v5e as 4x4, of v5p as 2x2x4. One as near
    with a dimension for each axis is taken if there is one, then the one whose shortest dimension is minor, as devices are numbered, then
    the one that splits the fewest axes.
    """
    shapes = _slices(math.prod(sizes) // cores, torus)
    laid = {shape: lay(sizes, (*shape, cores)) for shape in shapes}
    ranked = [
        (sum(shape), list(shape) != sorted(shape, reverse=True), sum(map(len, pieces)), shape)
        for shape, pieces in laid.items()
        if pieces is not None
    ]
    if not ranked:
        return None
    least, _, _, best = min(ranked)
    own = own_torus_shape(sizes, torus, cores)
    if own is not None and sum(own) + torus.dimensions - len(own) == least:
        return own
    return tuple(size for size in best if size > 1)


def compact_slices(
    devices: int, slices: int | None, torus: Torus, cores: int, *, has_network: bool
) -> tuple[tuple[int, ...], int]:
    """The shape of one slice that is nearest to a cube, in chips of `cores` devices each, and the fewest slices, or so many.

    Raises:
        HardwareError: the chips do not come in such a number.
    """
    family = f"Slices have up to {torus.dimensions} dimensions of up to {torus.max_dimension_chips} chips, {torus.max_chips} in all"
    if devices % cores:
        raise HardwareError(
            f"{devices} devices do not fill chips of {cores} devices each",
            where="devices",
            fix=f"Give a multiple of {cores}.",
        )
    chips = devices // cores
    counts = [slices] if slices else [1] if not has_network else range(1, chips + 1)
    for count in counts:
        if chips % count == 0 and (shape := _compact(chips // count, torus)) is not None:
            return shape, count
    network = "" if has_network else ", and the profile has no network between them"
    raise HardwareError(
        f"{devices} devices are no {slices or 1} slices of this torus",
        where="devices",
        fix=f"{family}{network}; name another number, or the topology.",
    )


def _compact(chips: int, torus: Torus) -> tuple[int, ...] | None:
    if chips > torus.max_chips:
        return None
    best = min(_slices(chips, torus), key=lambda shape: (sum(shape), shape), default=None)
    return None if best is None else tuple(size for size in best if size > 1) or (1,)


def divided(sizes: Sequence[int], divisor: int) -> tuple[int, ...]:
    """`sizes` with `divisor` taken out of the first ones, as far as it divides them."""
    rest: list[int] = []
    for size in sizes:
        common = math.gcd(size, divisor)
        divisor //= common
        rest.append(size // common)
    return tuple(rest)


def check_torus_shape(shape: Sequence[int], torus: Torus, where: str) -> None:
    """Refuses a shape that this torus does not come in.

    Raises:
        HardwareError: too many dimensions, one too long, or more chips than a pod.
    """
    long = [size for size in shape if size > 1]
    if any(size < 1 for size in shape):
        raise HardwareError(f"{tuple(shape)} has a size below 1", where=where)
    if len(long) > torus.dimensions:
        raise HardwareError(
            f"{tuple(shape)} has {len(long)} dimensions, the torus {torus.dimensions}",
            where=where,
            fix=f"Give at most {torus.dimensions} sizes above 1.",
        )
    if max(long, default=1) > torus.max_dimension_chips:
        raise HardwareError(
            f"{tuple(shape)} is longer than {torus.max_dimension_chips} chips in one dimension",
            where=where,
            fix=f"A slice has up to {torus.dimensions} dimensions of up to {torus.max_dimension_chips} chips, {torus.max_chips} in all.",
        )
    if math.prod(shape) > torus.max_chips:
        raise HardwareError(
            f"{tuple(shape)} is {math.prod(shape)} chips, a pod has {torus.max_chips}",
            where=where,
            fix="Use several slices (slices=...), joined by the data centre network.",
        )


def wraps(shape: Sequence[int], torus: Torus) -> tuple[bool, ...]:
    """Which dimensions close into a ring; those that `shape` leaves unsaid do not count."""
    multiple = tuple(size % torus.wraparound_multiple == 0 for size in shape)
    if torus.wraparound_whole_slice and not all(multiple):
        return (False,) * len(shape)
    return multiple


def default_node(sizes: Sequence[int], node_chips: int) -> tuple[int, int]:
    """(nodes, chips of each) with the fullest nodes that the mesh divides into."""
    devices = math.prod(sizes)
    for inner in range(min(node_chips, devices), 0, -1):
        if devices % inner == 0 and lay(sizes, (devices // inner, inner)) is not None:
            return devices // inner, inner
    return devices, 1


def _allowed(shape: Sequence[int], torus: Torus) -> bool:
    try:
        check_torus_shape(shape, torus, "")
    except HardwareError:
        return False
    return True


def _slices(chips: int, torus: Torus) -> list[tuple[int, ...]]:
    """The shapes of so many chips that the torus has room for, dimensions of one among them."""
    return [shape for shape in _factorings(chips, torus.dimensions) if _allowed(shape, torus)]


def _factorings(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in _factorings(number // first, parts - 1):
                yield (first, *rest)
