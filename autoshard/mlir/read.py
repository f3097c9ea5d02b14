"""From a parsed module to the `Listing` that the planner works on, and the handles that a writer needs to find its way back.

Reads types, rules, names, trip counts and the user's demands; knows nothing of strategies or prices. The user's module is not changed:
a clone is inlined and given Shardy's rules.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.mlir.attributes import called_by
from autoshard.mlir.confirmed import write_on_makers
from autoshard.mlir.context import ir
from autoshard.mlir.dead import drop_dead
from autoshard.mlir.early import update_early
from autoshard.mlir.facts import RULE, FactBook
from autoshard.mlir.flops import MATMULS
from autoshard.mlir.groups import group_members
from autoshard.mlir.handwritten import guessed_warning, user_collective
from autoshard.mlir.inlining import inline_calls
from autoshard.mlir.joining import joined_groups
from autoshard.mlir.linearity import is_zero
from autoshard.mlir.listing import DataFlow, Listing, Op, Source, Value
from autoshard.mlir.locations import Locations
from autoshard.mlir.manual import crossing_of, manual_axes_of, own_axes, refuse_useless, target_demand
from autoshard.mlir.matrices import refuse_malformed
from autoshard.mlir.meshes import add_mesh, all_meshes, lift_meshes
from autoshard.mlir.pipeline import run_pipeline
from autoshard.mlir.precision import has_default_precision
from autoshard.mlir.repeated import first_of_equals
from autoshard.mlir.repeats import scope_repeats
from autoshard.mlir.signature import arguments, results
from autoshard.mlir.source import SourceModule
from autoshard.mlir.tensors import Shardings, TensorTypes
from autoshard.mlir.turning import change_in_front
from autoshard.mlir.vacuous import drop_vacuous
from autoshard.mlir.walk import SHARDING, Flow, Walked, walk
from autoshard.sharding import AxisRef, Mesh, TensorSharding, TensorType

_IS_CUSTOM = re.compile(r", custom>$")
_GSPMD = "mhlo.sharding"
_WITH_SHARDING = frozenset({"sdy.sharding_constraint", "sdy.reshard"})


@dataclass(frozen=True, slots=True)
class Handles:
    """The module that was listed, walked: MLIR objects by the listing's numbers. Only rooms that see MLIR look inside."""

    walked: Walked
    mesh: Mesh
    entry: str
    user_rules: frozenset[int]  # ops whose rule the user wrote


def read(
    source: SourceModule,
    mesh: Mesh,
    *,
    drops_dead: bool = False,
    updates_early: bool = False,
    changes_in_front: bool = False,
) -> tuple[Listing, Handles]:
    """List a module for planning on `mesh`; if so asked without ops that nobody reads, with updates as soon as they can be made, and with
    products that are transposed brought to another sharding in front of that.

    Raises:
        AutoshardError: dynamic shapes, recursion, a demand on another mesh, or a sharding group that cannot be.
    """
    module = source.module.operation.clone().operation
    lift_meshes(module)
    add_mesh(module, mesh)
    inline_calls(module, source.main)
    drop_vacuous(module, source.main, mesh)
    if drops_dead:
        drop_dead(module, source.main)
    if changes_in_front:
        change_in_front(module, source.main)
    if updates_early:
        update_early(module, source.main)
    write_on_makers(module, source.main, mesh.symbol)
    walked = walk(module, source.main)
    locations = Locations(source.name)
    refuse_useless(walked, locations)
    refuse_malformed(walked, locations)
    user_rules = _user_rules(walked, locations)
    types = _value_types(walked, locations)
    run_pipeline(module, "sdy-manual-axes-cleanup,func.func(sdy-populate-op-sharding-rules)")
    handles = Handles(walked, mesh, source.main, user_rules)
    return _listing(source, handles, types, locations), handles


def _user_rules(walked: Walked, locations: Locations) -> frozenset[int]:
    """The ops that come with a rule; custom ones only on custom calls."""
    with_rule: set[int] = set()
    for index, op in enumerate(walked.ops):
        if RULE in op.attributes:
            if op.name != "stablehlo.custom_call" and _IS_CUSTOM.search(str(op.attributes[RULE])):
                raise AutoshardError(
                    f"a custom sharding rule on {op.name}",
                    where=locations.text(op.location),
                    fix="custom rules are for stablehlo.custom_call; leave `custom` out of the rule",
                )
            with_rule.add(index)
    return frozenset(with_rule)


def _value_types(walked: Walked, locations: Locations) -> list[TensorType | None]:
    types = TensorTypes()
    found: list[TensorType | None] = []
    for value in walked.values:
        try:
            found.append(types[value.type])
        except AutoshardError as error:
            raise AutoshardError(error.reason, where=locations.text(value.location), fix=error.fix) from None
    return found


def _listing(
    source: SourceModule, handles: Handles, types: list[TensorType | None], locations: Locations
) -> Listing:
    walked, mesh = handles.walked, handles.mesh
    shardings = Shardings(mesh, all_meshes(walked.module), source.context)
    repeats, warnings = scope_repeats(walked, locations)
    names = [""] * len(walked.values)
    manual = manual_axes_of(walked, mesh)
    ops = _ops(walked, types, repeats, manual, names, shardings, locations)
    flows = tuple(_flow(flow, repeats, manual, names, shardings, locations) for flow in walked.flows)
    listed_arguments = arguments(walked, shardings, locations)
    for argument in listed_arguments:
        names[argument.value] = argument.name
    members = group_members(walked, types, names, locations)
    return Listing(
        mesh,
        source.sha256,
        tuple(map(Value, types, names)),
        ops,
        flows,
        listed_arguments,
        results(walked, shardings, locations),
        (*warnings, *_ignored_annotations(walked), *_ruleless(ops), *_guessed_groups(ops)),
        joined_groups(members),
        members,
        first_of_equals(walked, [op.operands for op in ops]),
    )


def _ignored_annotations(walked: Walked) -> list[str]:
    """A warning where the module is annotated in GSPMD's notation, which nobody reads here."""
    main = walked.main.attributes
    of_main = sum(str(main[key]).count(f"{_GSPMD} =") for key in ("arg_attrs", "res_attrs") if key in main)
    count = of_main + sum(_GSPMD in op.attributes for op in walked.ops)
    if not count:
        return []
    return [
        f"{count} GSPMD annotations ({_GSPMD}) are ignored; lower the program with Shardy (jax_use_shardy_partitioner) to keep them"
    ]


def _ops(
    walked: Walked,
    types: list[TensorType | None],
    repeats: Sequence[int],
    manual: Sequence[tuple[AxisRef, ...]],
    names: list[str],
    shardings: Shardings,
    locations: Locations,
) -> tuple[Op, ...]:
    """The ops, whose rules are attached to them; fills in the names of their results."""
    distinct = list(dict.fromkeys(types))
    numbers = {type_: number for number, type_ in enumerate(distinct)}
    type_numbers = [numbers[type_] for type_ in types]
    book = FactBook(distinct, walked.module.context)
    ids = walked.ids
    listed: list[Op] = []
    for op, scope in zip(walked.ops, walked.op_scopes, strict=True):
        name = op.name
        operands = tuple([ids[value] for value in op.operands])
        produced = tuple([ids[value] for value in op.results])
        facts = book.of(
            op, name, tuple([type_numbers[v] for v in operands]), tuple([type_numbers[v] for v in produced])
        )
        if facts.attribute is not None:
            op.attributes[RULE] = facts.attribute
        label, location = locations.both(op.location)
        for value in produced:
            names[value] = label
        listed.append(
            Op(
                name,
                operands,
                produced,
                facts.rule,
                facts.flops,
                facts.is_matmul,
                repeats[scope],
                scope,
                location,
                *_demands(op, name, [types[value] for value in produced], shardings, location),
                facts.windows,
                facts.linear,
                facts.leaves_addends,
                is_zero(op),
                facts.reducer,
                manual[scope],
                user_collective(op, shardings.mesh),
                name in MATMULS and has_default_precision(op),
                called_by(op),
            )
        )
    return tuple(listed)


def _demands(
    op: ir.Operation, name: str, types: Sequence[TensorType | None], shardings: Shardings, where: str
) -> tuple[TensorSharding | None, tuple[TensorSharding, ...]]:
    """The user's sharding of the first ranked result, and those of the ranked results after it."""
    if name in _WITH_SHARDING:
        return shardings.read(op.attributes["sharding"], op.results[0].type, where), ()
    attribute = op.attributes.get(SHARDING)
    if attribute is None:
        return None, ()
    shardings.device_of(attribute, where)
    made = [result.type for result in op.results]
    each = zip(
        types, shardings.read_each(attribute, made, where), strict=False
    )  # one without results has one
    ranked = [sharding for type_, sharding in each if type_ is not None and type_.rank]
    return (ranked[0], tuple(ranked[1:])) if ranked else (None, ())


def _flow(
    flow: Flow,
    repeats: Sequence[int],
    manual: Sequence[tuple[AxisRef, ...]],
    names: list[str],
    shardings: Shardings,
    locations: Locations,
) -> DataFlow:
    names[flow.target], location = locations.both(flow.owner.location)
    return DataFlow(
        flow.kind,
        flow.target,
        tuple(Source(source.value, source.time, repeats[source.scope]) for source in flow.sources),
        flow.begin,
        flow.end,
        repeats[flow.scope],
        location,
        target_demand(flow, shardings, location),
        (*manual[flow.scope], *own_axes(flow, shardings.mesh)),
        crossing_of(flow, shardings),
        flow.body,
    )


def _guessed_groups(ops: Sequence[Op]) -> list[str]:
    return guessed_warning(
        [(op.name, op.location) for op in ops if op.collective is not None and not op.collective.is_exact]
    )


def _ruleless(ops: Sequence[Op]) -> list[str]:
    """One warning an op kind that has tensors and no rule."""
    found: dict[str, list[Op]] = {}
    for op in ops:
        if op.rule is None:
            found.setdefault(op.name, []).append(op)
    return [
        f"{len(same)} x {name}: no sharding rule is known, operands and results are replicated; first at {same[0].location}"
        for name, same in sorted(found.items())
    ]
