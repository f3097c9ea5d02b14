"""Sums that meet in an addition: XLA adds first and sums once, and what is planned, priced and written has it so."""

import importlib.util
import itertools
from collections import Counter

import numpy as np
import pytest

from autoshard import api, pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check
from autoshard.mlir.forms import Form
from autoshard.plans import Plan
from autoshard.problem import evaluate
from autoshard.solve import solve
from autoshard.xla import verify
from autoshard.xla.compiling import compile_planned

ROWS, INNER, COLUMNS = 256, 512, 128
A, W, P = f"tensor<{ROWS}x{INNER}xf32>", f"tensor<{COLUMNS}x{INNER}xf32>", f"tensor<{ROWS}x{COLUMNS}xf32>"
T = f"tensor<{COLUMNS}x{ROWS}xf32>"
ON_ROWS, ON_INNER, ON_BOTH = '[{"x"}, {}]', '[{}, {"y"}]', '[{"x"}, {"y"}]'
SUM = ROWS * COLUMNS * 4 // 2  # on one device, of which two split the rows


def sharded(type_: str, sharding: str) -> str:
    return f"{type_} {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"


def products(body: str, result: str = P, count: int = 3, returned: str = ON_ROWS) -> str:
    """Products %p0, %p1, ... as the gradients of a layer's input are, of which each device of an axis y has a part of what is summed."""
    arguments = [f"%a{i}: {sharded(A, ON_BOTH)}, %w{i}: {sharded(W, ON_INNER)}" for i in range(count)]
    made = [
        f"%p{i} = stablehlo.dot_general %a{i}, %w{i}, contracting_dims = [1] x [1] : ({A}, {W}) -> {P}"
        for i in range(count)
    ]
    lines = "\n".join([*made, body])
    return f"""sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main({", ".join(arguments)}, %r: {sharded(P, ON_ROWS)}) -> ({sharded(result, returned)}) {{
{lines}
return %s : {result}
}}"""


def added(left: str, right: str, name: str = "s", type_: str = P) -> str:
    return f"%{name} = stablehlo.add %{left}, %{right} : {type_}\n"


THREE = products(added("p0", "p1", "t") + added("t", "p2"))


def checked(loaded: pipeline.Loaded, plan: Plan) -> Plan:
    findings = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).findings
    assert [(finding.name, finding.detail) for finding in findings if not finding.ok] == []
    return plan


def loaded_of(module: str, form: Form = "xla") -> pipeline.Loaded:
    return pipeline.load_module(module.encode(), pipeline.Request(memory_bytes=None, form=form))


def priced(module: str, form: Form = "xla") -> Plan:
    written = price_as_written(loaded_of(module, form))
    return checked(written.loaded, written.plan())


def sums(plan: Plan) -> Counter[int]:
    return Counter(one.bytes for c in plan.price.collectives for one in c.emitted if one.kind == "all_reduce")


def unary(name: str, value: str, made: str) -> str:
    return f"%{made} = stablehlo.{name} %{value} : {P}\n"


def turned(value: str, made: str) -> str:
    return f"%{made} = stablehlo.transpose %{value}, dims = [1, 0] : ({P}) -> {T}\n"


AS_COMPILED = {
    "two": (products(added("p0", "p1"), count=2), 1),
    "gradients of q, k and v": (THREE, 1),
    "a tree of four": (products(added("p0", "p1", "t") + added("p2", "p3", "u") + added("t", "u"), count=4), 1),
    "a whole value after": (products(added("p0", "p1", "t") + added("t", "r"), count=2), 1),
    "a whole value before": (products(added("r", "p0", "t") + added("t", "p1"), count=2), 2),
    "a difference": (products(f"%s = stablehlo.subtract %p0, %p1 : {P}", count=2), 2),
    "negated": (products(unary("negate", "p1", "n") + added("p0", "n"), count=2), 2),
    "an addend read twice": (products(unary("tanh", "p0", "e") + added("p0", "p1", "t") + added("t", "e"), count=2), 2),
    "a sum read on the way": (products(added("p0", "p1", "t") + added("t", "p2", "u") + unary("tanh", "t", "e") + added("u", "e")), 2),
    "transposed alike": (products(turned("p0", "t") + turned("p1", "u") + added("t", "u", type_=T), T, 2, '[{}, {"x"}]'), 1),
}  # fmt: skip
"""How many sums libtpu 0.0.51 has for each."""


@pytest.mark.parametrize("name", AS_COMPILED)
def test_as_compiled(name: str) -> None:
    module, count = AS_COMPILED[name]
    assert sums(priced(module)) == {SUM: count}


def scattered_or_multiplied(kinds: str) -> str:
    """Scatters (s) and products (p) of what each of 8 devices has, added from the left."""
    made = {
        "s": f"""%v{{0}} = "stablehlo.scatter"(%zeros, %i, %u) <{{{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}}}> ({{{{
          ^bb0(%l: tensor<f32>, %m: tensor<f32>):
            %n = stablehlo.add %l, %m : tensor<f32>
            stablehlo.return %n : tensor<f32>
        }}}}) : ({P}, tensor<4096x1xi32>, tensor<4096x{COLUMNS}xf32>) -> {P}""",
        "p": f"""%v{{0}} = stablehlo.dot_general %h{{0}}, %u, contracting_dims = [0] x [0]
          : (tensor<4096x{ROWS}xf32>, tensor<4096x{COLUMNS}xf32>) -> {P}""",
    }
    arguments = [
        ("i", "tensor<4096x1xi32>"),
        ("u", f"tensor<4096x{COLUMNS}xf32>"),
        *((f"h{number}", f"tensor<4096x{ROWS}xf32>") for number, kind in enumerate(kinds) if kind == "p"),
    ]
    values = [made[kind].format(number) for number, kind in enumerate(kinds)]
    names = ["v0", *(f"t{number}" for number in range(1, len(kinds)))]
    sums_ = [added(names[n - 1], f"v{n}", names[n]) for n in range(1, len(kinds))]
    body = "\n".join([f"%zeros = stablehlo.constant dense<0.0> : {P}", *values, *sums_])
    return f"""sdy.mesh @mesh = <["x"=8]>
func.func @main({", ".join(f"%{name}: {sharded(type_, ON_ROWS)}" for name, type_ in arguments)}) -> ({sharded(P, "[{}, {}]")}) {{
{body}
return %{names[-1]} : {P}
}}"""


@pytest.mark.parametrize("kinds", ["ss", "ssp", "sss", "sp", "pps"])
def test_scatters_are_added_behind_constraints(kinds: str) -> None:
    """As libtpu 0.0.51 has what is written: one sum of all, with a constraint on each scatter, which keeps it from the other addend."""
    loaded = loaded_of(scattered_or_multiplied(kinds))
    written = price_as_written(loaded)
    plan = checked(loaded, written.plan())
    text = pipeline.write_planned(loaded, plan)
    assert text.count("sdy.sharding_constraint") == kinds.count("s")
    assert sums(plan) == sums(priced(text)) == {2 * SUM: 1}


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'autoshard[tpu]'"
)
@pytest.mark.parametrize("name", ["gradients of q, k and v", "a whole value before"])
def test_compiled(name: str) -> None:
    module, count = AS_COMPILED[name]
    (total,) = compile_planned(module.encode(), "tpu:v5e:2x4").totals().values()
    assert total.operand_bytes == count * SUM


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'autoshard[tpu]'"
)
def test_a_scatter_and_a_product_compiled() -> None:
    loaded = loaded_of(scattered_or_multiplied("sp"))
    text = pipeline.write_planned(loaded, price_as_written(loaded).plan())
    (total,) = compile_planned(text.encode(), "tpu:v5e:2x4").totals().values()
    assert total.operand_bytes == 2 * SUM


def test_shardys_passes_sum_each() -> None:
    assert sums(priced(THREE, "shardy")) == {SUM: 3}


def test_conversions_come_after_the_sum() -> None:
    """Addends that are converted before they are added are summed each, as narrow as they are."""
    narrow, wide = P.replace("f32", "bf16"), P
    module = products(
        "".join(f"%c{i} = stablehlo.convert %p{i} : ({narrow}) -> {wide}\n" for i in range(2))
        + added("c0", "c1"),
        count=2,
    )
    module = module.replace(f"({A}, {W}) -> {P}", f"({A}, {W}) -> {narrow}")
    assert sums(priced(module)) == {SUM // 2: 2}


def test_a_sum_that_is_sliced_is_summed_once() -> None:
    """Each device keeps its columns of the sum."""
    whole = "".join(f"%c{i} = sdy.sharding_constraint %p{i} <@mesh, {ON_ROWS}> : {P}\n" for i in range(2))
    plan = priced(products(whole + added("c0", "c1"), count=2, returned=ON_BOTH))
    assert sums(plan) == {SUM: 1}


def test_tensor_parallel_step() -> None:
    """The plan for fixed weights and activations: three products, one addition and one all-reduce, which its reader explains."""
    loaded = loaded_of(THREE)
    plan = checked(loaded, api.plan(THREE.encode(), memory_bytes=None))
    assert plan.status == "optimal"
    assert sums(plan) == {SUM: 1}
    (sum_,) = (c for c in plan.price.collectives if c.kind == "all_reduce")
    assert sum_.where.startswith("stablehlo.add")
    written = pipeline.write_planned(loaded, plan)
    assert "unreduced" not in written
    again = priced(written)
    assert (sums(again), again.price.communication_ns) == (sums(plan), plan.price.communication_ns)


def test_the_plan_is_the_cheapest_of_all_choices() -> None:
    module = products(added("p0", "p1"), count=2).replace('"x"=2, ', "").replace('{"x"}', "{}")
    problem = pipeline.price(loaded_of(module)).problem
    choices = itertools.product(
        *(np.flatnonzero(problem.node_mask(node)).tolist() for node in range(problem.node_count))
    )
    costs = (evaluate(problem, np.asarray(choice)).cost for choice in choices)
    assert solve(problem, time_limit_s=300, seed=0, threads=1).cost == min(
        cost for cost in costs if cost is not None
    )


def test_computes_the_same() -> None:
    plan = api.plan(THREE.encode(), memory_bytes=None)
    assert any("unreduced" in value.settled + value.produced for value in plan.values.values())
    report = verify(pipeline.write_planned(loaded_of(THREE), plan).encode(), THREE.encode(), 8)
    assert report.passed, report.to_text()
