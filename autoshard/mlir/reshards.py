"""Which collectives Shardy emits for a reshard, asked of its own pass."""

import re
from collections.abc import Sequence
from dataclasses import replace

from autoshard.errors import AutoshardError
from autoshard.mlir.collective import CollectiveStep
from autoshard.mlir.context import ir, new_context, sdy
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.walk import body_of
from autoshard.sharding import AxisRef, Mesh, TensorSharding, merge_sub_axes, parse_axes, parse_sharding

Request = tuple[int, TensorSharding, TensorSharding]  # rank, sharding before, sharding after

TO_COLLECTIVES = "func.func(sdy-reshard-to-collectives)"
SUMS_TO_COLLECTIVES = "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives),canonicalize"
_AXES_ATTRIBUTE = {
    "all_gather": "gathering_axes",
    "all_reduce": "reduction_axes",
    "all_slice": "slicing_axes",
    "reduce_scatter": "reduce_scatter_axes",
    "replicated_to_unreduced": "axes",
    "sharded_to_unreduced": "axes",
}
_MOST_RUNS = 64
_MOVE = re.compile(r"\{([^{}]*)\}: (\d+)->(\d+)")


def decompose_reshards(mesh: Mesh, requests: Sequence[Request]) -> list[tuple[CollectiveStep, ...]]:
    """The collectives of each reshard, in order, as `sdy-reshard-to-collectives` makes them; empty where nothing changes.

    Either end may be on one of the mesh's others that has the same axes in another order of devices.
    Of reshards from or to a partial sum, as they are after `sdy-insert-explicit-reshards` has put the sums before them.
    """
    if not requests:
        return []
    are_partial = [any(end.unreduced for end in ends) for _, *ends in requests]
    partial = [i for i, is_partial in enumerate(are_partial) if is_partial]
    if not partial:
        return _decomposed(mesh, requests, TO_COLLECTIVES)
    ordinary = [i for i, is_partial in enumerate(are_partial) if not is_partial]
    found = dict(
        zip(partial, _decomposed(mesh, [requests[i] for i in partial], SUMS_TO_COLLECTIVES), strict=True)
    )
    if ordinary:
        mine = _decomposed(mesh, [requests[i] for i in ordinary], TO_COLLECTIVES)
        found.update(zip(ordinary, mine, strict=True))
    return [found[i] for i in range(len(requests))]


def _decomposed(mesh: Mesh, requests: Sequence[Request], passes: str) -> list[tuple[CollectiveStep, ...]]:
    """The steps of each; of those for which Shardy's pass makes an invalid module, a gather of all and a slice.

    Such reshards (axes whose sizes have no common factor) are looked for by halves, as often as `_MOST_RUNS`.
    """
    found: dict[int, tuple[CollectiveStep, ...]] = {}
    open_ = [range(len(requests))]
    for _ in range(_MOST_RUNS):
        if not open_:
            break
        part = open_.pop()
        try:
            found.update(zip(part, _run(mesh, [requests[i] for i in part], passes), strict=True))
        except AutoshardError:
            if len(part) == 1:
                found[part[0]] = _through_replicated(requests[part[0]])
            else:
                open_ += [part[len(part) // 2 :], part[: len(part) // 2]]
    found.update((i, _through_replicated(requests[i])) for part in open_ for i in part)
    return [found[i] for i in range(len(requests))]


def _through_replicated(request: Request) -> tuple[CollectiveStep, ...]:
    rank, before, after = request
    whole = replace(TensorSharding.replicated_closed(rank), unreduced=after.unreduced)
    summed = tuple(axis for axis in before.unreduced if axis not in after.unreduced)
    gathered, sliced = tuple(before.used_axes()), tuple(after.used_axes())
    steps = (
        [CollectiveStep("all_reduce", summed, replace(before, unreduced=after.unreduced))] if summed else []
    )
    steps += [CollectiveStep("all_gather", gathered, whole)] if gathered else []
    return (*steps, CollectiveStep("all_slice", sliced, after.as_closed())) if sliced else tuple(steps)


def _run(mesh: Mesh, requests: Sequence[Request], passes: str) -> list[tuple[CollectiveStep, ...]]:
    module = ir.Module.parse(_module_text(mesh, requests), new_context())
    done = run_isolated(module.operation, passes)
    block = list(body_of(done.operation).operations)[-1].operation.regions[0].blocks[0]
    chain = {argument: index for index, argument in enumerate(block.arguments)}
    closed = {start: start.as_closed() for _, start, _ in requests}
    before = [closed[start] for _, start, _ in requests]
    steps: list[list[CollectiveStep]] = [[] for _ in requests]
    parsed = StepParser(mesh)
    for view in block.operations:
        op = view.operation
        if op.name == "func.return":
            continue
        index = chain[op.operands[0]]
        step = parsed.step(op, before[index])
        steps[index].append(step)
        before[index] = step.out_sharding
        chain[op.results[0]] = index
    return list(map(tuple, steps))


def _module_text(mesh: Mesh, requests: Sequence[Request]) -> str:
    """One function that returns its argument i resharded as request i says; every dimension is divided by any sharding."""
    arguments: list[str] = []
    body: list[str] = []
    returned: list[str] = []
    types: list[str] = []
    results: list[str] = []
    definitions: dict[TensorSharding, str] = {}
    for index, (rank, *ends) in enumerate(requests):
        type_ = f"tensor<{'x'.join([*[str(mesh.num_devices)] * rank, 'f32'])}>"
        for end in ends:
            if end not in definitions:
                definitions[end] = end.as_closed().definition(mesh)
        source, target = (definitions[end] for end in ends)
        arguments.append(f"%a{index}: {type_} {{sdy.sharding = #sdy.sharding{source}}}")
        if source != target:
            body.append(f"  %r{index} = sdy.reshard %a{index} {target} : {type_}")
        returned.append(f"%{'a' if source == target else 'r'}{index}")
        types.append(type_)
        results.append(f"{type_} {{sdy.sharding = #sdy.sharding{target}}}")
    alike = (one for one in (mesh, *mesh.others) if one.axes == mesh.axes)
    header = [f"sdy.mesh {one.symbol} = {one.definition}" for one in alike]
    signature = f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{"
    return "\n".join([*header, signature, *body, f"  return {', '.join(returned)} : {', '.join(types)}", "}"])


class StepParser:
    """sdy collective ops as steps; attributes are parsed once each, and equal steps are one object."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._others = {one.symbol: one for one in mesh.others}
        self._shardings: dict[ir.Attribute, TensorSharding] = {}
        self._steps: dict[tuple[str, str | TensorSharding, ir.Attribute, ir.Attribute], CollectiveStep] = {}

    def step(self, op: ir.Operation, before: TensorSharding) -> CollectiveStep:
        kind, attributes = op.name.removeprefix("sdy."), op.attributes
        after = attributes["out_sharding"]
        match kind:
            case "all_to_all":
                key = (kind, before.mesh, after, attributes["params"])
            case "collective_permute":
                key = (kind, before, after, after)
            case _:
                key = (kind, before.mesh, after, attributes[_AXES_ATTRIBUTE[kind]])
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._parsed(kind, op, before, self.sharding(after))
        return found

    def _parsed(
        self, kind: str, op: ir.Operation, before: TensorSharding, after: TensorSharding
    ) -> CollectiveStep:
        mesh = mesh_of_step(before, after, self._mesh)
        if kind == "all_to_all":
            moves = tuple(
                (parse_axes(axes, mesh), int(source), int(target))
                for axes, source, target in _MOVE.findall(str(op.attributes["params"]))
            )
            return CollectiveStep(kind, tuple(axis for axes, _, _ in moves for axis in axes), after, moves)
        if kind == "collective_permute":
            reorders = before.mesh != after.mesh
            axes = whole_axes(mesh) if reorders else moved_axes(before, after, mesh)
            return CollectiveStep(kind, axes, after)
        return CollectiveStep(kind, parse_axes(str(op.attributes[_AXES_ATTRIBUTE[kind]]), mesh), after)

    def sharding(self, attribute: ir.Attribute) -> TensorSharding:
        if attribute not in self._shardings:
            other = self._others.get(str(sdy.TensorShardingAttr(attribute).mesh_or_ref))
            sharding = parse_sharding(str(attribute), other or self._mesh)
            self._shardings[attribute] = sharding.on_mesh(other.name) if other is not None else sharding
        return self._shardings[attribute]


def mesh_of_step(before: TensorSharding, after: TensorSharding, mesh: Mesh) -> Mesh:
    """The mesh whose axes a collective names, `mesh` or one of its others: a gather may also leave it for another."""
    return mesh.named((before if after.is_fully_replicated else after).mesh)


def is_collective(op: ir.Operation) -> bool:
    return op.name.startswith("sdy.") and op.name.removeprefix("sdy.") in (
        *_AXES_ATTRIBUTE,
        "all_to_all",
        "collective_permute",
    )


def whole_axes(mesh: Mesh) -> tuple[AxisRef, ...]:
    """All axes with more than one device: what changes the order of devices is over all of them."""
    return tuple(mesh.axis(axis.name) for axis in mesh.axes if axis.size > 1)


def moved_axes(before: TensorSharding, after: TensorSharding, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Axes of the dimensions that a permute changes, without the parts at either end that stay where they are; in mesh order."""
    moved: list[AxisRef] = []
    for old, new in zip(before.axes, after.axes, strict=True):
        a, b = list(old), list(new)
        while a and b and a[0] == b[0]:
            del a[0], b[0]
        while a and b and a[-1] == b[-1]:
            del a[-1], b[-1]
        moved.extend((*a, *b))
    hulls: list[AxisRef] = []
    for axis in sorted(moved, key=mesh.order):
        if hulls and hulls[-1].overlaps(axis):
            last = hulls.pop()
            axis = mesh.axis(axis.name, last.begin, max(last.end, axis.end) // last.begin)
        hulls.append(axis)
    return merge_sub_axes(hulls, mesh)
