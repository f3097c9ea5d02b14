"""Sums that are scattered, against Shardy's own passes."""

import pytest

from autoshard import pipeline
from autoshard.cost import recall
from autoshard.mlir.forms import Form
from autoshard.plans import Plan
from autoshard.pricing import price
from autoshard.problem import evaluate


@pytest.mark.parametrize("result", ['[{"x", "y"}, {}]', '[{"y", "x"}, {}]', '[{"y"}, {"x"}]'])
def test_axes_in_any_order(result: str) -> None:
    """Shardy names the axes of a reduce-scatter in the order in which the result has them, a plan in that of the mesh."""
    rows, made = "tensor<4096x512xf32>", "tensor<512x512xf32>"
    text = f"""
      sdy.mesh @mesh = <["x"=2, "y"=4]>
      func.func @main(%a: {rows} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x", "y"}}, {{}}]>}})
          -> ({made} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{
        %0 = stablehlo.tanh %a : {rows}
        %1 = stablehlo.dot_general %0, %0, contracting_dims = [0] x [0] : ({rows}, {rows}) -> {made}
        return %1 : {made}
      }}"""
    request = pipeline.Request(hardware="tpu-v4")
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), request))
    assert [one.kind for one in plan.price.collectives] == ["reduce_scatter"]
    assert pipeline.check_plan(text.encode(), plan, deep=True).passed


def test_sums_that_are_made_whole_first() -> None:
    """Where summing all and slicing is cheaper than a loop that scatters the sum, Shardy's passes make a reduce-scatter of the two."""
    text = """
      sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
      func.func @main(%a: tensor<32768x1280xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>},
          %b: tensor<32768x5120xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>})
          -> (tensor<1280x5120xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>}) {
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0]
          : (tensor<32768x1280xbf16>, tensor<32768x5120xbf16>) -> tensor<1280x5120xbf16>
        %1 = stablehlo.convert %0 : (tensor<1280x5120xbf16>) -> tensor<1280x5120xf32>
        %2 = stablehlo.multiply %1, %1 : tensor<1280x5120xf32>
        %3 = stablehlo.exponential %1 : tensor<1280x5120xf32>
        %4 = stablehlo.add %2, %3 : tensor<1280x5120xf32>
        return %4 : tensor<1280x5120xf32>
      }"""
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), pipeline.Request(hardware="tpu-v5p")))
    assert [one.kind for one in plan.price.collectives] == ["all_reduce", "all_slice"]
    assert pipeline.check_plan(text.encode(), plan, deep=True).passed


_WHOLE, _ROWS = "[{}, {}]", '[{"x"}, {}]'
_MADE = "tensor<1024x1024xf32>"
_KEPT = f"%1 = sdy.sharding_constraint %0 <@mesh, {_WHOLE}> : {_MADE}\n"


def _summed(body: str, result: str = _ROWS, axes: str = '"x"', demand: str = "") -> bytes:
    """A product that is summed over these axes, and what is done with it."""
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func @main(%a: tensor<1024x4096xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{{axes}}}]>}},
          %b: tensor<4096x1024xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{{axes}}}, {{}}]>}})
          -> ({_MADE} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {demand}
          : (tensor<1024x4096xf32>, tensor<4096x1024xf32>) -> {_MADE}
        {body}
      }}""".encode()


def _exponential(of: str) -> str:
    return f"%e = stablehlo.exponential {of} : {_MADE}\n return %e : {_MADE}"


_SLICED_ONCE = {
    "a constraint": _summed(_KEPT + _exponential("%1")),
    "the demand of its own op": _summed(
        _exponential("%0"), demand=f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {_WHOLE}>]>}}"
    ),
    "a result": _summed(f"{_KEPT} return %1 : {_MADE}"),
    "constraints": _summed(
        f"{_KEPT} %2 = sdy.sharding_constraint %1 <@mesh, {_ROWS}> : {_MADE}\n" + _exponential("%2")
    ),
    "what carries it": _summed(
        f"{_KEPT} %2 = stablehlo.optimization_barrier %1 : {_MADE}\n" + _exponential("%2")
    ),
    "more axes": _summed(_KEPT + _exponential("%1"), '[{"x", "y"}, {}]'),
    "another dimension": _summed(_KEPT + _exponential("%1"), '[{"x"}, {"y"}]'),
    "two axes, the other way round": _summed(_KEPT + _exponential("%1"), '[{"y"}, {"x"}]', '"x", "y"'),
    "a batch that is split": _summed(
        f'%1 = sdy.sharding_constraint %0 <@mesh, [{{"y"}}, {{}}]> : {_MADE}\n' + _exponential("%1"),
        '[{"y"}, {"x"}]',
    ),
    "a constraint that slices it, for two readers": _summed(
        f"%1 = sdy.sharding_constraint %0 <@mesh, {_ROWS}> : {_MADE}\n"
        f"%2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [0] : ({_MADE}, {_MADE}) -> {_MADE}\n"
        f"%3 = stablehlo.add %1, %2 : {_MADE}\n" + _exponential("%3"),
        demand=f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {_WHOLE}>]>}}",
    ),
    "a priority": _summed(_KEPT + _exponential("%1"), '[{"x"}p1, {}]'),
}
_SLICED_BY_A_CONSTRAINT = {
    "open": ('[{?}, {"z", ?}]', '[{}, {"z", "y", "x"}]'),
    "closed": ('[{}, {"z", "y", "x"}]', '[{}, {"z", "y", "x"}]'),
    "a priority": ('[{"x"}, {"y"}]', '[{"x"}p1, {"y"}]'),
}
_SLICED_FIRST = {
    "a gather": ('[{}, {"y"}]', '[{"x"}, {}]'),
    "an exchange": ('[{}, {"y"}]', '[{"x", "y"}, {}]'),
    "what its own op is demanded as": ('[{"x"}, {}]', '[{}, {"x"}]'),
}
_SUMMED_FIRST = {
    "an axis before that of the sum": _summed(_KEPT + _exponential("%1"), '[{"y", "x"}, {}]'),
    "a part of the sum's axes": _summed(_KEPT + _exponential("%1"), axes='"x", "y"'),
    "another reader": _summed(
        f"{_KEPT} %2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [0] : ({_MADE}, {_MADE}) -> {_MADE}\n"
        f"%3 = stablehlo.dot_general %2, %1, contracting_dims = [1] x [0] : ({_MADE}, {_MADE}) -> {_MADE}\n"
        + _exponential("%3")
    ),
}


def _kinds(plan: Plan) -> set[str]:
    return {one.kind for one in plan.price.collectives}


def _merged(module: bytes, hardware: str, form: Form) -> Plan:
    """The plan, which has a reduce-scatter, as Shardy's passes and what prices the written module have it."""
    request = pipeline.Request(hardware=hardware, form=form)
    loaded = pipeline.load_module(module, request)
    plan = pipeline.plan_loaded(loaded)
    assert "reduce_scatter" in _kinds(plan)
    assert pipeline.check_plan(module, plan, deep=True).passed
    written = pipeline.write_planned(loaded, plan).encode()
    assert pipeline.cost_loaded(pipeline.load_module(written, request)).price.step_ns == plan.price.step_ns
    return plan


@pytest.mark.parametrize("module", _SLICED_ONCE.values(), ids=_SLICED_ONCE)
@pytest.mark.parametrize(("hardware", "form"), [("h100", "xla"), ("tpu-v5e", "shardy")])
def test_sums_that_a_demand_keeps_whole(module: bytes, hardware: str, form: Form) -> None:
    """Shardy merges such a sum with the one slice that reads it, and a plan pays for that, as does what prices the written module."""
    assert "all_reduce" not in _kinds(_merged(module, hardware, form))


@pytest.mark.parametrize(("demand", "result"), _SLICED_BY_A_CONSTRAINT.values(), ids=_SLICED_BY_A_CONSTRAINT)
@pytest.mark.parametrize(("hardware", "form"), [("h100", "xla"), ("tpu-v5e", "shardy")])
def test_sums_that_a_constraint_slices(demand: str, result: str, hardware: str, form: Form) -> None:
    """Also by axes in an order that the kernel itself does not scatter to."""
    module = f"""
      sdy.mesh @mesh = <["x"=4, "y"=2, "z"=2]>
      func.func @main(%a: {_MADE} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"y", "x"}}]>}},
          %b: {_MADE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"y", "x"}}, {{"z"}}]>}})
          -> ({_MADE} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({_MADE}, {_MADE}) -> {_MADE}
        %1 = sdy.sharding_constraint %0 <@mesh, {demand}> : {_MADE}
        return %1 : {_MADE}
      }}""".encode()
    _merged(module, hardware, form)


@pytest.mark.parametrize(("demand", "result"), _SLICED_FIRST.values(), ids=_SLICED_FIRST)
@pytest.mark.parametrize(("hardware", "form"), [("h100", "xla"), ("tpu-v5e", "shardy")])
def test_sums_that_are_sliced_before_more(demand: str, result: str, hardware: str, form: Form) -> None:
    """The slice is the first of the steps to what the reader, or the demand on the sum itself, asks for."""
    module = f"""
      sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func @main(%a: {_MADE} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}},
          %b: {_MADE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}})
          -> ({_MADE} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
          {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {demand}>]>}} : ({_MADE}, {_MADE}) -> {_MADE}
        return %0 : {_MADE}
      }}""".encode()
    assert "all_reduce" not in _kinds(_merged(module, hardware, form))


@pytest.mark.parametrize("module", _SUMMED_FIRST.values(), ids=_SUMMED_FIRST)
def test_sums_that_are_needed_first(module: bytes) -> None:
    """What Shardy's passes do not merge is paid for as two."""
    plan = pipeline.plan_loaded(pipeline.load_module(module, pipeline.Request(hardware="h100")))
    assert {"all_reduce", "all_slice"} <= _kinds(plan)
    assert pipeline.check_plan(module, plan, deep=True).passed


def test_recalled_sums_are_left_to_their_reader() -> None:
    """A plan says nothing of who makes the sum; what is read back from it costs what the plan does."""
    loaded = pipeline.load_module(_SLICED_ONCE["a constraint"], pipeline.Request(hardware="h100"))
    plan = pipeline.plan_loaded(loaded)
    priced = price(loaded)
    choice = recall(priced, plan.decisions())
    assert choice is not None
    assert evaluate(priced.problem, choice).cost == plan.price.step_ns
