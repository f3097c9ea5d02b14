"""The closed shardings of a tensor that the search considers: mesh axes on dimensions, whole, in mesh order."""

from collections.abc import Iterator, Sequence

from autoshard.errors import AutoshardError
from autoshard.program import Flow
from autoshard.sharding import AxisRef, Mesh, TensorSharding, TensorType, total_size


def searched_axes(mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes worth placing: those with more than one device."""
    return tuple(AxisRef(axis.name, axis.size) for axis in mesh.axes if axis.size > 1)


def assignments(
    sizes: Sequence[int], axes: Sequence[AxisRef], base: Sequence[tuple[AxisRef, ...]] | None = None
) -> Iterator[tuple[tuple[AxisRef, ...], ...]]:
    """Axes to slots of these sizes, or to none; a slot gets at most as many shards as it has elements.

    Each of two axes goes where it likes. More axes are cut into a major and a minor part at every place, and each part goes as one,
    or a single axis goes alone: all combinations of n axes would be (slots + 1)^n, most of them of no use. Order: slot contents in
    the order of `axes`, after what `base` already puts there. Slots of size 0 take nothing.
    """
    start = tuple(base) if base is not None else ((),) * len(sizes)
    if len(axes) <= 2:
        yield from _assign(sizes, [(axis,) for axis in axes], start)
        return
    parts = [[tuple(axes[:cut]), tuple(axes[cut:])] for cut in range(1, len(axes))] + [
        [(axis,)] for axis in axes
    ]
    found: dict[tuple[tuple[AxisRef, ...], ...], None] = {}
    for mine in parts:
        found.update(dict.fromkeys(_assign(sizes, mine, start)))
    yield from found


def _assign(
    sizes: Sequence[int], parts: Sequence[tuple[AxisRef, ...]], start: tuple[tuple[AxisRef, ...], ...]
) -> Iterator[tuple[tuple[AxisRef, ...], ...]]:
    if not parts:
        yield start
        return
    first, rest = parts[0], parts[1:]
    yield from _assign(sizes, rest, start)
    for slot, size in enumerate(sizes):
        if total_size(start[slot]) * total_size(first) <= size:
            yield from _assign(sizes, rest, (*start[:slot], (*start[slot], *first), *start[slot + 1 :]))


def tensor_shardings(
    type_: TensorType, mesh: Mesh, demand: TensorSharding | None, must_divide: bool
) -> list[TensorSharding]:
    """The shardings that a function argument, result or carried value may take, replicated first.

    A demand is met exactly where it is closed; its open dimensions may be split further by axes that it does not name.
    """
    base = [dim.axes for dim in demand.dims] if demand is not None else [()] * type_.rank
    named = [axis for axes in base for axis in axes]
    if demand is not None:
        named += [*demand.replicated, *demand.unreduced]
    free = [axis for axis in searched_axes(mesh) if not any(axis.overlaps(other) for other in named)]
    open_sizes = [
        size if demand is None or not demand.dims[d].is_closed else 0 for d, size in enumerate(type_.shape)
    ]
    found = [TensorSharding.closed(axes) for axes in assignments(open_sizes, free, tuple(map(tuple, base)))]
    return [
        s for s in found if not must_divide or s.divides(type_.shape) or s.axes == tuple(map(tuple, base))
    ]


def wanted_shardings(flow: Flow, mesh: Mesh, wanted: Sequence[TensorSharding]) -> list[TensorSharding]:
    """The shardings of a flow whatever is demanded, with those that meet any of `wanted` among them."""
    found = [
        sharding
        for demand in (None, *wanted)
        for sharding in tensor_shardings(flow.type, mesh, demand, flow.must_divide)
    ]
    return list(dict.fromkeys(found))


def flow_shardings(flow: Flow, mesh: Mesh) -> list[TensorSharding]:
    """The shardings that a flow may take: those that meet every demand on it.

    Raises:
        AutoshardError: the demands on the two ends of carried state allow none.
    """
    if not flow.demands:
        return tensor_shardings(flow.type, mesh, None, flow.must_divide)
    found = [
        sharding
        for demand in flow.demands
        for sharding in tensor_shardings(flow.type, mesh, demand, flow.must_divide)
        if all(sharding.satisfies(other) for other in flow.demands)
    ]
    if not found:
        written = " and ".join(str(demand) for demand in flow.demands)
        raise AutoshardError(
            f"no sharding of {flow.type} is {written}",
            where=flow.name,
            fix="carried state has one sharding as argument and as result: ask for the same on both ends",
        )
    return list(dict.fromkeys(found))
