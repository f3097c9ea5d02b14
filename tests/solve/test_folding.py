"""Folding: every folded choice is one of the original, equal in cost and memory; what is alike is found, no more."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.random import Generator

from autoshard.problem import Problem, ProblemBuilder, Table, evaluate, memory_profile, validate
from autoshard.problem.model import Ints
from autoshard.solve import brute_force
from autoshard.solve.alike import refinements
from autoshard.solve.folding import Folded, fold, fold_classes
from autoshard.solve.intervals import merged
from tests.problem.strategies import all_choices, random_choice, random_problem

_LAYER_TIME = 3


def repeated_layers(rng: Generator, layers: int, width: int, most_strategies: int = 3) -> Problem:
    """A source, then one random layer of `width` nodes `layers` times, then a sink.

    A layer is a path with a few further edges, sometimes written in the other direction, with forbidden strategies and
    pairs; its first node reads the last one of the layer before it. Every node and every path edge uses memory, and a
    hub is read by the last node of every layer. Nodes: 3 + layers * width, the hub first, then the source; the sink is
    last.
    """
    builder = ProblemBuilder()
    sizes = [int(rng.integers(2, most_strategies + 1)) for _ in range(width)]
    costs = [rng.integers(0, 20, size) for size in sizes]
    masks = [rng.random(size) < 0.9 for size in sizes]
    for mask in masks:
        mask[0] = True
    paths = [_table(rng, sizes[node], sizes[node + 1]) for node in range(width - 1)]
    copies = [rng.integers(1, 10, table.cost.shape) for table in paths]
    usages = [rng.integers(1, 10, size) for size in sizes]
    between, skip = _table(rng, sizes[-1], sizes[0]), _table(rng, sizes[-1], sizes[0])
    hub = builder.add_node(rng.integers(0, 20, 2))
    to_hub = _table(rng, sizes[-1], 2)
    before = builder.add_node(rng.integers(100, 200, sizes[-1]))
    for layer in range(layers):
        now = layer * _LAYER_TIME
        nodes = [builder.add_node(cost, mask) for cost, mask in zip(costs, masks, strict=True)]
        builder.add_edge(before, nodes[0], between)
        builder.add_edge(nodes[-1], nodes[0], skip) if width > 2 else None
        for node, (table, copy) in enumerate(zip(paths, copies, strict=True)):
            edge = builder.add_edge(nodes[node], nodes[node + 1], table)
            builder.add_edge_usage(edge, now, now + 1 + node % 2, copy)
        for node, usage in zip(nodes, usages, strict=True):
            builder.add_node_usage(node, now, now + _LAYER_TIME, usage)
            builder.add_node_usage(
                node, 2 * layers * _LAYER_TIME - now, 2 * layers * _LAYER_TIME, usage[::-1]
            )
        builder.add_edge(nodes[-1], hub, to_hub)
        before = nodes[-1]
    sink = builder.add_node(rng.integers(100, 200, sizes[0]))
    builder.add_edge(before, sink, between)
    problem = builder.build()
    return replace(problem, memory_limit=evaluate(problem, random_choice(rng, problem)).peak)


def _table(rng: Generator, rows: int, columns: int) -> Table:
    """Pairs that include a strategy 0 are always allowed, so that something is."""
    allowed = rng.random((rows, columns)) < 0.8
    allowed[0], allowed[:, 0] = True, True
    return Table(rng.integers(1, 1000, (rows, columns)), allowed if rng.random() < 0.5 else None)


def _groups(rng: Generator, problem: Problem) -> Ints:
    """Classes at random, of nodes with equal masks: folding must be exact for any, alike or not."""
    first: dict[bytes, list[int]] = {}
    classes = np.zeros(problem.node_count, dtype=np.int64)
    for node in range(problem.node_count):
        members = first.setdefault(problem.node_mask(node).tobytes(), [])
        members.append(node)
        classes[node] = members[int(rng.integers(len(members)))]
    return np.unique(classes, return_inverse=True)[1]


def _assert_exact(problem: Problem, folded: Folded, choice: Ints) -> None:
    whole = folded.expand(choice)
    small, large = evaluate(folded.problem, choice), evaluate(problem, whole)
    assert (small.cost, small.peak, small.peak_time) == (large.cost, large.peak, large.peak_time)
    assert small.feasible == large.feasible
    assert (folded.restrict(whole) == choice).all() or small.cost is None
    for times, profile in (memory_profile(folded.problem, choice), memory_profile(problem, whole)):
        assert np.diff(times).min(initial=1) > 0
        assert profile.min(initial=0) == 0


@pytest.mark.parametrize("seed", range(80))
def test_any_fold_is_exact(seed: int) -> None:
    """Cost, peak, its time and validity of every folded choice are those of what it expands to, whatever is folded."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    folded = fold_classes(problem, _groups(rng, problem))
    for _ in range(20):
        _assert_exact(problem, folded, random_choice(rng, folded.problem))


@pytest.mark.parametrize("seed", range(40))
def test_folds_of_repeated_layers_are_exact(seed: int) -> None:
    """With forbidden pairs, turned edges, several items of a node and items of edges."""
    rng = np.random.default_rng(seed)
    problem = repeated_layers(rng, layers=int(rng.integers(12, 16)), width=int(rng.integers(1, 6)))
    folded = fold(problem, rounds=int(rng.integers(0, 3)))
    assert folded is not None
    validate(folded.problem)
    for _ in range(10):
        _assert_exact(problem, folded, random_choice(rng, folded.problem))


@pytest.mark.parametrize("seed", range(20))
def test_bytes_agree_at_every_time(seed: int) -> None:
    """Not at the peak alone."""
    rng = np.random.default_rng(seed)
    problem = repeated_layers(rng, layers=15, width=3)
    folded = fold(problem)
    assert folded is not None
    choice = random_choice(rng, folded.problem)
    times, profile = memory_profile(problem, folded.expand(choice))
    folded_times, folded_profile = memory_profile(folded.problem, choice)
    at = np.searchsorted(folded_times, times, side="right") - 1
    assert (np.where(at < 0, 0, folded_profile[at]) == profile).all()


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_layers_fold_into_one_and_their_ends(rounds: int) -> None:
    """A chain: after r rounds, r nodes at either end know that they are near it; all others fold into one."""
    rng = np.random.default_rng(7)
    problem = repeated_layers(rng, layers=40, width=1)
    folded = fold(problem, rounds=rounds)
    assert folded is not None
    assert folded.problem.node_count == 3 + 1 + 2 * rounds


@pytest.mark.parametrize("layers", [10, 20, 40])
def test_more_layers_fold_to_the_same_size(layers: int) -> None:
    """The folded size depends on one layer and the number of rounds only."""
    sizes = []
    for count in (layers, 2 * layers):
        folded = fold(repeated_layers(np.random.default_rng(3), layers=count, width=4), rounds=2)
        assert folded is not None
        sizes.append((folded.problem.node_count, folded.problem.edge_count))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] < 4 * 5 + 3


@pytest.mark.parametrize("seed", range(30))
def test_the_folded_optimum_is_a_choice_and_no_bound(seed: int) -> None:
    """It is at least the optimum, and at most that among choices which treat the classes as one."""
    rng = np.random.default_rng(seed)
    problem = repeated_layers(rng, layers=int(rng.integers(4, 6)), width=1, most_strategies=2)
    folded = fold(problem, rounds=0)
    assert folded is not None
    best, small = brute_force(problem), brute_force(folded.problem)
    alike = [choice for choice in all_choices(problem) if _treats_alike(choice, folded.classes)]
    priced = [evaluate(problem, choice) for choice in alike]
    assert small.cost == min((it.cost for it in priced if it.feasible and it.cost is not None), default=None)
    if small.cost is not None:
        assert best.cost is not None and best.cost <= small.cost


def _treats_alike(choice: Ints, classes: Ints) -> bool:
    return len(np.unique(np.column_stack([classes, choice]), axis=0)) == len(np.unique(classes))


def test_labels_keep_nodes_apart() -> None:
    """Nodes of the first half and of the second one are not folded together, within a half they are."""
    problem = repeated_layers(np.random.default_rng(5), layers=24, width=2)
    half = (np.arange(problem.node_count) > problem.node_count // 2).astype(np.int64)
    whole, halves = fold(problem), fold(problem, half)
    assert whole is not None and halves is not None
    for members in range(halves.problem.node_count):
        assert len(set(half[halves.classes == members].tolist())) == 1
    assert whole.problem.node_count < halves.problem.node_count < problem.node_count / 2


def test_refinement_only_splits() -> None:
    """Every partition refines the one before; the last is a fixpoint; equal input, equal output."""
    problem = repeated_layers(np.random.default_rng(11), layers=9, width=3)
    partitions = list(refinements(problem))
    assert [p.tolist() for p in partitions] == [p.tolist() for p in refinements(problem)]
    for coarse, fine in pairwise(partitions):
        pairs = np.unique(np.column_stack([fine, coarse]), axis=0)
        assert len(pairs) == fine.max() + 1 > coarse.max() + 1
    for partition in partitions:
        firsts = np.unique(partition, return_index=True)[1]
        assert (np.diff(firsts) > 0).all()


def test_which_end_of_a_table_a_node_is_at_matters_and_how_an_edge_is_written_does_not() -> None:
    """Node 0 reads node 1 as node 2 reads node 3, the latter written from 3 to 2; nodes 0 and 1 differ."""
    builder = ProblemBuilder()
    for _ in range(4):
        builder.add_node([1, 2])
    cost = np.array([[0, 5], [7, 1]])
    builder.add_edge(0, 1, Table(cost))
    builder.add_edge(3, 2, Table(cost.T.copy()))
    folded = fold(builder.build(), rounds=1)
    assert folded is not None
    assert folded.classes.tolist() == [0, 1, 0, 1]
    assert folded.problem.tables[0].cost.tolist() == (2 * cost).tolist()


def test_an_edge_within_a_class_becomes_node_cost() -> None:
    """And what its diagonal forbids is forbidden; its usage becomes usage of the node."""
    builder = ProblemBuilder()
    for _ in range(3):
        builder.add_node([10, 20, 30])
    table = Table(
        np.array([[1, 9, 9], [9, 2, 9], [9, 9, 3]]), np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
    )
    for u, v in ((0, 1), (1, 2), (2, 0)):
        edge = builder.add_edge(u, v, table)
        builder.add_edge_usage(edge, u, u + 1, np.diag([4, 5, 6]))
    folded = fold(builder.build(memory_limit=100))
    assert folded is not None
    assert folded.problem.node_costs(0)[[0, 2]].tolist() == [33, 99]
    assert folded.problem.node_mask(0).tolist() == [True, False, True]
    assert folded.problem.edge_count == 0
    assert folded.problem.node_item.tolist() == [[0, 0, 3]]
    assert folded.problem.item_usage(0).tolist() == [4, 5, 6]
    assert folded.problem.memory_limit == 100


def test_nodes_that_may_not_be_equal_stay_apart() -> None:
    """A ring in which neighbours must differ cannot be one node; the nodes beside it still fold."""
    builder = ProblemBuilder()
    differ = Table(np.ones((2, 2), dtype=np.int64), ~np.eye(2, dtype=np.bool_))
    for _ in range(4):
        builder.add_node([1, 2])
    for node in range(4):
        builder.add_edge(node, (node + 1) % 4, differ)
    for _ in range(20):
        builder.add_node([3, 4])
    problem = builder.build()
    folded = fold(problem)
    assert folded is not None
    assert folded.problem.node_count == 5
    assert brute_force(folded.problem).cost == 2 * (1 + 2) + 4 + 20 * 3


def test_classes_that_forbid_each_other_everything_stay_apart() -> None:
    """Two pairs of nodes, equal before the first round: one pair must agree and the other one differ."""
    builder = ProblemBuilder()
    for _ in range(4):
        builder.add_node([1, 2])
    for _ in range(9):
        builder.add_node([3, 4, 5])
    same = np.eye(2, dtype=np.bool_)
    zero = np.zeros((2, 2), dtype=np.int64)
    builder.add_edge(0, 2, Table(zero, same))
    builder.add_edge(1, 3, Table(zero, ~same))
    folded = fold_classes(builder.build(), np.array([0, 0, 1, 1] + [2] * 9))
    assert folded.classes.tolist() == [0, 1, 2, 3] + [4] * 9
    assert brute_force(folded.problem).cost == 2 * 1 + 1 + 2 + 9 * 3


def test_what_forbidden_entries_cost_means_nothing() -> None:
    """Large numbers in forbidden places, of which a sum would overflow, neither tell nodes apart nor enter a cost."""
    builder = ProblemBuilder()
    mask = np.array([True, False])
    for node in range(40):
        builder.add_node([1, 10**18 + node], mask)
    for node in range(0, 40, 2):
        cost = np.array([[1, 2], [3, 10**18 + node]])
        builder.add_edge(node, node + 1, Table(cost, np.array([[True, True], [True, False]])))
    folded = fold(builder.build())
    assert folded is not None
    assert folded.problem.node_count == 2
    validate(folded.problem)
    assert np.abs(folded.problem.node_cost).max() < 1000
    assert np.abs(folded.problem.tables[0].cost).max() < 1000
    assert brute_force(folded.problem).cost == 40 + 20


def test_which_pairs_are_allowed_tells_nodes_apart() -> None:
    """Two kinds of pairs with equal costs and different masks."""
    builder = ProblemBuilder()
    cost = np.array([[1, 0], [0, 1]])
    for _ in range(24):
        builder.add_node([1, 2])
    for node in range(0, 24, 2):
        allowed = np.array([[True, False], [node < 12, True]])
        builder.add_edge(node, node + 1, Table(cost, allowed))
    folded = fold(builder.build())
    assert folded is not None
    assert folded.classes.tolist() == [0, 1] * 6 + [2] * 12  # the latter masks are symmetric


def test_usage_tells_nodes_apart_and_its_times_do_not() -> None:
    """Before the first round already."""
    builder = ProblemBuilder()
    for node in range(12):
        builder.add_node([1, 2])
        builder.add_node_usage(node, node, node + 3, [5, 6] if node < 6 else [6, 5])
    folded = fold(builder.build(memory_limit=50), rounds=0)
    assert folded is not None
    assert folded.classes.tolist() == [0] * 6 + [1] * 6


def test_nothing_repeated_nothing_folded() -> None:
    """Distinct nodes, no nodes, one node: None."""
    builder = ProblemBuilder()
    assert fold(builder.build()) is None
    for node in range(6):
        builder.add_node([node, 2 * node])
    assert fold(builder.build()) is None


@pytest.mark.parametrize("seed", range(20))
def test_restricting_takes_the_majority_of_what_is_allowed(seed: int) -> None:
    """Per class, counted by hand; the first one of several."""
    rng = np.random.default_rng(seed)
    problem = repeated_layers(rng, layers=9, width=3)
    folded = fold(problem, rounds=1)
    assert folded is not None
    choice = random_choice(rng, problem)
    for node, strategy in enumerate(folded.restrict(choice).tolist()):
        votes = np.bincount(choice[folded.classes == node], minlength=folded.problem.strategy_counts[node])
        allowed = np.flatnonzero(folded.problem.node_mask(node))
        assert strategy == allowed[votes[allowed].argmax()]


@pytest.mark.parametrize("seed", range(40))
def test_merged_items_cover_every_time_as_often(seed: int) -> None:
    """For every owner and usage, with empty, abutting, nested and equal intervals; never more items than before."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 9, 30)
    end = begin + rng.integers(0, 5, 30)
    items = np.column_stack([rng.integers(0, 2, 30), begin, end, rng.integers(0, 3, 30)])
    expected, found = np.zeros((2, 2, 3, 14), dtype=np.int64)
    for owner, begins, ends, usage in items.tolist():
        expected[owner, usage, begins:ends] += 1
    result = merged(items)
    for owner, begins, ends, parts in result:
        for usage, count in parts:
            found[owner, usage, begins:ends] += count
    assert (found == expected).all()
    assert len(result) == len({part[:3] for part in result}) <= len(items)
