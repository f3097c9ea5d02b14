"""What running the constructs of Shardy's own test suites showed: each module here once crashed, lost a demand or failed our own check."""

import pytest

from autoshard import pipeline
from autoshard.errors import AutoshardError
from autoshard.pipeline import Request
from autoshard.plans import Plan

T = "tensor<8x8xf32>"
MESH = 'sdy.mesh @m = <["x"=2, "y"=4]>\n'


def main(body: str, a: str = "", results: str = T) -> str:
    demand = f" {{sdy.sharding = #sdy.sharding<@m, {a}>}}" if a else ""
    return f"{MESH}func.func @main(%a: {T}{demand}) -> ({results}) {{\n{body}\n}}"


def per_value(*shardings: str) -> str:
    return f"sdy.sharding = #sdy.sharding_per_value<[{', '.join(f'<@m, {s}>' for s in shardings)}]>"


ON_ROWS = '[{"x"}, {}]'
NO_RESULTS = main(
    f"stablehlo.custom_call @foo(%a) {{has_side_effect = true, {per_value('[]')}}} : ({T}) -> ()\nreturn %a : {T}"
)
DOUBLED_COUNTER = main(f"""%c0 = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<32> : tensor<i32>
  %0:2 = stablehlo.while(%b = %a, %i = %c0) : {T}, tensor<i32>
   cond {{
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %2 = stablehlo.add %i, %i : tensor<i32>
    stablehlo.return %b, %2 : {T}, tensor<i32>
  }}
  return %0#0 : {T}""")
FUNCTION_EDGE = main(f"%0 = sdy.func_data_flow_edge %a : {T}\nreturn %0 : {T}", '[{"x"}, {}]')
EDGE_WITH_DEMAND = main(f'%0 = sdy.data_flow_edge %a sharding=<@m, [{{}}, {{"y"}}]> : {T}\nreturn %0 : {T}')
COMPOSITE = (
    main(
        f'%0 = stablehlo.composite "my.op" %a {{decomposition = @impl, {per_value("""[{}, {"y"}]""")}}} : ({T}) -> {T}\n'
        f"return %0 : {T}"
    )
    + f"\nfunc.func private @impl(%a: {T}) -> {T} {{\n%0 = stablehlo.tanh %a : {T}\nreturn %0 : {T}\n}}"
)
PARTED = per_value('[{"x", "y"}]', '[{"x"}p0, {"y"}p123]')
PARTED_BY_PRIORITY = main(
    f"%0:2 = stablehlo.custom_call @bar(%a) {{{PARTED}}} : ({T}) -> (tensor<64xf32>, {T})\nreturn %0#0, %0#1 : tensor<64xf32>, {T}",
    results=f"tensor<64xf32>, {T}",
)
SCALAR = per_value("[]")
SCALAR_DEMAND = main(
    f"%0 = stablehlo.constant {{{SCALAR}}} dense<1.0> : tensor<f32>\n"
    f"%1 = stablehlo.negate %0 {{{SCALAR}}} : tensor<f32>\nreturn %a, %1 : {T}, tensor<f32>",
    results=f"{T}, tensor<f32> {{sdy.sharding = #sdy.sharding<@m, []>}}",
)
IN_FOUR = per_value('[{}, {"y"}]')
BEYOND_ITS_SIZE = main(
    f"%0 = stablehlo.slice %a [0:8, 0:2] : ({T}) -> tensor<8x2xf32>\n"
    f"%1 = stablehlo.negate %0 {{{IN_FOUR}}} : tensor<8x2xf32>\nreturn %1 : tensor<8x2xf32>",
    results="tensor<8x2xf32>",
)
SUM_OVER_NOTHING = main(
    f"%0 = sdy.all_reduce {{}} %a out_sharding=<@m, {ON_ROWS}> : {T}\nreturn %0 : {T}", ON_ROWS
)


@pytest.mark.parametrize(
    "text",
    [
        NO_RESULTS,
        DOUBLED_COUNTER,
        FUNCTION_EDGE,
        EDGE_WITH_DEMAND,
        COMPOSITE,
        PARTED_BY_PRIORITY,
        SCALAR_DEMAND,
        BEYOND_ITS_SIZE,
        SUM_OVER_NOTHING,
    ],
)
def test_it_is_planned_and_the_plan_passes_our_own_check(text: str) -> None:
    plan = pipeline.plan_loaded(pipeline.load_module(text, Request(form="shardy")), time_limit_s=10)
    assert plan.status == "optimal"
    report = pipeline.check_plan(text, plan)
    assert report.passed, [f for f in report.findings if not f.ok]


@pytest.mark.parametrize(
    ("text", "argument", "result"),
    [
        (FUNCTION_EDGE, '[{"x"}, {}]', None),
        (EDGE_WITH_DEMAND, '[{}, {"y"}]', None),
        (COMPOSITE, None, '[{}, {"y"}]'),
    ],
)
def test_no_demand_is_lost(text: str, argument: str | None, result: str | None) -> None:
    plan = pipeline.plan_loaded(pipeline.load_module(text, Request(form="shardy")), time_limit_s=10)
    assert argument is None or plan.arguments[0].sharding == argument
    assert (
        result is None
        or plan.values[max(plan.values)].settled == result
        or plan.results[0].sharding == result
    )


def test_a_custom_rule_belongs_to_a_custom_call() -> None:
    """Shardy's newer verifier refuses it elsewhere, the one in jaxlib lets it pass."""
    rule = "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [i, j])->([i, j]) {i=8, j=8}, custom>"
    with pytest.raises(AutoshardError, match=r"custom sharding rule on stablehlo\.add"):
        pipeline.load_module(main(f"%0 = stablehlo.add %a, %a {{{rule}}} : {T}\nreturn %0 : {T}"), Request())


def test_an_argument_returned_in_another_sharding_is_moved() -> None:
    """`cost` took the argument's sharding for the result's, and nothing moved."""
    text = main(f"return %a : {T}", ON_ROWS, f'{T} {{sdy.sharding = #sdy.sharding<@m, [{{}}, {{"y"}}]>}}')
    found = pipeline.cost_loaded(pipeline.load_module(text, Request(form="shardy")))
    assert found.results[0].sharding == '[{}, {"y"}]'
    assert found.price.communication_ns > 0


def plan_of(text: str) -> Plan:
    return pipeline.plan_loaded(pipeline.load_module(text, Request(form="shardy")), time_limit_s=10)


def test_reshards_that_shardys_pass_gets_wrong_are_priced_through_the_whole() -> None:
    """Axes of 6 and 4 on dimensions of 12 and 8: its permute has results of another size, and MLIR refuses the module."""
    text = """sdy.mesh @m = <["x"=6, "y"=4]>
    func.func @main(%a: tensor<12x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y"}]>})
        -> (tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}, {"x"}]>}) {
      %0 = stablehlo.reshape %a : (tensor<12x8xf32>) -> tensor<8x12xf32>
      return %0 : tensor<8x12xf32> }"""
    plan = plan_of(text)
    assert plan.status == "optimal"
    assert pipeline.check_plan(text, plan).passed


def test_a_tensor_of_very_many_dimensions_is_planned() -> None:
    """22 dimensions of 2: axes are tried on the roomiest of them, not on all. In tiles of 8 by 128 they take 256 times their bytes."""
    shape = "x".join(["2"] * 22)
    text = f"{MESH}func.func @main(%a: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{\n%0 = stablehlo.tanh %a : tensor<{shape}xf32>\n"
    plan = plan_of(f"{text}return %0 : tensor<{shape}xf32>\n}}")
    assert plan.status == "optimal"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'sdy.mesh @m = <["a"=2]>\nfunc.func @main() {\n'
            'sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={"a"} () {\nsdy.return\n} : () -> ()\nreturn\n}',
            "a manual computation over a without operands and results",
        ),
    ],
)
def test_what_newer_verifiers_of_shardy_refuse(text: str, reason: str) -> None:
    with pytest.raises(AutoshardError) as refused:
        pipeline.load_module(text, Request())
    assert reason in refused.value.reason
    assert "<bytes>:" in (refused.value.where or "")


def test_cost_reads_a_planned_reduce_scatter_back() -> None:
    """A sum whose one reader slices it over exactly the summed axes is a reduce-scatter; it was priced as an all-reduce and a slice."""
    text = """sdy.mesh @m = <["x"=4, "y"=2]>
    func.func @main(%x: tensor<512x256xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>},
        %w: tensor<256x1024xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {"y"}]>},
        %v: tensor<1024x256xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}, {}]>})
        -> (tensor<512x256xf32> {sdy.sharding = #sdy.sharding<@m, [{"x", "y"}, {}]>}) {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x1024xf32>) -> tensor<512x1024xf32>
      %1 = stablehlo.tanh %0 : tensor<512x1024xf32>
      %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : (tensor<512x1024xf32>, tensor<1024x256xf32>) -> tensor<512x256xf32>
      return %2 : tensor<512x256xf32> }"""
    request = Request(form="shardy", memory_bytes=None)
    loaded = pipeline.load_module(text, request)
    plan = pipeline.plan_loaded(loaded)
    assert [c.kind for c in plan.price.collectives] == ["reduce_scatter"]
    read_back = pipeline.cost_loaded(pipeline.load_module(pipeline.write_planned(loaded, plan), request))
    assert [(c.kind, c.axes, c.ns) for c in read_back.price.collectives] == [
        (c.kind, c.axes, c.ns) for c in plan.price.collectives
    ]
    assert read_back.price.step_ns == plan.price.step_ns


def test_a_group_makes_no_partial_sum_of_an_argument_or_of_a_nonlinear_result() -> None:
    """The caller of a function has to know that its argument is partial, and tanh of a sum is not the sum of tanh."""
    partial = per_value('[{?}, {?}], unreduced={"x"}')
    dot = f"""%0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] {{{partial}}} : ({T}, {T}) -> {T}
    sdy.sharding_group %0 group_id=1 : {T}\n"""
    with pytest.raises(AutoshardError, match="partial sum"):
        pipeline.load_module(
            main(f"{dot}sdy.sharding_group %a group_id=1 : {T}\nreturn %0 : {T}"), Request(form="shardy")
        )
    tanh = f"%1 = stablehlo.tanh %0 : {T}\nsdy.sharding_group %1 group_id=1 : {T}\nreturn %1 : {T}"
    with pytest.raises(AutoshardError, match="cannot be a partial sum"):
        pipeline.load_module(main(dot + tanh), Request(form="shardy"))
