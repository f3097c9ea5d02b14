"""A step in the order of the compiler's scheduler: what it waits for of written modules."""

import importlib.util
from dataclasses import asdict
from io import StringIO
from math import ceil

import pytest
from rich.console import Console

from autoshard import pipeline
from autoshard.cost import read_back, schedule_of
from autoshard.plans import Plan, ScheduledStep
from autoshard.report.summary import print_summary, summary_data
from autoshard.xla.compiling import compile_planned
from costmodels import load
from tests.mlir.modules import counted_loop
from tests.problem.strategies import valid_choices

W, SPLIT, WHOLE, COLUMNS = "tensor<4096x4096xbf16>", '[{"x"}, {}]', "[{}, {}]", '[{}, {"x"}]'
W_BYTES = 4096 * 4096 * 2
PRODUCT = "contracting_dims = [1] x [0]"


def shards(sharding: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"


def module(body: str, rows: int, weights: str, given: str = SPLIT, returned: str = SPLIT) -> str:
    """Of activations, which are given, and two weights of which the second is split over rows."""
    x = f"tensor<{rows}x4096xbf16>"
    text = f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {x} {shards(given)}, %v: {W} {shards(weights)}, %w: {W} {shards(SPLIT)})
          -> ({x} {shards(returned)}) {{
        {body}
      }}"""
    return text.replace("X", x)


MOVED = f"""
  %0 = stablehlo.dot_general %a, %v, {PRODUCT} : (X, {W}) -> X
  %c = sdy.sharding_constraint %0 <@mesh, {COLUMNS}> : X
  %m = sdy.sharding_constraint %c <@mesh, {WHOLE}> : X
  %1 = stablehlo.dot_general %m, %v, {PRODUCT} : (X, {W}) -> X
  return %1 : X"""
CHAIN = module(MOVED, 8192, COLUMNS, WHOLE, COLUMNS)

LAYER = f"""
  %s = sdy.sharding_constraint %c <@mesh, {WHOLE}> : X
  %next = stablehlo.dot_general %s, %v, {PRODUCT} : (X, {W}) -> X"""
TURNS = f"""
  {counted_loop(8, (("%c", "%a", "X"),), LAYER, ("%next",))}
  return %r#1 : X"""
LOOP = module(TURNS, 512, COLUMNS, COLUMNS, COLUMNS)


GATHERED = f"""
  %k = sdy.sharding_constraint %u <@mesh, {SPLIT}> : {W}
  %g = sdy.sharding_constraint %k <@mesh, {WHOLE}> : {W}
  %next = stablehlo.dot_general %c, %g, {PRODUCT} : (X, {W}) -> X"""


def gathering(trips: int) -> str:
    """A loop that gathers a weight, which it never changes, in every trip."""
    turns = counted_loop(trips, (("%c", "%a", "X"), ("%u", "%w", W)), GATHERED, ("%next", "%u"))
    return module(f"{turns}\nreturn %r#1 : X", 512, WHOLE)


TWICE = f"""
  %n1 = stablehlo.dot_general %c, %v, {PRODUCT} : (X, {W}) -> X
  %n2 = stablehlo.dot_general %c, %v2, {PRODUCT} : (X, {W}) -> X
  %n3 = stablehlo.add %n1, %n2 : X
  %next = sdy.sharding_constraint %n3 <@mesh, {COLUMNS}> : X"""
IN_AND_BEHIND = f"""
  %v2 = stablehlo.negate %v : {W}
  {counted_loop(8, (("%c", "%a", "X"),), TWICE, ("%next",))}
  %y1 = stablehlo.dot_general %r#1, %v, {PRODUCT} : (X, {W}) -> X
  %y2 = stablehlo.dot_general %r#1, %v2, {PRODUCT} : (X, {W}) -> X
  %y3 = stablehlo.add %y1, %y2 : X
  return %y3 : X"""
BEHIND = module(IN_AND_BEHIND, 512, COLUMNS, COLUMNS, COLUMNS)


def cost(text: str, hardware: str = "tpu-v5e:scheduler", topology: tuple[int, ...] | None = (4,)) -> Plan:
    """Of chips in a row, unless told otherwise."""
    asked = pipeline.Request(memory_bytes=None, hardware=hardware, topology=topology)
    return pipeline.cost_loaded(pipeline.load_module(text.encode(), asked))


def printed(plan: Plan) -> str:
    console = Console(width=200, file=StringIO())
    print_summary(plan, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def scheduled(plan: Plan) -> ScheduledStep:
    assert plan.price.scheduled is not None
    return plan.price.scheduled


TWO_LAYERS = f"""
  %0 = stablehlo.dot_general %a, %v, {PRODUCT} : (X, {W}) -> X
  %1 = stablehlo.dot_general %0, %w, {PRODUCT} : (X, {W}) -> X
  return %1 : X"""


@pytest.mark.parametrize("rows", [1024, 2048, 65536])
def test_a_gathered_weight_comes_behind_the_product_in_front(rows: int) -> None:
    """What takes longer than that, by the scheduler's own times, is waited for; products and links are at its prices."""
    plan = cost(module(TWO_LAYERS, rows, WHOLE))
    (gather,) = plan.price.collectives
    gather_ns = gather.ns + gather.hidden_ns
    assert gather_ns == ceil(W_BYTES / 93.3)
    product_ns = plan.price.compute_ns // 2
    waited = max(0, gather_ns - load("tpu-v5e:scheduler").covered_ns(product_ns))
    assert scheduled(plan) == ScheduledStep(plan.price.compute_ns + waited, gather_ns, waited)
    assert (waited > 0) == (rows < 65536)


def test_what_the_next_product_needs_of_the_last_is_waited_for() -> None:
    """Activations are gathered between two products of a chain."""
    plan = cost(CHAIN)
    gather_ns = ceil(8192 * 4096 * 2 / 93.3)
    assert scheduled(plan) == ScheduledStep(plan.price.compute_ns + gather_ns, gather_ns, gather_ns)
    assert "waiting for 719.3 µs of 719.3 µs of asynchronous collectives" in printed(plan)


def test_a_loop_waits_in_every_trip() -> None:
    """For the state that each trip gathers of what the last one made."""
    plan = cost(LOOP)
    found = scheduled(plan)
    assert found.asynchronous_ns == found.waited_ns == 8 * ceil(512 * 4096 * 2 / 93.3)


@pytest.mark.parametrize("trips", [2, 3, 8])
def test_a_loop_waits_for_what_it_gathers_again_and_again(trips: int) -> None:
    """As often as it turns, also where that is once and once more."""
    found = scheduled(cost(gathering(trips)))
    assert found.asynchronous_ns == found.waited_ns == trips * ceil(W_BYTES / 93.3)


def test_what_is_read_in_a_loop_and_behind_it_is_waited_for_in_both() -> None:
    """Eight times of what the loop carries, and once of what it leaves."""
    found = scheduled(cost(BEHIND))
    assert found.asynchronous_ns == found.waited_ns == 9 * ceil(512 * 4096 * 2 / 93.3)


def test_the_json_has_it() -> None:
    """And of one device, where nothing is sent."""
    plan = cost(gathering(2))
    assert summary_data(plan)["predicted"]["scheduled"] == asdict(scheduled(plan))
    alone = MOVED.replace("X", "tensor<8x4096xbf16>").replace(COLUMNS, WHOLE)
    text = f"""
      sdy.mesh @mesh = <["x"=1]>
      func.func @main(%a: tensor<8x4096xbf16>, %v: {W}) -> tensor<8x4096xbf16> {{
        {alone}
      }}"""
    for hardware in ("tpu-v5e", "tpu-v5e:scheduler"):
        found = scheduled(cost(text, hardware, topology=None))
        assert (found.asynchronous_ns, found.waited_ns) == (0, 0)
        assert found.step_ns > 0


def test_gathers_of_other_chips_are_synchronous() -> None:
    """All of it is communication then, and nothing waited for."""
    plan = cost(module(TWO_LAYERS, 1024, WHOLE), "tpu-v5p:scheduler")
    assert scheduled(plan) == ScheduledStep(plan.price.step_ns, 0, 0)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(("text", "trips"), [(CHAIN, 1), (LOOP, 8), (gathering(8), 8), (BEHIND, 9)])
def test_the_compiler_waits_as_long(text: str, trips: int) -> None:
    """For one gather, which has another name in the loop once it is scheduled, and counts once."""
    found = compile_planned(text.encode(), "tpu:v5e:2x2").time
    waited = scheduled(cost(text, topology=(2, 2))).waited_ns
    assert found is not None
    assert not found.unscheduled_ns
    assert found.exposed_ns.get("all-gather", 0) == pytest.approx(waited, rel=0.01)
    assert waited > trips * 1000


@pytest.mark.parametrize("text", [CHAIN, LOOP, BEHIND, gathering(2), gathering(8)])
def test_no_more_is_waited_for_than_is_sent(text: str) -> None:
    """Whatever is chosen: strategies drawn at random, of loops too."""
    asked = pipeline.Request(memory_bytes=None, hardware="tpu-v5e:scheduler")
    loaded = pipeline.load_module(text.encode(), asked)
    priced = pipeline.price(loaded)
    choices = valid_choices(priced.problem, 7, 40)
    for choice in choices:
        chosen = read_back(priced, choice)
        found = schedule_of(priced, choice, chosen, loaded.hardware)
        made = [one for one in chosen.collectives if one.collective.emitted]
        sent = sum((one.collective.ns + one.collective.hidden_ns) * one.repeat for one in made)
        assert found.asynchronous_ns + found.synchronous_ns == sent
        assert 0 <= found.waited_ns <= found.asynchronous_ns
        assert all(0 <= percent <= 100 for percent in found.waited_percent.values())
        edges = {one.edge for one in made if one.edge >= 0}
        assert found.waited_percent.keys() <= edges
    assert choices
