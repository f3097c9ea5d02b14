"""Sums that a loop adds up are made once, after it, as XLA moves them; changes of what it carries before it, but for some gathers."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check
from autoshard.mlir.forms import Form
from autoshard.plans import Plan
from tests.mlir.modules import counted_loop

W, X = "tensor<512x512xf32>", "tensor<64x512xf32>"
BYTES = 512 * 512 * 4


def agreed(loaded: pipeline.Loaded, plan: Plan) -> Plan:
    """The checker finds of the plan what it says."""
    findings = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).findings
    assert [finding.name for finding in findings if not finding.ok] == []
    return plan


def checked(loaded: pipeline.Loaded) -> Plan:
    """What the module costs as it is, which the checker finds too."""
    written = price_as_written(loaded)
    plan, loaded = written.plan(), written.loaded
    return agreed(loaded, plan)


def trips(body: str, totals: dict[str, str], total: str = W, result: str = "[{}, {}]") -> str:
    """A loop of 9 trips of a body, which makes of the gradient %p of a weight what each total becomes; a batch is split over 4 devices."""
    old, new = list(totals), list(totals.values())
    types, given = ", ".join([total] * len(old)), ", ".join(f"%s{i}: {total}" for i in range(len(old)))
    carried = [(name, f"%s{i}", total) for i, name in enumerate(old)]
    product = f"""%y = stablehlo.tanh %x : {X}
    %p = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
    """
    results = ", ".join([f"{total} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}"] * len(old))
    return f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<64x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}, {given}) -> ({results}) {{
  {counted_loop(9, [("%x", "%a", X), *carried], product + body, ["%y", *new], "w")}
  return {", ".join(f"%w#{i + 2}" for i in range(len(old)))} : {types}
}}"""


def loop(addend: str, result: str = "[{}, {}]") -> str:
    """Each trip adds %d, made of %p, to a total %t."""
    return trips(f"{addend}\n%u = stablehlo.add %t, %d : {W}", {"%t": "%u"}, result=result)


def added_up(addend: str, result: str = "[{}, {}]", form: Form = "xla") -> Plan:
    text = loop(addend, result)
    return checked(pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None, form=form)))


def planned(text: str) -> Plan:
    """The best plan."""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None))
    return agreed(loaded, pipeline.plan_loaded(loaded))


THIN = "tensor<1x512x512xf32>"
CUT = f"""%q = sdy.sharding_constraint %p <@mesh, [{{}}, {{}}]> : {W}
    %r = stablehlo.reshape %q : ({W}) -> {THIN}
    %k = sdy.sharding_constraint %r <@mesh, [{{}}, {{"x"}}, {{}}]> : {THIN}
    %d = stablehlo.reshape %k : ({THIN}) -> {W}"""
TURNED = f"%d = stablehlo.transpose %p, dims = [1, 0] : ({W}) -> {W}"


@pytest.mark.parametrize(
    ("addend", "runs"),
    [
        (TURNED, 1),
        (f"%d = stablehlo.tanh %p : {W}", 9),
        (f"%e = stablehlo.add %p, %t : {W}\n%d = stablehlo.transpose %e, dims = [1, 0] : ({W}) -> {W}", 9),
        (CUT, 9),
    ],
    ids=[
        "what keeps its elements",
        "what is made of the sum",
        "a total that is read twice",
        "what is cut on the way",
    ],
)
def test_after_the_loop(addend: str, runs: int) -> None:
    (sum_,) = (one for one in added_up(addend).price.collectives if one.kind == "all_reduce")
    assert (sum_.bytes, sum_.repeat) == (BYTES, runs)


HALF = "tensor<512x256xf32>"


def sliced(slices: str, added: str, total: str = HALF) -> Plan:
    """What a loop costs in which each trip adds %d and %e, made of the turned gradient %q of a weight, to two totals."""
    body = f"%q = stablehlo.transpose %p, dims = [1, 0] : ({W}) -> {W}\n{slices}\n%u = stablehlo.add %t, %d : {total}\n{added}"
    text = trips(body, {"%t": "%u", "%v": "%z"}, total)
    return checked(pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None)))


LEFT = f"%d = stablehlo.slice %q [0:512, 0:256] : ({W}) -> {HALF}"
BOTH = f"""{LEFT}
    %e = stablehlo.slice %q [0:512, 256:512] : ({W}) -> {HALF}"""
ADDED = f"%z = stablehlo.add %v, %e : {HALF}"


@pytest.mark.parametrize(
    ("slices", "added", "sum_bytes", "runs"),
    [
        (BOTH, ADDED, BYTES, 1),
        (LEFT, f"%z = stablehlo.negate %v : {HALF}", BYTES // 2, 1),
        (f"{LEFT}\n%e = stablehlo.slice %q [0:512, 64:320] : ({W}) -> {HALF}", ADDED, BYTES, 1),
        (BOTH, f"%h = stablehlo.tanh %e : {HALF}\n%z = stablehlo.add %v, %h : {HALF}", BYTES, 9),
    ],
    ids=["halves", "one half", "halves that overlap", "a half that is needed"],
)
def test_parts_are_added_up(slices: str, added: str, sum_bytes: int, runs: int) -> None:
    """As libtpu 0.0.51 has it: what is summed after the loop are the totals."""
    (sum_,) = (one for one in sliced(slices, added).price.collectives if one.kind == "all_reduce")
    assert (sum_.bytes, sum_.repeat) == (sum_bytes, runs)


NARROW = "tensor<512x512xbf16>"
THIN_X = "tensor<64x512xbf16>"


@pytest.mark.parametrize(
    ("turned", "sum_bytes"),
    [("", BYTES), (f"%d = stablehlo.convert %h : ({NARROW}) -> {W}", BYTES // 2)],
    ids=["converted only", "transposed too"],
)
def test_totals_of_narrow_sums(turned: str, sum_bytes: int) -> None:
    """libtpu 0.0.51 adds up in float32 what is converted, and converts back to sum where it is transposed, reshaped or sliced before."""
    product = f"""%n0 = stablehlo.convert %x : (tensor<64x512xf32>) -> {THIN_X}
    %n1 = stablehlo.convert %y : (tensor<64x512xf32>) -> {THIN_X}
    %g = stablehlo.dot_general %n0, %n1, contracting_dims = [0] x [0] : ({THIN_X}, {THIN_X}) -> {NARROW}
    %h = stablehlo.transpose %g, dims = [1, 0] : ({NARROW}) -> {NARROW}"""
    plan = added_up(f"{product}\n{turned or f'%d = stablehlo.convert %g : ({NARROW}) -> {W}'}")
    (sum_,) = (one for one in plan.price.collectives if one.kind == "all_reduce")
    assert (sum_.bytes, sum_.repeat) == (sum_bytes, 1)


def test_a_total_is_summed_as_wide_as_it_is() -> None:
    narrow = f"""%b = stablehlo.convert %q : ({W}) -> tensor<512x512xbf16>
    %d = stablehlo.convert %b : (tensor<512x512xbf16>) -> {W}"""
    plan = sliced(narrow, f"%z = stablehlo.add %v, %d : {W}", W)
    (sum_,) = (one for one in plan.price.collectives if one.kind == "all_reduce")
    assert (sum_.bytes, sum_.repeat) == (2 * BYTES, 1)


@pytest.mark.parametrize("wanted", ['[{"x"}, {}]', "[{}, {}]"])
def test_what_the_user_asks_for_on_the_way(wanted: str) -> None:
    """A gradient that is constrained before it is added up, as training steps in several batches have it."""
    turned = f"%e = stablehlo.transpose %p, dims = [1, 0] : ({W}) -> {W}"
    text = loop(f"{turned}\n%d = sdy.sharding_constraint %e <@mesh, {wanted}> : {W}")
    for asked in ('[{"x"}, {}]', "[{}, {}]"):
        text = text.replace(f" {{sdy.sharding = #sdy.sharding<@mesh, {asked}>}}", "", 1)
    plan = planned(text)
    assert plan.baselines and all(baseline.price.step_ns for baseline in plan.baselines)


def test_sums_of_nothing() -> None:
    none = "tensor<0x512xf32>"
    product = f"""%o = stablehlo.slice %x [0:64, 0:0] : (tensor<64x512xf32>) -> tensor<64x0xf32>
    %d = stablehlo.dot_general %o, %y, contracting_dims = [0] x [0] : (tensor<64x0xf32>, tensor<64x512xf32>) -> {none}"""
    plan = sliced(product, f"%z = stablehlo.add %v, %d : {none}", none)
    assert not any(one.bytes for one in plan.price.collectives)


def test_not_by_shardys_passes() -> None:
    (sum_,) = (one for one in added_up(TURNED, form="shardy").price.collectives if one.kind == "all_reduce")
    assert sum_.repeat == 9


def test_not_where_a_part_is_kept() -> None:
    """The device keeps its rows of the total, so each trip's sum is cut in the loop."""
    sums = [one for one in added_up(TURNED, '[{"x"}, {}]').price.collectives if one.emitted]
    assert {one.repeat for one in sums} == {9}


PRODUCT = f"%p = stablehlo.dot_general %s, {{m}}, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}"
READ = f"""sdy.mesh @mesh = <["x"=4, "y"=4]>
func.func @main(%a: {X}, %w: {W}) -> {X} {{
  {counted_loop(9, [("%s", "%a", X), ("%m", "%w", W)], PRODUCT.format(m="%m"), ["%p", "%m"])}
  return %r#1 : {X}
}}"""


@pytest.mark.parametrize(
    ("carried", "wanted", "trips"),
    [
        ('[{}, {"x", "y"}]', "[{}, {}]", [9]),
        ('[{}, {"x", "y"}]', '[{}, {"y"}]', [1, 9]),
        ('[{}, {"x", "y"}]', '[{"x", "y"}, {}]', [1]),
        ('[{}, {"x"}]', '[{"x", "y"}, {}]', [1, 9]),
    ],
)
def test_gathers_and_what_follows_a_slice_stay_in_the_loop(
    carried: str, wanted: str, trips: list[int]
) -> None:
    """Of a weight that no trip changes, split in columns: a gather; a permute and a gather; an exchange; a slice and an exchange."""
    request = pipeline.Request(memory_bytes=None, overlap="none")
    priced = pipeline.price(pipeline.load_module(READ.encode(), request))
    graph, problem = priced.graph, priced.problem
    (number,) = (n for n, e in enumerate(graph.edges) if e.trips and graph.nodes[e.reader].kernel >= 0)
    edge, shardings = graph.edges[number], graph.layouts[2].shardings
    supply = graph.nodes[edge.provider].choices.supplies[edge.result].tolist()
    demand = graph.nodes[edge.reader].choices.demands[edge.operand].tolist()
    origin, target = (
        next(at for at in ends if str(shardings[at]) == text)
        for ends, text in ((supply, carried), (demand, wanted))
    )
    steps = priced.reshards.collectives(edge.type, origin, target, edge.travels)
    table = problem.tables[int(problem.edge_table[number])]
    paid = table.cost[supply.index(origin), demand.index(target)]
    assert paid == sum(step.ns * runs for step, runs in zip(steps, trips, strict=True))


def test_a_gather_leaves_one_loop_of_several() -> None:
    """A weight that neither of two loops changes is gathered in each of the 3 trips of the outer one, not in the 9 of the inner one."""
    split = f'{W} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}'
    product = f"%g = sdy.sharding_constraint %m <@mesh, [{{}}, {{}}]> : {W}\n" + PRODUCT.format(m="%g")
    inner = counted_loop(9, [("%s", "%t", X), ("%m", "%v", W)], product, ["%p", "%m"], "inner")
    outer = counted_loop(3, [("%t", "%a", X), ("%v", "%w", W)], inner, ["%inner#1", "%v"], "outer", "j")
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: {X}, %w: {split}) -> {X} {{
  {outer}
  return %outer#1 : {X}
}}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None, overlap="none"))
    plan = checked(loaded)
    assert sum(one.repeat for one in plan.price.collectives if one.kind == "all_gather") == 3


def summed_by_hand(reducer: str, addend: str) -> Plan:
    """What a manual computation costs in which each of 9 trips adds %d, made of what the user sums over 4 devices, to a total."""
    trip = f"""%y = stablehlo.tanh %x : tensor<16x512xf32>
      %p = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<16x512xf32>, tensor<16x512xf32>) -> {W}
      %q = "stablehlo.all_reduce"(%p) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}}> ({{
      ^bb0(%k: tensor<f32>, %l: tensor<f32>):
        %m = stablehlo.{reducer} %k, %l : tensor<f32>
        stablehlo.return %m : tensor<f32>
      }}) : ({W}) -> {W}
      {addend}
      %u = stablehlo.add %t, %d : {W}"""
    carried = [("%x", "%b", "tensor<16x512xf32>"), ("%t", "%s", W)]
    body = counted_loop(9, carried, trip, ["%y", "%u"], "w") + f"\n    sdy.return %w#2 : {W}"
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<64x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}, %z: {W}) -> {W} {{
  %r = sdy.manual_computation(%a, %z) in_shardings=[<@mesh, [{{"x"}}, {{}}]>, <@mesh, [{{}}, {{}}]>]
      out_shardings=[<@mesh, [{{}}, {{}}]>] manual_axes={{"x"}} (%b: tensor<16x512xf32>, %s: {W}) {{{body}
  }} : (tensor<64x512xf32>, {W}) -> {W}
  return %r : {W}
}}"""
    return checked(pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None)))


KEPT = f"%d = stablehlo.transpose %q, dims = [1, 0] : ({W}) -> {W}"


@pytest.mark.parametrize(
    ("reducer", "addend", "runs"),
    [("add", KEPT, 1), ("maximum", KEPT, 9), ("add", f"%d = stablehlo.tanh %q : {W}", 9)],
    ids=["a sum", "a maximum", "what is made of the sum"],
)
def test_sums_of_the_user(reducer: str, addend: str, runs: int) -> None:
    """As XLA has it of 13 small programs with `psum` in a loop."""
    (sum_,) = (one for one in summed_by_hand(reducer, addend).price.collectives if one.kind == "all_reduce")
    assert (sum_.bytes, sum_.repeat) == (BYTES, runs)


def test_sums_are_made_once_where_each_trip_asks_for_what_is_carried() -> None:
    """In jax's explicit mode constraints follow the product, the addition and the loop, and all ask the same."""
    asked = "[{}, {}]"
    body = f"""%q = sdy.sharding_constraint %p <@mesh, {asked}> : {W}
    %s = stablehlo.add %t, %q : {W}
    %u = sdy.sharding_constraint %s <@mesh, {asked}> : {W}"""
    text = trips(body, {"%t": "%u"}, result=asked)
    text = text.replace(f"%s0: {W}", f"%s0: {W} {{sdy.sharding = #sdy.sharding<@mesh, {asked}>}}")
    text = text.replace(
        "return %w#2", f"%r = sdy.sharding_constraint %w#2 <@mesh, {asked}> : {W}\n  return %r"
    ).replace("64x512", "65536x512")
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None))
    (sum_,) = agreed(loaded, pipeline.plan_loaded(loaded)).price.collectives
    assert (sum_.kind, sum_.repeat) == ("all_reduce", 1)
