"""Prices of the compiler's scheduler: its closed forms, and nothing for what it does not count."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodels
from costmodels import HardwareError, load
from costmodels.topology import Axis

V5E, V5P, V6E = (load(f"{name}:scheduler") for name in ("tpu-v5e", "tpu-v5p", "tpu-v6e"))
SQUARE = V5E.place([("x", 4), ("y", 4)])
AMOUNT = 933_000_000


@pytest.mark.parametrize(
    ("kind", "axes", "us"),
    [
        ("all_reduce", ["x"], 20_000),
        ("all_reduce", ["x", "y"], 10_000),
        ("reduce_scatter", ["y"], 10_000),
        ("reduce_scatter", ["x", "y"], 5_000),
        ("all_gather", ["x"], 10_000),
        ("all_gather", ["x", "y"], 10_000),
        ("all_to_all", ["x"], 30_000),
        ("all_to_all", ["x", "y"], 37_500),
        ("collective_permute", ["x"], 20_000),
        ("all_reduce", [("x", 2, 2)], 20_000),
    ],
)
def test_closed_forms(kind: str, axes: list[Axis], us: int) -> None:
    """93.3 GB/s of an axis of v5e in both directions; the whole result of a gather counts there; half an axis is priced as a whole one."""
    assert getattr(SQUARE, f"{kind}_ns")(AMOUNT, axes) == pytest.approx(us * 1000, rel=1e-9)


def test_gathers_of_other_chips_leave_out_the_own_part() -> None:
    for hardware, topology in ((V6E, (4, 4)), (V5P, (4, 2, 2))):
        placed = hardware.place([("x", 4), ("y", 4)], topology)
        assert placed.all_gather_ns(1_867_000_000, ["y"]) == pytest.approx(7_500_000, rel=1e-9)


def test_gathers_of_a_whole_square_of_four_take_half() -> None:
    """Two whole dimensions of two devices each, of any torus; not two devices each of longer ones, nor eight."""
    square = V5E.place([("x", 2), ("y", 2)], (2, 2))
    assert square.all_gather_ns(AMOUNT, ["x", "y"]) == pytest.approx(5_000_000, rel=1e-9)
    assert square.all_gather_ns(AMOUNT, ["x"]) == pytest.approx(10_000_000, rel=1e-9)
    assert SQUARE.all_gather_ns(AMOUNT, [("x", 2, 2), ("y", 2, 2)]) == pytest.approx(10_000_000, rel=1e-9)
    cube = V5P.place([("x", 2), ("y", 2), ("z", 2)], (2, 2, 2))
    assert cube.all_gather_ns(1_867_000_000, ["x", "z"]) == pytest.approx(3_750_000, rel=1e-9)
    assert cube.all_gather_ns(1_867_000_000, ["x", "y", "z"]) == pytest.approx(8_750_000, rel=1e-9)


def test_axes_over_several_dimensions() -> None:
    """An axis that rides on two dimensions of a torus has the links of both."""
    placed = V5P.place([("x", 4), ("y", 4)], (4, 2, 2))
    assert placed.all_reduce_ns(1_867_000_000, ["x"]) == pytest.approx(10_000_000, rel=1e-9)
    assert placed.all_to_all_ns(1_867_000_000, ["x", "y"]) == pytest.approx(37_500_000, rel=1e-9)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_linear_in_bytes(first: int, second: int) -> None:
    """Without latency: no bytes take no time, and two transfers what one of both takes, to the nanosecond."""
    for kind in (*costmodels.KINDS, "relayed_all_to_all"):
        time = getattr(SQUARE, f"{kind}_ns")
        assert time(0, ["x"]) == time(first, []) == 0
        assert abs(time(first, ["x"]) + time(second, ["x"]) - time(first + second, ["x"])) <= 2
        assert time(np.array([first, second]), ["x"]).tolist() == [time(first, ["x"]), time(second, ["x"])]


def test_products_at_peak_and_nothing_beside_them() -> None:
    """Unpadded, in whatever type the matrix unit takes; products of one row, elementwise work and copies take nothing."""
    assert V5E.matmul_ns(m=1000, k=1000, n=1000, dtype="bf16") == -(-2 * 10**9 // 197_000)
    assert V5E.matmul_ns(m=1000, k=1000, n=1000, dtype="i8") == V5E.matmul_ns(
        m=1000, k=1000, n=1000, dtype="f32"
    )
    assert [V5E.matmul_roofline(m=m, k=1000, n=1000, dtype="bf16").bound for m in (1, 2)] == [
        "nothing",
        "matrix",
    ]
    assert V5E.matmul_ns(m=1, k=1000, n=1000, dtype="bf16") == 0
    assert np.array_equal(V5E.matmul_ns(m=np.array([1, 2]), k=8, n=8, dtype="i32"), [0, 0])
    assert V5E.kernel_ns(10**12, 10**12, "f32") == 0
    assert V5E.copy_ns(10**9) == load("tpu-v5e").copy_ns(10**9) / V5E.own_share > 0


def test_all_else_is_the_profile_itself() -> None:
    """Memory, layouts and what is said of the compiler stay, and so does the file's word on each figure."""
    plain = load("tpu-v5e")
    assert V5E.name == "tpu-v5e:scheduler"
    assert msgspec.structs.replace(V5E, name="tpu-v5e", priced_by="links") == plain
    assert (plain.hidden_percent, V5E.hidden_percent, V5P.hidden_percent) == (0, 45, 0)


@pytest.mark.parametrize("name", ["h100", "tpu7x"])
def test_schedulers_that_are_not_known(name: str) -> None:
    with pytest.raises(HardwareError, match="is not known of") as caught:
        load(f"{name}:scheduler")
    assert "tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e" in str(caught.value.fix)


def test_several_slices_are_refused() -> None:
    with pytest.raises(HardwareError, match="2 slices are not priced by a scheduler"):
        V5E.place([("x", 8), ("y", 4)], (4, 4), slices=2)
