"""Tables and rooflines: the prices of the methods, with what bounds them."""

import numpy as np
import pytest

from costmodels import KINDS, HardwareError, collective_table, kernel_table, load, matmul_table

V5E = load("tpu-v5e")
MODEL = V5E.place([("x", 8), ("y", 2)])


def test_collectives() -> None:
    """A row for each kind, group and size, each with the price of its method."""
    table = collective_table(MODEL, bytes=[0, 10**6], groups=[["x"], ["x", "y"], [("x", 2, 4)]])
    assert len(table) == len(KINDS) * 3 * 2
    assert sorted(set(table["axes"])) == ["x", "x,y", "x:(2)4"]
    assert dict(zip(table["axes"], table["devices"], strict=True)) == {"x": 8, "x,y": 16, "x:(2)4": 4}
    row = table[(table["kind"] == "all_reduce") & (table["axes"] == "x,y") & (table["bytes"] == 10**6)].iloc[
        0
    ]
    assert row["ns"] == MODEL.all_reduce_ns(10**6, ["x", "y"])
    assert row["gb_per_s"] == pytest.approx(10**6 / row["ns"])


def test_a_kind_that_there_is_not() -> None:
    """The error lists those that there are."""
    with pytest.raises(HardwareError, match="broadcast") as caught:
        collective_table(MODEL, bytes=[1], groups=[["x"]], kinds=["broadcast"])
    assert "all_gather" in str(caught.value)


def test_no_groups_is_an_empty_table() -> None:
    """With the same columns."""
    empty, full = (collective_table(MODEL, bytes=[1], groups=groups) for groups in ([], [["x"]]))
    assert len(empty) == 0
    assert list(empty.columns) == list(full.columns)


def test_products() -> None:
    """Sizes broadcast; what bounds a product goes from memory to the matrix unit as it grows."""
    table = matmul_table(V5E, m=[8, 8192], k=8192, n=8192, dtype="bf16")
    assert table["bound"].tolist() == ["memory", "matrix"]
    assert table["ns"].tolist() == [V5E.matmul_ns(m=m, k=8192, n=8192, dtype="bf16") for m in (8, 8192)]
    assert table["flops"].tolist() == [2 * m * 8192**2 for m in (8, 8192)]
    assert table.loc[1, "tflop_per_s"] == pytest.approx(197 * 0.9, rel=0.01)
    assert table.loc[0, "flop_per_byte"] == pytest.approx(8, rel=0.01)


def test_sizes_that_are_not_whole() -> None:
    """They are listed as they are asked for."""
    assert collective_table(MODEL, [1.5, 2], [["x"]], ["all_reduce"])["bytes"].tolist() == [1.5, 2]
    assert matmul_table(V5E, m=[4.5, 8], k=8, n=1e19, dtype="bf16")[["m", "k", "n"]].to_numpy().tolist() == [
        [4.5, 8, 1e19],
        [8, 8, 1e19],
    ]


def test_kernels() -> None:
    """Elementwise work, a copy and next to nothing are bound by three things."""
    table = kernel_table(V5E, flops=[10**12, 0, 0], bytes=[10**6, 10**9, 8], dtype="f32")
    assert table["bound"].tolist() == ["vector", "memory", "overhead"]
    assert (
        table["ns"].tolist() == V5E.kernel_ns(np.array([1e12, 0, 0]), np.array([1e6, 1e9, 8]), "f32").tolist()
    )
    assert kernel_table(V5E, flops=[1], bytes=0, dtype="f32").loc[0, "flop_per_byte"] == np.inf


def test_a_roofline_adds_up() -> None:
    """The longer of work and memory, and the overhead, is the time; alone and in arrays."""
    for m in (1, 128, 8192):
        line = V5E.matmul_roofline(m=m, k=1024, n=1024, dtype="bf16")
        ns = max(line.work_ns, line.memory_ns) + line.overhead_ns
        assert V5E.matmul_ns(m=m, k=1024, n=1024, dtype="bf16") == pytest.approx(ns, abs=1)
        assert line.bound in ("matrix", "vector", "memory", "overhead")
    lines = V5E.matmul_roofline(m=np.array([1, 8192]), k=8192, n=8192, dtype="bf16")
    assert lines.bound.tolist() == ["memory", "matrix"]
