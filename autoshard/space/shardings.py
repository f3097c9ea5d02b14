"""The closed shardings of a tensor that the search considers: mesh axes on dimensions, whole or cut on request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from autoshard.errors import ClashError
from autoshard.program import Flow
from autoshard.sharding import AxisRef, Mesh, TensorSharding, TensorType, total_size

_PLACED_FREELY = 3  # axes
_MOST_SLOTS = 10  # factors of a kernel or dimensions of a tensor that axes are tried on


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis in two parts, because a factor (of a kernel) or a dimension (of a tensor) wants the major one and no more."""

    slot: int  # the factor or dimension
    head: AxisRef
    tail: AxisRef


def searched_axes(mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes worth placing: those with more than one device."""
    return tuple(AxisRef(axis.name, axis.size) for axis in mesh.axes if axis.size > 1)


def assignments(
    sizes: Sequence[int],
    axes: Sequence[AxisRef],
    base: Sequence[tuple[AxisRef, ...]] | None = None,
    any_order: bool = True,
) -> Iterator[tuple[tuple[AxisRef, ...], ...]]:
    """Axes to slots of these sizes, or to none; a slot gets at most as many shards as it has elements.

    Each of up to three axes goes where it likes, in the order given or any within a slot. More axes are cut into a major and a minor
    part at every place, and each part goes as one, or a single axis goes alone: all combinations of n axes would be (slots + 1)^n,
    most of them of no use. What `base` puts in a slot comes first there. Slots of size 0 take nothing.
    """
    sizes = _roomiest(sizes)
    start = tuple(base) if base is not None else ((),) * len(sizes)
    if len(axes) <= _PLACED_FREELY:
        orders = permutations(axes) if any_order else [axes]
        parts = [[(axis,) for axis in order] for order in orders]
    else:
        parts = [[tuple(axes[:cut]), tuple(axes[cut:])] for cut in range(1, len(axes))]
        parts += [[(axis,)] for axis in axes]
    found: dict[tuple[tuple[AxisRef, ...], ...], None] = {}
    for mine in parts:
        found.update(dict.fromkeys(_assign(sizes, mine, start)))
    yield from found


def _roomiest(sizes: Sequence[int]) -> Sequence[int]:
    """Slots beyond a number that no common op has take nothing: the largest are kept, of equals the first."""
    if sum(size > 0 for size in sizes) <= _MOST_SLOTS:
        return sizes
    kept = set(sorted(range(len(sizes)), key=lambda slot: (-sizes[slot], slot))[:_MOST_SLOTS])
    return [size if slot in kept else 0 for slot, size in enumerate(sizes)]


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


def cut_assignments(
    sizes: Sequence[int], cuts: Sequence[Cut], mesh: Mesh, manual: Sequence[AxisRef] = ()
) -> Iterator[tuple[tuple[AxisRef, ...], ...]]:
    """Assignments in which one axis is cut: its major part on the slot that wants it, the other axes as if it were not there.

    The minor part goes to none or to a slot that it divides: beside another axis where it can, anywhere else where it cannot.
    """
    banned = {axis.name for axis in manual}
    for cut in cuts:
        if cut.head.size > sizes[cut.slot] or cut.head.name in banned:
            continue
        head = tuple((cut.head,) if slot == cut.slot else () for slot in range(len(sizes)))
        others = [axis for axis in searched_axes(mesh) if axis.name not in {cut.head.name, *banned}]
        for placed in assignments(sizes, others, head):
            yield _in_mesh_order(placed, mesh)
            if others and placed == head:
                continue  # a whole axis at rest: of no use to a part of another
            for slot in _homes(cut, placed, sizes):
                grown = (*placed[:slot], (*placed[slot], cut.tail), *placed[slot + 1 :])
                yield _in_mesh_order(grown, mesh)


def _homes(cut: Cut, placed: Sequence[tuple[AxisRef, ...]], sizes: Sequence[int]) -> list[int]:
    """The slots that the minor part may go to."""
    fitting = [
        slot
        for slot, (axes, size) in enumerate(zip(placed, sizes, strict=True))
        if slot != cut.slot and size and size % (total_size(axes) * cut.tail.size) == 0
    ]
    return [slot for slot in fitting if placed[slot]] or fitting


def _in_mesh_order(placed: Sequence[tuple[AxisRef, ...]], mesh: Mesh) -> tuple[tuple[AxisRef, ...], ...]:
    return tuple(tuple(sorted(axes, key=mesh.order)) for axes in placed)


def tensor_shardings(
    type_: TensorType,
    mesh: Mesh,
    demand: TensorSharding | None,
    must_divide: bool,
    cuts: Sequence[Cut] = (),
    manual: Sequence[AxisRef] = (),
    any_order: bool = True,
) -> list[TensorSharding]:
    """The shardings that a function argument, result or carried value may take, replicated first.

    A demand is met exactly where it is closed; its open dimensions may be split further by axes that it does not name, none of them manual.
    One on another mesh is met as it is.
    """
    if demand is not None and demand.is_foreign:
        return [demand.as_closed()]
    base = [dim.axes for dim in demand.dims] if demand is not None else [()] * type_.rank
    named = [*manual, *(axis for axes in base for axis in axes)]
    if demand is not None:
        named += [*demand.replicated, *demand.unreduced]
    free = [axis for axis in searched_axes(mesh) if not any(axis.overlaps(other) for other in named)]
    open_sizes = [
        size if demand is None or not demand.dims[d].is_closed else 0 for d, size in enumerate(type_.shape)
    ]
    unreduced = demand.unreduced if demand is not None else ()
    found = [
        replace(TensorSharding.closed(axes), unreduced=unreduced)
        for axes in assignments(open_sizes, free, tuple(map(tuple, base)), any_order)
    ]
    if demand is None:
        found += [TensorSharding.closed(axes) for axes in cut_assignments(open_sizes, cuts, mesh, manual)]
    return [s for s in found if not must_divide or s.divides(type_.shape)]


def wanted_shardings(
    flow: Flow,
    mesh: Mesh,
    wanted: Sequence[TensorSharding],
    cuts: Sequence[Cut] = (),
    any_order: bool = True,
) -> list[TensorSharding]:
    """The shardings of a flow whatever is demanded, with those that meet any of `wanted` among them; manual axes stay."""
    found = [
        sharding
        for demand in (flow.least, *wanted)
        for sharding in tensor_shardings(
            flow.type, mesh, demand, flow.must_divide, cuts, flow.manual_axes, any_order
        )
    ]
    return [s for s in dict.fromkeys(found) if flow.least is None or s.satisfies(flow.least)]


def flow_shardings(
    flow: Flow, mesh: Mesh, cuts: Sequence[Cut] = (), any_order: bool = True
) -> list[TensorSharding]:
    """The shardings that a flow may take: those that meet every demand on it.

    Raises:
        ClashError: the demands on the two ends of carried state allow none.
    """
    if not flow.demands:
        return tensor_shardings(
            flow.type, mesh, flow.least, flow.must_divide, cuts, flow.manual_axes, any_order
        )
    found = [
        sharding
        for demand in flow.demands
        for sharding in tensor_shardings(
            flow.type, mesh, demand, flow.must_divide, cuts, flow.manual_axes, any_order
        )
        if all(sharding.satisfies(other) for other in flow.demands)
    ]
    if not found:
        written = "".join(f"\n  {demand}" for demand in flow.written or flow.demands)
        raise ClashError(
            f"no sharding of {flow.type} is all that is demanded:{written}",
            where=flow.name,
            fix="carried state has one sharding as argument and as result: ask for the same on both ends",
        )
    return list(dict.fromkeys(found))


def with_unreduced(
    found: Sequence[TensorSharding], sets: Sequence[tuple[AxisRef, ...]]
) -> list[TensorSharding]:
    """These shardings, and after them those that are partial over one of the sets of axes too."""
    partial = [
        replace(sharding, unreduced=axes)
        for axes in sets
        for sharding in found
        if not any(axis.overlaps(other) for axis in axes for other in sharding.used_axes())
    ]
    return [*found, *partial]
