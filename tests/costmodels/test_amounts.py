"""Amounts that are none are refused, whatever model is asked."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from costmodels import KINDS, HardwareError, collective_table, kernel_table, load, matmul_table
from costmodels.amounts import as_amounts


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5e:scheduler", "h100", "mi300x"])
@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, np.array([1.0, -1.0]), np.array([1.0, math.nan])])
def test_prices_of_no_amount(name: str, amount: Any) -> None:
    """A negative price, or a bare error of arithmetic, would say nothing."""
    hardware = load(name)
    placed = hardware.place([("x", 4)])
    for kind in KINDS:
        with pytest.raises(HardwareError, match=r"bytes is (-1|nan|inf)"):
            getattr(placed, f"{kind}_ns")(amount, ["x"])
    for flops, moved, wrong in ((amount, 1, "flops"), (1, amount, "bytes")):
        with pytest.raises(HardwareError, match=f"{wrong} is (-1|nan|inf)"):
            hardware.kernel_ns(flops, moved, "f32")
    for wrong in ("m", "k", "n", "batch", "bytes"):
        sizes = {"m": 8, "k": 8, "n": 8, wrong: amount}
        with pytest.raises(HardwareError, match=f"{wrong} is (-1|nan|inf)"):
            hardware.matmul_ns(**sizes, dtype="bf16")


def test_amounts() -> None:
    """Nothing, and an array of nothing, are amounts."""
    none, many, empty = as_amounts(flops=0, m=np.array([[0], [10**18]]), n=np.array([]))
    assert (none, np.shape(many), np.shape(empty)) == (0.0, (2, 1), (0,))


def test_a_kernel_that_takes_no_time() -> None:
    """A scheduler prices products alone; no speed is told, and no warning of arithmetic."""
    table = kernel_table(load("tpu-v5e:scheduler"), flops=[0, 10**12], bytes=10**9, dtype="f32")
    assert table["tflop_per_s"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [4.5, math.nan, math.inf])
def test_axes_of_part_of_a_device(size: Any) -> None:
    """A size of 4.5 was one of 4."""
    with pytest.raises(HardwareError, match=f'axis "x" has size {size}'):
        load("tpu-v5e").place([("x", size)])


def nullable(sizes: list[int]) -> Any:
    """A column of pandas' own type."""
    return pd.Series(sizes, dtype="Int64")


def alone(size: int) -> NDArray[np.int64]:
    return np.array([size], dtype=np.int64)


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5e:scheduler", "h100"])
@pytest.mark.parametrize("make", [list, tuple, pd.Series, nullable])
def test_whatever_numpy_takes_for_an_array(name: str, make: Callable[[list[int]], Any]) -> None:
    """Lists, tuples and columns of tables are priced as arrays are."""
    hardware = load(name)
    model = hardware.place({"x": 4})
    sizes, given = np.array([8, 4096, 10**8]), make([8, 4096, 10**8])
    for kind in KINDS:
        price = getattr(model, f"{kind}_ns")
        assert price(given, ["x"]).tolist() == price(sizes, ["x"]).tolist()
    assert (
        hardware.kernel_ns(given, given, "f32").tolist() == hardware.kernel_ns(sizes, sizes, "f32").tolist()
    )
    asked = hardware.matmul_ns(m=given, k=64, n=64, dtype="bf16")
    assert np.asarray(asked).tolist() == [
        hardware.matmul_ns(m=int(m), k=64, n=64, dtype="bf16") for m in sizes
    ]
    assert hardware.copy_ns(given) == pytest.approx([hardware.copy_ns(int(size)) for size in sizes])


@pytest.mark.parametrize(
    "amount", ["5", ["5"], [None], None, 1j, [[1, 2], [3]], np.array(["5"]), 10**400, 1e31]
)
def test_prices_of_no_number(amount: Any) -> None:
    """Text, nothing, rows of different lengths and what no computer moves are refused by name, not by Python."""
    hardware: Any = load("tpu-v5e")
    asked: list[Callable[[], Any]] = [
        lambda: hardware.all_reduce_ns(amount, (4,)),
        lambda: hardware.place([("x", 4)]).all_reduce_ns(amount, ["x"]),
        lambda: hardware.kernel_ns(1, amount, "f32"),
        lambda: collective_table(hardware.place([("x", 4)]), amount, [["x"]]),
        lambda: kernel_table(hardware, flops=1, bytes=amount, dtype="f32"),
    ]
    for ask in asked:
        with pytest.raises(HardwareError, match="bytes is ") as caught:
            ask()
        assert "from 0 to 1e+30" in caught.value.fix
    with pytest.raises(HardwareError, match="m is "):
        matmul_table(hardware, m=amount, k=8, n=8, dtype="bf16")


ARGUMENTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "types in a list": (lambda v5e: matmul_table(v5e, m=8, k=8, n=8, dtype=cast("Any", ["bf16"])), "is not a known element type"),
    "a type of numpy": (lambda v5e: v5e.kernel_ns(8, 8, np.float32), "is not a known element type"),
    "a type with bytes": (lambda v5e: v5e.matmul_ns(m=8, k=8, n=8, dtype=3, bytes=8), "3 is not a known element type"),
    "no broadcast": (lambda v5e: v5e.matmul_ns(m=[1, 2], k=8, n=[1, 2, 3], dtype="bf16"), r"m has shape \(2,\), n has shape \(3,\)"),
    "no broadcast in a table": (lambda v5e: kernel_table(v5e, flops=[1, 2], bytes=[1, 2, 3], dtype="f32"), "do not broadcast"),
    "a number of axes": (lambda v5e: v5e.all_reduce_ns(8, axes=4), "axes: 4 is no list"),
    "axes as text": (lambda v5e: v5e.all_reduce_ns(8, axes="4x4"), "axes: there is a size '4'"),
    "a number for a group": (lambda v5e: v5e.place([("x", 4)]).all_reduce_ns(8, 4), "axes: 4 is no list"),
    "a number in a group": (lambda v5e: v5e.place([("x", 4)]).all_reduce_ns(8, [4]), "axes: 4 is no axis"),
    "half of a sub-axis": (lambda v5e: v5e.place([("x", 4)]).all_reduce_ns(8, [("x", 2)]), "is no axis"),
    "a sub-axis of text": (lambda v5e: v5e.place([("x", 4)]).all_reduce_ns(8, [("x", "1", 2)]), "is cut by '1'"),
    "a number for groups": (lambda v5e: collective_table(v5e.place([("x", 4)]), 8, cast("Any", 4)), "groups: 4 is no list"),
    "a number for a mesh": (lambda v5e: v5e.place(4), "mesh: 4 is no mesh"),
    "names alone": (lambda v5e: v5e.place(["x"]), "is no mesh"),
    "sizes as names": (lambda v5e: v5e.place([(4, "x")]), "is no mesh"),
    "a size of text": (lambda v5e: v5e.place({"x": "4"}), "axis \"x\" has size '4'"),
    "a number for a topology": (lambda v5e: v5e.place([("x", 4)], topology=4), "topology: 4 is no list"),
    "one position": (lambda v5e: v5e.matmul_roofline(m=8, k=8, n=8, dtype="bf16", in_turn=(9,)), r"in_turn is \(9,\)"),
    "positions below 0": (lambda v5e: v5e.matmul_roofline(m=8, k=8, n=8, dtype="bf16", in_turn=(-9, 1)), "in_turn is "),
    "a number for rows": (lambda v5e: v5e.matmul_roofline(m=8, k=8, n=8, dtype="bf16", rows=8), "rows: 8 is no list"),
    "rows of text": (lambda v5e: v5e.matmul_roofline(m=8, k=8, n=8, dtype="bf16", rows=("8", 8)), "rows is '8'"),
    "a number for dimensions": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, 1), "minor is 1"),
    "one kind of dimensions": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, ([0],)), "minor is "),
    "no such dimension": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, ([0], [2])), "minor is "),
    "an unknown order": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, ([0], [1], "twice")), "minor is "),
    "a pair without its other": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, ([0, 1], [1], "paired")), "minor is "),
    "a dimension with itself": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, ([1], [1], "paired")), "minor is "),
    "pairs without an order": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, ({0, 1}, {1, 0}, "paired")), "minor is "),
    "dimensions that end": (lambda v5e: v5e.stored_bytes([[8, 8]], 16, iter(([0], [1]))), "minor is "),
    "slices of text": (lambda v5e: v5e.place([("x", 4)], slices="2"), "slices: there are '2'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_of_another_kind(case: str) -> None:
    """What is wrong and what to write, not where Python noticed."""
    ask, expected = ARGUMENTS[case]
    with pytest.raises(HardwareError, match=expected) as caught:
        ask(load("tpu-v5e"))
    assert caught.value.fix


def test_a_mesh_by_name() -> None:
    """As autoshard takes it."""
    hardware = load("tpu-v5e")
    mesh = [("x", 4), ("y", 2)]
    assert hardware.place(dict(mesh)) == hardware.place(mesh)
    assert hardware.placements(dict(mesh), (4, 2)) == hardware.placements(mesh, (4, 2))


@pytest.mark.parametrize("form", [int, alone])
def test_sizes_beyond_whole_numbers(form: Callable[[int], Any]) -> None:
    """Alone and in arrays alike: products of sizes do not wrap around, and a time that cannot be told is refused."""
    hardware = load("tpu-v5e")
    with pytest.raises(HardwareError, match=r"a time of 1.499e\+31 ns is longer"):
        hardware.matmul_ns(m=form(2**40), k=2**40, n=2**40, dtype="bf16")
    with pytest.raises(HardwareError, match="ns is longer"):
        hardware.all_reduce_ns(form(2**62) * 2.0**20, (4,))
    found = hardware.matmul_ns(m=form(2**33), k=2**33, n=1, dtype="bf16")
    assert np.asarray(found).ravel().tolist() == [hardware.matmul_ns(m=2.0**33, k=2.0**33, n=1, dtype="bf16")]


def test_the_source_of_what_is_no_name() -> None:
    """As of a name that the profile does not have."""
    hardware: Any = load("tpu-v5e")
    assert hardware.source("chip.hbm_gb_per_s")
    assert [hardware.source(asked) for asked in ("chip.colour", 3, ["chip.hbm_gb_per_s"])] == ["", "", ""]
