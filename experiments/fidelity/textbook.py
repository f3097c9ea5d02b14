"""Plans that fit on a line, written on a module: data parallelism, FSDP and Megatron, with and without constraints on activations.

- `data parallel`: the batch over all axes;
- `FSDP`: beside that every array of at least 64 Ki elements that is no batch, over all axes on its largest dimension that they divide;
- `Megatron`: the batch over all axes but the last, and over the last one the arrays of products: by rows where what they are
  multiplied with is split along the dimension that the product sums over, by experts where along one that both keep, by columns
  otherwise; tables that are looked up by rows; state beside the arrays, such as moments, as Shardy propagates from them.

`+c` adds a constraint to every product whose result has the batch: that dimension over the axes of the batch, the others left open.

What is split, batch or column, is followed through the sharding rules of the ops, program order, from where it begins to where it is summed
over. State that is fed back is sharded alike on both ends and donated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoshard.loading import Loaded
from autoshard.mlir import passes
from autoshard.mlir.context import ir
from autoshard.mlir.listing import DataFlow, Op
from autoshard.mlir.meshes import all_meshes
from autoshard.mlir.pipeline import run_pipeline
from autoshard.mlir.signature import ALIASING, attributes_of, set_attributes
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.walk import SHARDING, Walked, walk
from autoshard.program import batch_arguments
from autoshard.sharding import AxisRef, DimSharding, FactorKind, TensorMapping, TensorSharding, total_size

STYLES = ("data parallel", "FSDP", "FSDP+c", "Megatron", "Megatron+c")
LARGE = 1 << 16
_UPDATES = frozenset({"stablehlo.dynamic_update_slice", "stablehlo.scatter"})
_LOOKUPS = frozenset({"stablehlo.gather", "stablehlo.dynamic_gather"})


@dataclass(frozen=True, slots=True)
class _Origin:
    """An argument that a value is cut, cast or turned from, and which of its dimensions each of the value's is (-1: none)."""

    argument: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A value is split along `dim`, which began with the columns of the array `began` (-1: elsewhere)."""

    dim: int
    began: int = -1


@dataclass(slots=True)
class Split:
    """What one kind of parallelism splits: a dimension of arguments, and of the values that follow from them."""

    size: int  # parts
    arguments: dict[int, int] = field(default_factory=dict[int, int])  # value -> dimension
    marks: dict[int, _Mark] = field(default_factory=dict[int, _Mark])
    origins: dict[int, _Origin] = field(default_factory=dict[int, _Origin])
    refused: set[int] = field(default_factory=set[int])  # arguments that stay whole

    def mark_of(self, value: int) -> _Mark | None:
        origin = self.origins.get(value)
        dim = None if origin is None else self.arguments.get(origin.argument)
        if origin is not None and dim is not None and dim in origin.dims:
            return _Mark(origin.dims.index(dim))
        return self.marks.get(value)


def annotated(loaded: Loaded, style: str) -> str:
    """The module with a hand-written plan on it, its loops and branches in place and its calls inlined."""
    axes = [loaded.mesh.axis(axis.name) for axis in loaded.mesh.axes if axis.size > 1]
    is_megatron = style.startswith("Megatron")
    batch_axes = axes[:-1] if is_megatron else axes
    batch = _batch(loaded, batch_axes)
    model = _model(loaded, axes[-1].size) if is_megatron else Split(1)
    arguments = dict(_arguments(loaded, style, batch, batch_axes, model, axes))
    module = loaded.handles.walked.module.clone().operation
    walked = walk(module, loaded.handles.entry)
    shardings = Shardings(loaded.mesh, all_meshes(module), module.context)
    with module.context, ir.Location.unknown():
        if style.endswith("+c"):
            for index, dim in _products_of(loaded, batch):
                _constrain(walked.ops[index], dim, batch_axes)
        _write_main(walked, loaded, arguments, shardings)
        run_pipeline(module, "func.func(sdy-drop-sharding-rules)")
    assert module.verify()
    return str(module)


def _batch(loaded: Loaded, axes: list[AxisRef]) -> Split:
    """The batch dimension of arguments (caches too), and of all that follows from them."""
    split = Split(total_size(axes))
    batch = batch_arguments(loaded.program)
    if batch and batch[0].size % split.size == 0:
        split.arguments.update({one.argument.value: one.dim for one in batch})
        split.marks.update({one.argument.value: _Mark(one.dim) for one in batch})
        _follow(loaded, split, frozenset(split.arguments), begins=False)
    return split


def _model(loaded: Loaded, size: int) -> Split:
    """Columns that are summed over on the way to another array, as a stream that is normalised is, are not begun."""
    whole = {one.argument.value for one in batch_arguments(loaded.program)}
    while True:
        split = Split(size)
        summed = _follow(loaded, split, frozenset(whole), begins=True)
        first = next((array for array in split.arguments if array in summed), None)
        if first is None:
            return split
        whole.add(first)


def _follow(loaded: Loaded, split: Split, whole: frozenset[int], *, begins: bool) -> set[int]:
    """Mark what is split, in program order; with `begins`, arrays of products that meet nothing split begin a split of their columns.

    Returns the arrays whose columns are summed over, by other than a product, before another array is met.
    """
    listing = loaded.listing
    for argument in listing.arguments:
        type_ = listing.values[argument.value].type
        if type_ is not None and argument.value not in whole:
            split.origins[argument.value] = _Origin(argument.value, tuple(range(type_.rank)))
    flows = sorted(listing.data_flows, key=lambda flow: flow.begin)
    tables: list[_Origin] = []
    maybe: set[int] = set()
    summed: set[int] = set()
    for index, op in enumerate(listing.ops):
        while flows and flows[0].begin <= index:
            _hand_on(flows.pop(0), split)
        if op.rule is None or not op.results:
            continue
        if op.is_matmul:
            count, began = len(split.arguments), _meet(loaded, op, split, begins=begins)
            summed |= maybe if len(split.arguments) > count else set()
        else:
            began = -1
            maybe |= _summed(op, split)
            if op.name in _LOOKUPS and op.operands[0] in split.origins:
                tables.append(split.origins[op.operands[0]])
            _trace(loaded, op, split)
        _pass_on(op, split, began)
    for flow in flows:
        _hand_on(flow, split)
    for table in tables if begins else ():
        _assign(loaded, split, table, 0)
    return summed


def _hand_on(flow: DataFlow, split: Split) -> None:
    first = flow.sources[0].value
    if first in split.origins:
        split.origins[flow.target] = split.origins[first]
    if first in split.marks:
        split.marks[flow.target] = split.marks[first]


def _trace(loaded: Loaded, op: Op, split: Split) -> None:
    """What an op makes of one array and of constants alone is still that array; so is a cache that is written to."""
    assert op.rule is not None
    made = [i for i, value in enumerate(op.operands) if _is_made(loaded, value)]
    origin = split.origins.get(op.operands[made[0]]) if made else None
    if origin is None or (len(made) > 1 and not (op.name in _UPDATES and made[0] == 0)):
        return
    of_factor = {dim[0]: origin.dims[d] for d, dim in enumerate(op.rule.operands[made[0]]) if dim}
    for value, result in zip(op.results, op.rule.results, strict=True):
        dims = tuple(of_factor.get(dim[0], -1) if dim else -1 for dim in result)
        split.origins[value] = _Origin(origin.argument, dims)


def _is_made(loaded: Loaded, value: int) -> bool:
    type_ = loaded.listing.values[value].type
    return type_ is not None and type_.rank > 0 and value not in loaded.program.cloneable


def _pass_on(op: Op, split: Split, began: int) -> None:
    assert op.rule is not None
    found = next(iter(_split_factors(op, split)), None)
    if found is None:
        return
    factor, mark = found
    for value, result in zip(op.results, op.rule.results, strict=True):
        dim = _dim_of(result, factor)
        if dim >= 0:
            split.marks[value] = _Mark(dim, began if began >= 0 else mark.began)


def _split_factors(op: Op, split: Split, but: int = -1) -> Iterator[tuple[int, _Mark]]:
    """The factors along which operands are split, those of computed values first."""
    assert op.rule is not None
    for from_arguments in (False, True):
        for position, (value, mapping) in enumerate(zip(op.operands, op.rule.operands, strict=True)):
            mark = split.mark_of(value)
            if mark is None or position == but or (value in split.origins) != from_arguments:
                continue
            if mapping[mark.dim]:
                yield mapping[mark.dim][0], mark


def _summed(op: Op, split: Split) -> set[int]:
    """The arrays whose columns the op sums over."""
    assert op.rule is not None
    kinds = [factor.kind for factor in op.rule.factors]
    return {mark.began for factor, mark in _split_factors(op, split) if kinds[factor] is FactorKind.REDUCTION}


def _meet(loaded: Loaded, op: Op, split: Split, *, begins: bool) -> int:
    """Decide how the arrays of a product are split that nothing decided before; the array whose columns begin a split, or -1."""
    assert op.rule is not None
    for position in reversed(range(2)):
        origin = split.origins.get(op.operands[position])
        if origin is None or origin.argument in split.arguments or origin.argument in split.refused:
            continue
        mapping = op.rule.operands[position]
        met = {factor for factor, _ in _split_factors(op, split, but=position)}
        other = {factor for dim in op.rule.operands[1 - position] for factor in dim}
        columns = [d for d, dim in enumerate(mapping) if dim and dim[0] not in other] if begins else []
        for dim in [_dim_of(mapping, factor) for factor in met] if met else columns:
            if dim >= 0 and origin.dims[dim] >= 0 and _assign(loaded, split, origin, origin.dims[dim]):
                return -1 if met else origin.argument
        if begins:  # what its first product cannot split stays whole
            split.refused.add(origin.argument)
    return -1


def _assign(loaded: Loaded, split: Split, origin: _Origin, dim: int) -> bool:
    type_ = loaded.listing.values[origin.argument].type
    assert type_ is not None
    is_possible = (
        origin.argument not in split.refused
        and type_.num_elements >= LARGE
        and type_.shape[dim] % split.size == 0
    )
    if is_possible:
        split.arguments.setdefault(origin.argument, dim)
    return is_possible


def _dim_of(mapping: TensorMapping, factor: int) -> int:
    return next((d for d, dim in enumerate(mapping) if dim and dim[0] == factor), -1)


def _arguments(
    loaded: Loaded, style: str, batch: Split, batch_axes: list[AxisRef], model: Split, axes: list[AxisRef]
) -> Iterator[tuple[int, TensorSharding]]:
    """(argument, its sharding); those without a type have none."""
    names = {axis.name for axis in batch_axes}
    propagated = _propagated_state(loaded, model, axes[-1]) if model.arguments else {}
    for number, argument in enumerate(loaded.listing.arguments):
        type_ = loaded.listing.values[argument.value].type
        if type_ is None:
            continue
        dims: list[list[str]] = [[] for _ in type_.shape]
        if argument.value in batch.arguments:
            dims[batch.arguments[argument.value]] += [a.name for a in batch_axes]
        elif style.startswith("FSDP") and type_.num_elements >= LARGE:
            _put_on_largest(dims, type_.shape, axes)
        if argument.value in model.arguments:
            dims[model.arguments[argument.value]].append(axes[-1].name)
        elif argument.value in propagated and axes[-1].name not in names:
            dims[propagated[argument.value]].append(axes[-1].name)
        yield number, _sharding(loaded, dims)


def _put_on_largest(dims: list[list[str]], shape: tuple[int, ...], axes: list[AxisRef]) -> None:
    count = 1
    for axis in axes:
        count *= axis.size
    divided = [d for d, size in enumerate(shape) if size % count == 0]
    if divided:
        dims[max(divided, key=lambda d: shape[d])] += [axis.name for axis in axes]


def _propagated_state(loaded: Loaded, model: Split, axis: AxisRef) -> dict[int, int]:
    """The dimension of other state that Shardy's propagation splits when the arrays of products are."""
    demands: dict[int, TensorSharding] = {}
    for value, dim in model.arguments.items():
        type_ = loaded.listing.values[value].type
        assert type_ is not None
        dims: list[list[str]] = [[] for _ in type_.shape]
        dims[dim] = [axis.name]
        demands[value] = _sharding(loaded, dims)
    given = passes.propagation(loaded.handles, loaded.listing).of(demands)
    state = {loaded.listing.arguments[argument].value for _, argument in loaded.program.carried_pairs}
    found: dict[int, int] = {}
    for value in state - model.arguments.keys():
        type_ = loaded.listing.values[value].type
        split = [d for d, dim in enumerate(given[value].dims) if dim.axes] if value in given else []
        if split and type_ is not None and type_.shape[split[0]] % axis.size == 0:
            found[value] = split[0]
    return found


def _sharding(loaded: Loaded, dims: list[list[str]]) -> TensorSharding:
    return TensorSharding(tuple(DimSharding(tuple(map(loaded.mesh.axis, names))) for names in dims))


def _products_of(loaded: Loaded, batch: Split) -> Iterator[tuple[int, int]]:
    """(op, dimension) of the products whose results have the batch."""
    for index, op in enumerate(loaded.listing.ops):
        if op.is_matmul and op.results[0] in batch.marks:
            yield index, batch.marks[op.results[0]].dim


def _constrain(product: ir.Operation, dim: int, axes: list[AxisRef]) -> None:
    result = product.result
    names = "{" + ", ".join(f'"{axis.name}"' for axis in axes) + "}"
    rank = ir.RankedTensorType(result.type).rank
    each = ", ".join(names if d == dim else "{?}" for d in range(rank))
    constraint = ir.Operation.create(
        "sdy.sharding_constraint",
        [result.type],
        [result],
        {"sharding": ir.Attribute.parse(f"#sdy.sharding<@mesh, [{each}]>")},
        ip=ir.InsertionPoint.after(product),
    )
    result.replace_all_uses_except(constraint.result, constraint)


def _write_main(
    walked: Walked, loaded: Loaded, arguments: Mapping[int, TensorSharding], shardings: Shardings
) -> None:
    carried = dict(loaded.program.carried_pairs)
    given = [dict(one) for one in attributes_of(walked.main, "arg_attrs", len(loaded.listing.arguments))]
    for number, sharding in arguments.items():
        given[number][SHARDING] = shardings.attribute(sharding)
    for result, argument in carried.items():
        given[argument][ALIASING] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
    made = [dict(one) for one in attributes_of(walked.main, "res_attrs", len(loaded.listing.results))]
    for result, argument in carried.items():
        if argument in arguments:
            made[result][SHARDING] = shardings.attribute(arguments[argument])
    set_attributes(walked.main, "arg_attrs", given)
    set_attributes(walked.main, "res_attrs", made)
