"""Modules with sharding groups from module to plan and back: members get one sharding, and it is the cheapest."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import pipeline
from autoshard.cost import follow, read_back
from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, new_context
from autoshard.mlir.forms import Form
from autoshard.mlir.passes import run_isolated
from autoshard.pipeline import Loaded
from autoshard.plans import Plan
from autoshard.problem import evaluate
from autoshard.sharding import parse_sharding
from autoshard.solve import solve
from autoshard.solve.brute import brute_force
from tests.cost.priced import HARDWARE, communication

T = "tensor<8x16xf32>"
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2]>\n'
ON_ROWS, ON_COLUMNS = '[{"x"}, {}]', '[{}, {"x"}]'


def group(value: str, number: int, type_: str = T) -> str:
    return f"sdy.sharding_group {value} group_id={number} : {type_}\n"


def demand(sharding: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"


def module(body: str, a: str = "", b: str = "", result: str = T) -> str:
    return f"{MESH}func.func @main(%a: {T} {a}, %b: {T} {b}) -> {result} {{\n{body}\n}}\n"


CHAIN = module(
    group("%a", 1 << 40)
    + f"%k = stablehlo.constant dense<1.0> : {T}\n%0 = stablehlo.add %a, %b : {T}\n%1 = stablehlo.tanh %0 : {T}\n"
    + f"%2 = stablehlo.multiply %1, %k : {T}\n"
    + group("%1", 1 << 40)
    + group("%1", 1)
    + group("%b", 1)
    + group("%k", 1)
    + f"return %2 : {T}",
    demand(ON_ROWS),
)

SUMS = module(
    f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : ({T}, {T}) -> tensor<16x16xf32>\n"
    "%1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>\n"
    + group("%0", 0, "tensor<16x16xf32>")
    + group("%1", 0, "tensor<16x16xf32>")
    + "return %1 : tensor<16x16xf32>",
    demand(ON_ROWS),
    demand(ON_ROWS),
    result='(tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})',
)

LOOP = module(
    f"""%c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %r:2 = stablehlo.while(%i = %c, %v = %a) : tensor<i32>, {T}
    cond {{ %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1> }}
    do {{ %o = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %o : tensor<i32>
      %w = stablehlo.sine %v : {T}
      {group("%w", 5)}{group("%v", 4)}%z = stablehlo.multiply %w, %w : {T}
      stablehlo.return %j, %z : tensor<i32>, {T} }}
    {group("%b", 5)}{group("%r#1", 4)}{group("%b", 4)}%s = stablehlo.add %r#1, %b : {T}
    return %s : {T}""",
    b=demand(ON_COLUMNS),
)

CALLS = module(
    f"%0 = call @f(%a) : ({T}) -> {T}\n%1 = call @f(%b) : ({T}) -> {T}\n%2 = stablehlo.add %0, %1 : {T}\nreturn %2 : {T}",
    demand(ON_ROWS),
) + (
    f"func.func private @f(%a: {T}) -> {T} {{\n%0 = stablehlo.exponential %a : {T}\n{group('%0', 2)}return %0 : {T}\n}}"
)

SORT = module(
    f"""%0:2 = "stablehlo.sort"(%a, %b) ({{ ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>):
      %t = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1> }}) {{dimension = 0 : i64, is_stable = true}} : ({T}, {T}) -> ({T}, {T})
    {group("%0#0", 1)}{group("%0#1", 1)}{group("%b", 1)}%1 = stablehlo.add %0#0, %0#1 : {T}
    return %1 : {T}""",
    demand(ON_ROWS),
)

SCATTERED = SUMS.replace(
    "contracting_dims = [0] x [0]",
    f"contracting_dims = [0] x [0] {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {ON_ROWS}>]>}}",
)

MODULES = {"chain": CHAIN, "sums": SUMS, "scattered": SCATTERED, "loop": LOOP, "calls": CALLS, "sort": SORT}


def planned(text: str, form: Form = "shardy") -> tuple[Loaded, Plan]:
    request = pipeline.Request(memory_bytes=None, form=form)
    loaded = pipeline.load_module(text.encode(), request)
    return loaded, pipeline.plan_loaded(loaded, time_limit_s=300)


def written_members(text: str) -> dict[int, list[str]]:
    """The shardings that a written module gives the operands of its groups, by group id; reads nothing but its text."""
    parsed = ir.Module.parse(text, new_context())
    found: dict[int, list[str]] = {}
    for op in _inside(parsed.operation):
        if op.name == "sdy.sharding_group":
            number = ir.IntegerAttr(op.attributes["group_id"]).value
            found.setdefault(number, []).append(_sharding(op.operands[0]))
    return found


def _inside(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation
                yield from _inside(child.operation)


def _sharding(value: Any) -> str:
    """The dimensions in `value`'s sharding, as text."""
    if isinstance(value, ir.OpResult):
        owner, number = value.owner.operation, value.result_number
    else:
        block = ir.BlockArgument(value)
        owner, number = block.owner.owner.operation, block.arg_number
    if owner.name == "func.func":
        attribute = str(ir.ArrayAttr(owner.attributes["arg_attrs"])[number])
    elif owner.name in ("sdy.reshard", "sdy.sharding_constraint"):
        attribute = str(owner.attributes["sharding"])
    else:
        attribute = str(owner.attributes["sdy.sharding"]).split("<@mesh, ")[1 + number]
    return attribute[attribute.rindex("[{") : attribute.rindex("}]") + 2]


@pytest.mark.parametrize("name", MODULES)
def test_members_have_one_sharding(name: str) -> None:
    """Read from the written module; values in two groups join them, and what is demanded of one is what all have."""
    loaded, plan = planned(MODULES[name])
    text = pipeline.write_planned(loaded, plan)
    members = written_members(text)
    assert sum(map(len, members.values())) == text.count("sdy.sharding_group") >= 2
    assert len({sharding for same in members.values() for sharding in same}) == 1
    wanted = {"chain": ON_ROWS, "scattered": ON_ROWS, "loop": ON_COLUMNS}.get(name)
    assert wanted is None or {s for same in members.values() for s in same} == {wanted}


@pytest.mark.parametrize("name", MODULES)
def test_shardys_passes_accept_what_is_written(name: str) -> None:
    """The passes that import and remove groups run, and those that insert reshards find nothing that the plan did not pay for."""
    loaded, plan = planned(MODULES[name])
    text = pipeline.write_planned(loaded, plan)
    parsed = ir.Module.parse(text, new_context())
    done = run_isolated(parsed.operation, "sdy-sharding-group-import,sdy-remove-sharding-groups")
    assert "sdy.sharding_group" not in str(done)
    report = pipeline.check_plan(MODULES[name].encode(), plan, deep=True)
    assert report.passed, report.to_text()


@pytest.mark.parametrize("form", ["shardy", "xla"])
@pytest.mark.parametrize("name", ["chain", "loop", "scattered"])
def test_numbers_stay(name: str, form: Form, tmp_path: Path) -> None:
    """The planned module computes on four devices what the original does on one; XLA takes it in both forms."""
    loaded, plan = planned(MODULES[name], form)
    files = {"planned": pipeline.write_planned(loaded, plan), "against": MODULES[name]}
    for file, text in files.items():
        (tmp_path / f"{file}.mlir").write_text(text)
    report = pipeline.verify_modules(*(str(tmp_path / f"{file}.mlir") for file in files), devices=4)
    assert report.passed, report.to_text()
    assert ("sdy.sharding_group" in files["planned"]) == (form == "shardy")


def opposed(groups: str) -> str:
    """The reader of one argument wants it split by rows, that of the other by columns."""
    return module(
        groups
        + f"%0 = sdy.sharding_constraint %a <@mesh, {ON_ROWS}> : {T}\n"
        + f"%1 = sdy.sharding_constraint %b <@mesh, {ON_COLUMNS}> : {T}\n"
        + f"return %0, %1 : {T}, {T}",
        result=f"({T} {demand(ON_ROWS)}, {T} {demand(ON_COLUMNS)})",
    )


def cheapest_when_equal(loaded: Loaded, values: tuple[int, ...]) -> int:
    """The cheapest choice of a problem without groups that leaves these values with one sharding, by trying them all."""
    priced = pipeline.price(loaded)
    costs: list[int] = []
    for numbers in product(*map(range, priced.problem.strategy_counts.tolist())):
        choice = np.asarray(numbers)
        cost = evaluate(priced.problem, choice).cost
        chosen = read_back(priced, choice).values
        if cost is not None and len({chosen[value].settled for value in values}) == 1:
            costs.append(cost)
    return min(costs)


def test_a_group_costs_what_it_must() -> None:
    """Both arguments whole and sliced, or one exchanged: the cheaper by formula; no less than without the group, which is free."""
    free, tied = opposed(""), opposed(group("%a", 3) + group("%b", 3))
    loaded, plan = planned(tied)
    moves = communication(loaded.mesh)
    slice_ns = -(-2 * 8 * 16 * 4 // 2 * 10**9 // int(HARDWARE.hbm_bytes_per_s))
    assert planned(free)[1].price.step_ns == 0
    assert plan.price.step_ns == min(2 * slice_ns, moves.all_to_all_ns(8 * 16 * 4 // 2, ["x"]))


def test_arguments_in_the_form_for_xla() -> None:
    """The groups are gone, and what main says of its arguments is the same."""
    loaded, plan = planned(opposed(group("%a", 3) + group("%b", 3)), "xla")
    text = pipeline.write_planned(loaded, plan)
    parsed = ir.Module.parse(text, new_context())
    main = parsed.body.operations[1].operation
    shardings = {_sharding(argument) for argument in main.regions[0].blocks[0].arguments}
    assert "sdy.sharding_group" not in text
    assert len(shardings) == 1


ARGUMENTS = [None, '[{"x", ?}, {?}]', '[{?}, {"x", ?}]', ON_ROWS, "[{}, {?}]", '[{?}, {?}], replicated={"x"}']
FEW = 'sdy.mesh @mesh = <["x"=2]>\n'


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(ARGUMENTS), st.sampled_from(ARGUMENTS))
def test_random_demands_on_two_members(first: str | None, second: str | None) -> None:
    """Either a plan as cheap as the best of all ungrouped choices with equal shardings, or a refusal that names both demands."""
    a, b = (demand(s) if s is not None else "" for s in (first, second))
    body = f"%0 = stablehlo.tanh %b : {T}\nreturn %a, %0 : {T}, {T}"
    texts = [
        module(groups + body, a, b, f"({T}, {T} {demand(ON_COLUMNS)})").replace(MESH, FEW)
        for groups in ("", group("%a", 0) + group("%b", 0))
    ]
    request = pipeline.Request(memory_bytes=None, form="shardy")
    free = pipeline.load_module(texts[0].encode(), request)
    try:
        expected = cheapest_when_equal(free, (0, 1))
    except ValueError:
        with pytest.raises(AutoshardError, match="sharded differently") as refused:
            pipeline.load_module(texts[1].encode(), request)
        assert str(first) in refused.value.reason
        assert str(second) in refused.value.reason
        return
    tied = pipeline.price(pipeline.load_module(texts[1].encode(), request))
    without = brute_force(pipeline.price(free).problem).cost
    assert without is not None
    assert brute_force(tied.problem).cost == solve(tied.problem, time_limit_s=300).cost == expected >= without
    assert evaluate(tied.problem, follow(tied, {})).cost is not None


def test_contradiction_names_both_demands() -> None:
    """With what was asked, of whom, and the line of the group that ties it."""
    text = CHAIN.replace(f"%b: {T} ", f"%b: {T} {demand(ON_COLUMNS)}")
    with pytest.raises(AutoshardError) as refused:
        planned(text)
    assert refused.value.reason.splitlines()[1:] == [
        '  argument 0 `arg0` must be [{"x"}, {}] (<bytes>:2)',
        "    and is arg0 (sdy.sharding_group group_id=1099511627776 at <bytes>:3)",
        '  argument 1 `arg1` must be [{}, {"x"}] (<bytes>:2)',
        "    and is arg1 (sdy.sharding_group group_id=1 at <bytes>:10)",
    ]


def test_a_group_without_a_common_sharding_is_refused() -> None:
    """State is to be split as it is returned, and the other member is made whole along the dimension that it is sorted along."""
    text = (
        SORT.replace(demand(ON_ROWS), "{tf.aliasing_output = 0 : i32}")
        .replace(f"-> {T} {{\n", f"-> ({T} {demand(ON_ROWS)}) {{\n")
        .replace("%b group_id", "%a group_id")
    )
    with pytest.raises(AutoshardError, match=r"no one sharding suits:\n  arg0 .*\n  stablehlo.sort"):
        planned(text)


def sorted_pair(first: str, second: str) -> str:
    sort = SORT.replace(demand(ON_ROWS), "").replace(
        "is_stable = true}",
        f"is_stable = true, sdy.sharding = #sdy.sharding_per_value<[<@mesh, {first}>, <@mesh, {second}>]>}}",
    )
    return "".join(line for line in sort.splitlines(keepends=True) if "sharding_group" not in line)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("[{?}, {?}]", ON_COLUMNS),
        (ON_COLUMNS, '[{}, {"y"}]'),
        (ON_ROWS, '[{"y", ?}, {?}]'),
        ("[{}, {}]", '[{?}, {?}], replicated={"y"}'),
    ],
)
def test_demands_on_both_results_of_an_op(first: str, second: str) -> None:
    """Each is as asked in the written module: as the op makes it, or as it is resharded right after for all readers."""
    text = sorted_pair(first, second)
    loaded, plan = planned(text)
    report = pipeline.check_plan(text.encode(), plan, deep=True)
    assert report.passed, report.to_text()
    parsed = ir.Module.parse(pipeline.write_planned(loaded, plan), new_context())
    (sort,) = (op for op in _inside(parsed.operation) if op.name == "stablehlo.sort")
    for result, asked in zip(sort.results, (first, second), strict=True):
        read = [use.owner.operation for use in result.uses]
        settled = read[0].results[0] if [op.name for op in read] == ["sdy.reshard"] else result
        found = parse_sharding(_sharding(settled), loaded.mesh)
        assert found.satisfies(parse_sharding(asked, loaded.mesh)), f"{found} is not {asked}"


@pytest.mark.parametrize("form", ["shardy", "xla"])
def test_numbers_stay_with_demands_on_both_results(form: Form, tmp_path: Path) -> None:
    """Also where one of them is resharded right after the op."""
    text = sorted_pair(ON_COLUMNS, '[{"y"}, {}]')
    loaded, plan = planned(text, form)
    (tmp_path / "planned.mlir").write_text(pipeline.write_planned(loaded, plan))
    (tmp_path / "against.mlir").write_text(text)
    report = pipeline.verify_modules(
        str(tmp_path / "planned.mlir"), str(tmp_path / "against.mlir"), devices=4
    )
    assert report.passed, report.to_text()
