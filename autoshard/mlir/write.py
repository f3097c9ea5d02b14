"""From a plan back to a module, in one of the forms of `mlir.forms`.

- *shardy*: closed `sdy.sharding` on everything that is ranked and `sdy.reshard` where a value changes sharding; Shardy's passes
  add the reductions.
- *shardy-collectives*: what those passes make of the shardy form, every collective an op of its own.
- *mesh*, *mesh-20*, *shard*: the shardy form in the notations of upstream MLIR (`mlir.upstream`).
- *xla*: XLA ignores `sdy.sharding` on ordinary ops and refuses `sdy.reshard`, so the plan is carried by arguments, results and
  `sdy.sharding_constraint`: at every step of a change of sharding (`mlir.stepwise`), and at the values that propagation would decide
  otherwise. Nor does it take `sdy.named_computation`: its body stands in its place.

Everything that the user wrote and the plan does not decide (names, locations, attributes, functions) stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from autoshard.cost.halo import halo_sizes
from autoshard.mlir.anchors import split_noise
from autoshard.mlir.computations import without_named_computations
from autoshard.mlir.confirmed import forget
from autoshard.mlir.context import ir
from autoshard.mlir.decisions import Decisions
from autoshard.mlir.emit import Emission, Gathers, emit
from autoshard.mlir.explicit import with_collectives
from autoshard.mlir.facts import RULE
from autoshard.mlir.forms import Form
from autoshard.mlir.listing import Listing, Op
from autoshard.mlir.meshes import all_meshes
from autoshard.mlir.pipeline import run_pipeline
from autoshard.mlir.propagate import Propagated, Propagation
from autoshard.mlir.read import Handles
from autoshard.mlir.signature import ALIASING, DONOR, attributes_of, set_attributes
from autoshard.mlir.source import SourceModule
from autoshard.mlir.stepwise import write_steps
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.transposed import transposed_before
from autoshard.mlir.turning import constrained_behind
from autoshard.mlir.upstream.annotate import HALO, PARTIAL, annotated_text
from autoshard.mlir.upstream.notation import NOTATIONS, Partial, reduction_kind
from autoshard.mlir.variants import Choices
from autoshard.mlir.walk import Walked, walk
from autoshard.program import sums_after_loops
from autoshard.sharding import FactorAxes, FactorKind, TensorSharding, factor_axes_of, total_size

Constraints = Literal["minimal", "all"]

_USER_RULE = "user_rule"
_ROUNDS = 2  # of propagation: after the last, every value that still differs is constrained


def write(
    source: SourceModule,
    handles: Handles,
    listing: Listing,
    decisions: Decisions,
    form: Form,
    *,
    constraints: Constraints = "minimal",
    carry: Sequence[tuple[int, int]] = (),
    gathers: Gathers | None = None,
    apart: frozenset[int] = frozenset(),
    widened: frozenset[int] = frozenset(),
) -> str:
    """The module with the plan in it, as text.

    Args:
        constraints: of the xla form: those that propagation needs, or one on every value.
        carry: (result index, argument index) pairs; where types and shardings are equal the result takes the argument's buffer.
        gathers: of the xla form: which operands products gather while they run, and so are not constrained as they are read.
        apart: of the xla form: values with a constraint even where propagation decides the same.
        widened: of the xla form: values of which the compiler sends what was widened to make them.
    """
    choices = Choices(listing, decisions)
    if form == "xla":
        emission = Emission("sdy.sharding_constraint", False, gathers=gathers)
        left = _left_to_readers(widened, listing, choices, gathers)
        emission = _constrained(handles, listing, choices, constraints, emission, left)
        pinned = apart | emission.pinned
        walked = _emitted(handles, listing, choices, replace(emission, pinned=pinned))
        _without_reshards(walked)
    else:
        walked = _emitted(handles, listing, choices, Emission("sdy.reshard", True))
    notation = NOTATIONS.get(form)
    if notation is not None:
        partials = _partials(walked, listing, choices)
        _note_halos(walked, listing, choices)
        walked = without_named_computations(walked, handles.entry, constrained=False)
        _alias(walked, listing, choices, carry)
        _count_partitions(walked, listing.mesh.num_devices)
        return annotated_text(
            walked, partials, listing.mesh, notation, source.name, with_locations=source.has_locations
        )
    _mark_rules(walked, handles.user_rules)
    if form == "shardy-collectives":
        walked = walk(with_collectives(walked.module).operation, handles.entry)
    _drop_rules(walked)
    if form == "xla":
        walked = without_named_computations(walked, handles.entry, constrained=True)
    _alias(walked, listing, choices, carry)
    _count_partitions(walked, listing.mesh.num_devices)
    assert walked.module.verify(), "the planned module is valid"
    return str(walked.module.get_asm(enable_debug_info=source.has_locations))


def _emitted(handles: Handles, listing: Listing, choices: Choices, emission: Emission) -> Walked:
    """A walked clone of the listed module with the plan in it."""
    walked = walk(handles.walked.module.clone().operation, handles.entry)
    forget(walked.module)
    shardings = Shardings(listing.mesh, all_meshes(walked.module), walked.module.context)
    with walked.module.context:
        changes = emit(walked, listing, choices, shardings, emission)
        if not emission.annotates_ops:
            write_steps(changes, listing.mesh, shardings)
    return walked


def _constrained(
    handles: Handles,
    listing: Listing,
    choices: Choices,
    constraints: Constraints,
    emission: Emission,
    left: frozenset[int],
) -> Emission:
    """With the values to constrain beside those that are resharded, and the ops to tell apart from what is the same to XLA.

    Of `left` none is, but where every value has a constraint.
    """
    fixed = {argument.value for argument in listing.arguments}
    ranked = [
        number
        for number, value in enumerate(listing.values)
        if value.type is not None
        and value.type.rank
        and number not in fixed
        and not choices.is_recomputed(number)
    ]
    if constraints == "all":
        return replace(emission, pinned=frozenset(ranked))
    narrowed = (value for value, sum_ in sums_after_loops(listing).items() if sum_.is_narrowed)
    emission = replace(emission, pinned=split_noise(listing, choices).union(narrowed))
    found = _propagated(handles, listing, choices, emission)
    transposed = transposed_before(handles.walked)
    apart = frozenset(op for value, op in transposed.items() if _differs(value, found.shardings, choices))
    if apart:
        emission = replace(emission, transposed=apart)
        found = _propagated(handles, listing, choices, emission)
    for attempt in range(_ROUNDS):
        free = emission.pinned | left
        differing = {n for n in ranked if n not in free and _differs(n, found.shardings, choices)}
        redirected = found.redirected - free
        if not differing and not redirected:
            break
        is_last = attempt == _ROUNDS - 1
        more = (
            differing
            if is_last
            else constrained_behind(_first(differing, listing), handles.walked, listing, choices)
        )
        emission = replace(emission, pinned=emission.pinned | more | redirected)
        if not is_last:
            found = _propagated(handles, listing, choices, emission)
    return emission


def _left_to_readers(
    widened: frozenset[int], listing: Listing, choices: Choices, gathers: Gathers | None
) -> frozenset[int]:
    """Those that every reader brings to another sharding: with a constraint of its own, XLA would send such a value beside what was
    widened, which it makes one of otherwise, before it partitions.
    """
    kept: set[int] = set()
    for index, op in enumerate(listing.ops):
        for position, value in enumerate(op.operands):
            if value in widened:
                held, read = choices.settled(value), choices.operand(index, position)
                made = choices.produced(op.results[0])
                if held == read or (gathers is not None and gathers(index, position, held, read, made)):
                    kept.add(value)
    return widened - kept


def _propagated(handles: Handles, listing: Listing, choices: Choices, emission: Emission) -> Propagated:
    """What propagation makes of the module so written."""
    walked = _emitted(handles, listing, choices, emission)
    return Propagation(walked, listing, listing.mesh, as_xla=True).with_redirected()


def _differs(value: int, found: Mapping[int, TensorSharding], choices: Choices) -> bool:
    """Whether the op's own result propagates to something else, where no change of sharding follows it anyway."""
    return choices.produced(value) == choices.settled(value) != found[value]


def _first(differing: set[int], listing: Listing) -> frozenset[int]:
    """Those that are decided rather than followed: results of contractions and reductions, values of which no operand differs, and
    what loops carry. The rest may follow from them.
    """
    carried = {flow.target for flow in listing.data_flows}
    return frozenset(
        value
        for op in listing.ops
        for value in op.results
        if value in differing and (_reduces(op) or not any(operand in differing for operand in op.operands))
    ) | (carried & differing)


def _reduces(op: Op) -> bool:
    return op.rule is not None and any(factor.kind is FactorKind.REDUCTION for factor in op.rule.factors)


def _without_reshards(walked: Walked) -> None:
    """The user's own sdy.reshard ops as constraints, which XLA knows."""
    for op in walked.ops:
        if op.name == "sdy.reshard":
            constraint = ir.Operation.create(
                "sdy.sharding_constraint",
                [op.result.type],
                list(op.operands),
                {"sharding": op.attributes["sharding"]},
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
            op.result.replace_all_uses_with(constraint.result)
            op.erase()


def _mark_rules(walked: Walked, user_rules: frozenset[int]) -> None:
    """Note the rules that the user wrote, so that they are told from those that reading attached."""
    for index in user_rules:
        walked.ops[index].attributes[_USER_RULE] = walked.ops[index].attributes[RULE]


def _drop_rules(walked: Walked) -> None:
    """Take off the rules that reading attached, and those of Shardy's pass in regions that are not listed."""

    def restore(op: ir.Operation) -> ir.WalkResult:
        if _USER_RULE in op.attributes:
            op.attributes[RULE] = op.attributes[_USER_RULE]
            del op.attributes[_USER_RULE]
        return ir.WalkResult.ADVANCE

    run_pipeline(walked.module, "func.func(sdy-drop-sharding-rules)")
    walked.main.walk(restore, ir.WalkOrder.PRE_ORDER)


def _alias(walked: Walked, listing: Listing, choices: Choices, carry: Sequence[tuple[int, int]]) -> None:
    """Let carried results take their argument's buffer, as the predicted memory has it; a donated buffer that its result
    does not fit any more is donated to whom it fits.
    """
    each = [dict(one) for one in attributes_of(walked.main, "arg_attrs", len(listing.arguments))]
    context = walked.module.context
    number_type = ir.IntegerType.get_signless(32, context)
    for argument, attributes in enumerate(each):
        if ALIASING in attributes and not _is_alike(
            listing, choices, ir.IntegerAttr(attributes[ALIASING]).value, argument
        ):
            del attributes[ALIASING]
            attributes[DONOR] = ir.BoolAttr.get(True, context)
    taken = {ir.IntegerAttr(one[ALIASING]).value for one in each if ALIASING in one}
    for result, argument in carry:
        is_free = result not in taken and not {ALIASING, DONOR} & each[argument].keys()
        if is_free and _is_alike(listing, choices, result, argument):
            each[argument][ALIASING] = ir.IntegerAttr.get(number_type, result)
            taken.add(result)
    set_attributes(walked.main, "arg_attrs", each)


def _partials(walked: Walked, listing: Listing, choices: Choices) -> list[Partial]:
    """Of each op with one result that splits what it sums over: the axes, and how parts make the whole; the op gets its number."""
    found: list[Partial] = []
    number_type = ir.IntegerType.get_signless(64, walked.module.context)
    for index, (op, listed) in enumerate(zip(walked.ops, listing.ops, strict=True)):
        kind = reduction_kind(op) if _reduces(listed) and len(listed.results) == 1 else None
        if kind is None or listed.rule is None or choices.is_recomputed(listed.results[0]):
            continue
        axes = _factor_axes(listing, choices, index)
        reduced = [
            axis
            for factor, mine in zip(listed.rule.factors, axes or (), strict=axes is not None)
            if factor.kind is FactorKind.REDUCTION
            for axis in mine
        ]
        if reduced:
            op.attributes[PARTIAL] = ir.IntegerAttr.get(number_type, len(found))
            found.append(Partial(kind, tuple(sorted(reduced, key=listing.mesh.order))))
    return found


def _factor_axes(listing: Listing, choices: Choices, index: int) -> FactorAxes | None:
    """How an op that is not recomputed reads its operands, factor by factor."""
    op = listing.ops[index]
    if op.rule is None:
        return None
    read = [choices.operand(index, position) for position in range(len(op.operands))]
    return factor_axes_of(op.rule, op.rule.operands, read, listing.mesh)


def _note_halos(walked: Walked, listing: Listing, choices: Choices) -> None:
    """On each op whose windows reach into other parts: rows before and after, for each split dimension of each operand."""
    context = walked.module.context
    for index, (op, listed) in enumerate(zip(walked.ops, listing.ops, strict=True)):
        if not listed.windows or listed.rule is None or choices.is_recomputed(listed.results[0]):
            continue
        halos = [_halo(listing, choices, index, position) for position in range(len(listed.operands))]
        if any(halos):
            op.attributes[HALO] = ir.ArrayAttr.get(
                [ir.DenseI64ArrayAttr.get(sizes, context) for sizes in halos], context
            )


def _halo(listing: Listing, choices: Choices, index: int, position: int) -> list[int]:
    op, axes = listing.ops[index], _factor_axes(listing, choices, index)
    type_ = listing.values[op.operands[position]].type
    windows = [window for window in op.windows if window.operand == position]
    if op.rule is None or axes is None or type_ is None or not windows:
        return []
    found: dict[int, tuple[int, int]] = {}
    for window in windows:
        for factor in op.rule.operands[position][window.dim]:
            if op.rule.factors[factor].kind is FactorKind.PERMUTATION and axes[factor]:
                shards = total_size(axes[factor])
                found[window.dim] = halo_sizes(window, type_.shape[window.dim], shards)
    if not any(map(any, found.values())):
        return []
    split = [dim for dim, mine in enumerate(choices.operand(index, position).axes) if mine]
    return [size for dim in split for size in found.get(dim, (0, 0))]


def _is_alike(listing: Listing, choices: Choices, result: int, argument: int) -> bool:
    given, made = listing.arguments[argument].value, listing.results[result].value
    return listing.values[given].type == listing.values[made].type and choices.settled(
        given
    ) == choices.result(result)


def _count_partitions(walked: Walked, num_devices: int) -> None:
    attributes = walked.module.attributes
    if "mhlo.num_partitions" in attributes:
        count_type = ir.IntegerType.get_signless(32, walked.module.context)
        attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(count_type, num_devices)
