"""A value that several readers want in another sharding is brought there once."""

import re

import pytest

from autoshard import pipeline
from autoshard.annotated import AsWritten
from autoshard.check import Subject, check
from autoshard.cost import PricedGraph, follow, read_back
from autoshard.cost.readback import Chosen
from autoshard.pipeline import Loaded
from autoshard.plans import emitted_bytes
from autoshard.problem import evaluate
from autoshard.solve.brute import brute_force
from tests.cost.priced import loaded

T = "tensor<8x16xf32>"
BYTES = 8 * 16 * 4
RULE = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16} need_replication={i, j}, custom>"


def reading(times: int, where: str = "") -> tuple[Loaded, PricedGraph]:
    return loaded(reading_text(times, where))


def reading_text(times: int, where: str = "") -> str:
    """An argument split over x, read by so many kernels that need all of it."""
    calls = [
        f"%{i} = stablehlo.custom_call @whole(%a) {{sdy.sharding_rule = {RULE}}} : ({T}) -> {T}"
        for i in range(times)
    ]
    names, types = ", ".join(f"%{i}" for i in range(times)), ", ".join([T] * times)
    return f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) -> ({types}) {{
        {where}
        {" ".join(calls)}
        return {names} : {types}
      }}"""


def cheapest(priced: PricedGraph) -> Chosen:
    solution = brute_force(priced.problem)
    assert solution.choice is not None
    assert solution.cost == evaluate(priced.problem, solution.choice).cost
    return read_back(priced, solution.choice)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_gathered_once(times: int) -> None:
    """One all-gather, whether one, two or three kernels read the whole value; and following a person's choice does the same."""
    found, priced = reading(times)
    price = found.communication.all_gather_ns(BYTES, ["x"])
    for chosen in (cheapest(priced), read_back(priced, follow(priced, {}))):
        assert [c.collective.kind for c in chosen.collectives] == ["all_gather"]
        assert chosen.communication_ns == price
        shared = chosen.values[0].shared
        assert str(shared) == ("None" if times == 1 else "[{}, {}]")


def test_copy_takes_memory_while_it_is_read() -> None:
    """The gathered copy stays from the first reader to the last: one more whole value at the peak than in parts."""
    _, priced = reading(3)
    solution = brute_force(priced.problem)
    assert solution.choice is not None
    whole, part = 8 * 128 * 4, 2 * 128 * 4  # in tiles: rows of 128 lanes
    results, copy = 3 * whole, int(1.06 * whole)  # the copy with its share of gaps in the heap
    assert evaluate(priced.problem, solution.choice).peak <= part + copy + results
    assert evaluate(priced.problem, solution.choice).peak >= part + copy + 2 * part
    assert solution.smallest_peak is not None
    assert solution.smallest_peak >= part + copy


def test_readers_that_differ() -> None:
    """A reader that takes the value as it is pays nothing beside two that gather it."""
    gathers = cheapest(reading(2)[1]).collectives
    elementwise = f"%e = stablehlo.exponential %a : {T}"
    with_one_more = cheapest(reading(2, elementwise)[1])
    assert [c.collective for c in with_one_more.collectives] == [c.collective for c in gathers]


def test_readers_of_what_was_there_before_the_copy() -> None:
    """Take that: a copy in parts of a whole argument, which nobody reads as it is, is not made, and nothing is gathered from it."""
    text = re.sub(r"{sdy.sharding = #sdy.sharding<@mesh[^>]*>}", "", reading_text(2))
    request = pipeline.Request(memory_bytes=None)
    found = pipeline.load_module(text.encode(), request)
    priced = pipeline.price(found)
    choice = follow(priced, {}).copy()
    hub = next(number for number, node in enumerate(priced.graph.nodes) if node.hub >= 0)
    layouts = priced.graph.layouts[2].shardings
    supplied = [str(layouts[layout]) for layout in priced.graph.nodes[hub].choices.supplies[0]]
    choice[hub] = supplied.index('[{"x"}, {}]')
    plan = AsWritten(found, priced, choice).plan()
    assert [c.kind for c in plan.price.collectives] == ["all_slice", "all_gather", "all_gather"]
    assert emitted_bytes(plan.price) == {}
    findings = check(Subject(found.program, found.hardware, found.communication), plan).findings
    assert [finding.name for finding in findings if not finding.ok] == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_copy_for_a_loop_begins_where_the_loop_does(times: int) -> None:
    """Also where the loop is handed the copy, and others read it later; the loop does more than compute, so it stays."""
    where = f"""
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %r:2 = stablehlo.while(%n = %zero, %t = %a) : tensor<i32>, {T} cond {{
        %go = stablehlo.compare LT, %n, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      }} do {{
        %m = stablehlo.custom_call @next(%n) : (tensor<i32>) -> tensor<i32>
        %u = stablehlo.tanh %t : {T}
        stablehlo.return %m, %u : tensor<i32>, {T}
      }}"""
    found, priced = reading(times, where)
    (begin,) = {flow.begin for flow in found.listing.data_flows}
    (copied,) = (edge for edge in priced.graph.edges if priced.graph.nodes[edge.reader].hub >= 0)
    assert copied.begin == begin
