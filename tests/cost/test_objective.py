"""What a choice costs, priced two ways: by the tables of the problem and by reading it back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.cost import follow, read_back
from autoshard.problem import evaluate
from autoshard.program import Program
from tests.cost.priced import collective_ns, loaded, program
from tests.problem.possible import drawn
from tests.program.modules import LOOP

SMALL = ("mlp_train", "embedding_train", "rnn_train", "fixed_point")


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SMALL), st.integers(0, 2**32 - 1))
def test_objective_is_compute_and_communication(name: str, seed: int) -> None:
    """The tables' sum is that of kernels and collectives, each collective at the price of costmodels, as often as it runs."""
    found, priced = program(name)
    choice = drawn(priced.problem, seed, follow(priced, {}))
    chosen = read_back(priced, choice)
    assert evaluate(priced.problem, choice).cost == chosen.compute_ns + chosen.communication_ns
    assert chosen.communication_ns == sum(c.collective.ns * c.repeat for c in chosen.collectives)
    for collective in {c.collective for c in chosen.collectives}:
        price = collective_ns(found.communication, collective.kind, collective.bytes, collective.axes)
        assert collective.ns == price


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(SMALL), st.integers(0, 2**32 - 1))
def test_every_read_is_known(name: str, seed: int) -> None:
    """Reading back says how every kernel reads every operand, and what every kernel makes, in mesh axes that do not clash."""
    _, priced = program(name)
    choice = drawn(priced.problem, seed, follow(priced, {}))
    chosen = read_back(priced, choice)
    for number, node in enumerate(priced.graph.nodes):
        if node.space is None:
            continue
        kernel = priced.graph.program.kernels[node.kernel]
        strategy = node.space.strategies[int(choice[number])]
        for use, sharding in zip(kernel.uses, strategy.operands, strict=True):
            for op, operand in use.sites:
                if not _is_recomputed(priced.graph.program, op):
                    assert chosen.uses[op, operand] == sharding
        for value, produced, settled in zip(kernel.results, strategy.produced, strategy.settled, strict=True):
            if produced.rank:
                assert chosen.values[value].produced == produced
                assert chosen.values[value].settled == settled


def _is_recomputed(program: Program, op: int) -> bool:
    return program.cloneable >= set(program.listing.ops[op].results)


@pytest.mark.parametrize("name", SMALL)
def test_nothing_given_is_replicated(name: str) -> None:
    """Following no shardings leaves everything whole, moves nothing, and holds every value in full."""
    _, priced = program(name)
    choice = follow(priced, {})
    chosen = read_back(priced, choice)
    assert chosen.collectives == ()
    assert all(value.settled.is_fully_replicated for value in chosen.values.values())
    assert all(use.is_fully_replicated for use in chosen.uses.values())
    whole = evaluate(priced.problem, choice).peak
    arguments = priced.graph.program.listing.arguments
    types = [priced.graph.program.listing.values[a.value].type for a in arguments]
    assert whole >= sum(t.num_bytes for t in types if t is not None and t.rank)


def test_a_demand_is_kept() -> None:
    """Where the user's shardings force it, following nothing communicates."""
    text = """
      sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
          -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
        %0 = stablehlo.exponential %a : tensor<8x16xf32>
        return %0 : tensor<8x16xf32>
      }"""
    found, priced = loaded(text)
    chosen = read_back(priced, follow(priced, {}))
    (gather,) = chosen.collectives
    assert gather.collective.kind == "all_gather"
    assert gather.collective.bytes == 8 * 16 * 4
    assert gather.collective.ns == found.communication.all_gather_ns(8 * 16 * 4, ["x"])


@pytest.mark.parametrize("seed", range(8))
def test_loops_pay_per_trip(seed: int) -> None:
    """A collective in a loop's body counts as often as the loop runs, and once more where a reader after it has the same copy made."""
    _, priced = loaded(LOOP)
    choice = drawn(priced.problem, seed, follow(priced, {}))
    chosen = read_back(priced, choice)
    body = range(5, 8)  # times of the ops in the body
    for collective in chosen.collectives:
        if collective.op >= 0:
            assert collective.repeat in ((5, 6) if collective.op in body else (1,))


def test_loops_multiply_compute() -> None:
    """Replicated, each trip of the loop costs the same."""
    priced = (loaded(LOOP.replace("dense<5>", f"dense<{trips}>"))[1] for trips in (3, 5, 7))
    a, b, c = (read_back(p, follow(p, {})).compute_ns for p in priced)
    assert b - a == c - b > 0
