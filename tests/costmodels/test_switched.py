"""Nodes of GPUs and the network between them: the book's formulas and NCCL's measurements."""

import pytest

from costmodels import load

H100 = load("h100")


@pytest.mark.parametrize("size", [2, 4, 8])
def test_within_a_node(size: int) -> None:
    """All-gather V(n-1)/(nW), all-to-all V(n-1)/(W n²), at the achievable 370 GB/s."""
    gathered = 10**10
    expected = gathered * (size - 1) / (size * 370)
    assert H100.all_gather_ns(gathered, (size,)) == pytest.approx(expected, rel=0.01)
    assert H100.all_to_all_ns(gathered // size, (size,)) == pytest.approx(expected / size, rel=0.01)


@pytest.mark.parametrize(("size", "gather_us", "reduce_us"), [(2, 8, 10), (4, 17, 15), (8, 30, 31)])
def test_latency_is_near_the_measured(size: int, gather_us: float, reduce_us: float) -> None:
    """NCCL on one node of H100."""
    assert H100.all_gather_ns(0, (size,)) == pytest.approx(gather_us * 1e3, rel=0.35)
    assert H100.all_reduce_ns(0, (size,)) == pytest.approx(reduce_us * 1e3, rel=0.35)


@pytest.mark.parametrize(("size", "gather", "reduce"), [(2, 537, 324), (4, 434, 236), (8, 394, 267)])
def test_bandwidth_is_within_a_factor_of_the_measured(size: int, gather: float, reduce: float) -> None:
    """NCCL's V/time in GB/s on 2, 4 and 8 GPUs: the model is no more than half above or a third below."""
    assert 10**11 / H100.all_gather_ns(10**11, (size,)) == pytest.approx(gather, rel=0.5)
    assert 10**11 / H100.all_reduce_ns(10**11, (size,)) == pytest.approx(reduce, rel=0.5)


def test_between_nodes_both_levels_work_at_once() -> None:
    """All-gather over 4 nodes of 8: V·31/32 over 370 and 50 GB/s; the book's slower level, V·7/(8·370), is near.

    Over 2 devices in each of 4 nodes the network decides: V·3/(4·2·50), as in the book.
    """
    model = H100.place([("x", 32)])
    assert model.all_gather_ns(10**11, ["x"]) == pytest.approx(10**11 * 31 / 32 / 420, rel=0.01)
    assert model.all_gather_ns(10**11, ["x"]) == pytest.approx(10**11 * 7 / 8 / 370, rel=0.03)
    few = model.all_gather_ns(10**11, [("x", 1, 4), ("x", 16, 2)])
    assert few == pytest.approx(10**11 * 3 / (4 * 2 * 50), rel=0.01)
    assert model.all_to_all_ns(10**11, ["x"]) == pytest.approx(10**11 * 3 / (4 * 50), rel=0.01)
    assert model.collective_permute_ns(10**11, ["x"]) == pytest.approx(10**11 / 50, rel=0.01)


def test_an_axis_across_nodes_has_one_port_a_device() -> None:
    """With the node's other axis in use, each device of the group has its own 50 GB/s only."""
    model = H100.place([("data", 4), ("model", 8)])
    assert model.all_gather_ns(10**11, ["data"]) == pytest.approx(10**11 * 3 / 4 / 50, rel=0.01)
    assert model.all_gather_ns(10**11, ["model"]) == pytest.approx(10**11 * 7 / 8 / 370, rel=0.01)


def test_reducing_in_the_switch_gains_thirty_percent() -> None:
    """Not the factor of two that it could."""
    ratio = H100.all_reduce_ns(10**11, (8,)) / H100.all_gather_ns(10**11, (8,))
    assert ratio == pytest.approx(2 / 1.3, rel=0.01)
    without = load("a100")
    ratio = without.all_reduce_ns(10**11, (8,)) / without.all_gather_ns(10**11, (8,))
    assert ratio == pytest.approx(2, rel=0.01)


def test_a_full_mesh_has_one_link_to_each_peer() -> None:
    """MI300X: a shard goes to each peer over that peer's own 64 GB/s, so small groups are not faster."""
    amd = load("mi300x")
    assert amd.all_gather_ns(8 * 64 * 10**6, (8,)) == pytest.approx(1_000_000 + 29_000, rel=0.001)
    assert amd.all_gather_ns(2 * 64 * 10**6, (2,)) == pytest.approx(1_000_000 + 10_000, rel=0.001)


def test_a_rack_is_one_node() -> None:
    """64 GPUs of GB200 NVL72 stay within NVLink; 64 of B200 do not."""
    rack, boxes = load("gb200-nvl72"), load("b200")
    assert rack.all_gather_ns(10**11, (64,)) < boxes.all_gather_ns(10**11, (64,))
