"""The roofline: hand-computed times, padding to the tile, element types."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels import Hardware, HardwareError, load, names

V5E, V6E, H100, H200 = load("tpu-v5e"), load("tpu-v6e"), load("h100"), load("h200")

dims = st.integers(1, 5000)


def test_a_large_product_runs_at_the_efficiency_of_peak() -> None:
    """8192^3 in bf16 on v5e: 2·8192³/(197e12·0.9) plus the overhead."""
    expected = 2 * 8192**3 / (197e3 * 0.9) + 1000
    assert V5E.matmul_ns(m=8192, k=8192, n=8192, dtype="bf16") == pytest.approx(expected, rel=1e-6)


def test_a_thin_product_is_bound_by_memory() -> None:
    """A decode step reads the weights: 8 rows by 8192x8192."""
    expected = (2 * 8 * 8192 + 8192**2) * 2 / (819 * 0.9) + 1000
    assert V5E.matmul_ns(m=8, k=8192, n=8192, dtype="bf16") == pytest.approx(expected, abs=1)


def test_small_sizes_are_padded_to_the_tile() -> None:
    """A contraction of 64 works as hard as one of 128 on v5e and one of 256 on v6e."""
    for tpu, tile in ((V5E, 128), (V6E, 256)):
        times = [tpu.matmul_ns(m=8192, k=k, n=8192, dtype="bf16", bytes=0) for k in (64, tile, tile + 1)]
        assert times[0] == times[1] < times[2]


def test_a_product_with_a_vector_leaves_the_matrix_unit() -> None:
    """Padding 1 to 128 twice would cost more than the vector unit takes."""
    padded = 2 * 1024 * 8192 * 128 * 128 / (197e3 * 0.9)
    assert V5E.matmul_ns(m=1, k=8192, n=1, batch=1024, dtype="bf16", bytes=0) < padded / 100


@given(m=dims, k=dims, n=dims, more=dims)
def test_a_larger_product_takes_no_less(m: int, k: int, n: int, more: int) -> None:
    """Monotone in each size, and halving a dimension by sharding never costs more."""
    whole = V5E.matmul_ns(m=m + more, k=k, n=n, dtype="bf16")
    assert V5E.matmul_ns(m=m, k=k, n=n, dtype="bf16") <= whole
    assert V5E.matmul_ns(m=n, k=k, n=m, dtype="bf16") <= whole
    assert V5E.matmul_ns(m=k, k=m, n=n, dtype="bf16") <= V5E.matmul_ns(m=k, k=m + more, n=n, dtype="bf16")


def test_arrays_broadcast() -> None:
    """One row of times for many sizes, equal to the single times."""
    m = np.array([1, 100, 4096])
    times = V5E.matmul_ns(m=m, k=1024, n=1024, dtype="bf16")
    assert isinstance(times, np.ndarray)
    assert times.dtype == np.int64
    assert times.tolist() == [V5E.matmul_ns(m=int(size), k=1024, n=1024, dtype="bf16") for size in m]
    kernels = V5E.kernel_ns(m * 1000, 10**6, "f32")
    assert kernels.tolist() == [V5E.kernel_ns(int(size) * 1000, 10**6, "f32") for size in m]


def test_elementwise_work_is_bound_by_memory_or_the_vector_unit() -> None:
    """An addition moves 12 bytes for one FLOP; a long polynomial does not."""
    assert V5E.kernel_ns(10**8, 12 * 10**8, "f32") == pytest.approx(12e8 / (819 * 0.9) + 1000, rel=1e-6)
    assert V5E.kernel_ns(10**10, 8 * 10**6, "f32") == pytest.approx(1e10 / 6144 + 1000, rel=1e-6)
    assert V5E.kernel_ns(10**10, 0, "bf16", unit="matrix") == pytest.approx(1e10 / 177_300 + 1000, rel=1e-3)


@pytest.mark.parametrize("name", names())
def test_narrow_types_are_no_slower(name: str) -> None:
    """Peaks fall, or stay, from 8-bit over 16-bit to 32-bit and 64-bit, and none is zero."""
    hardware = load(name)
    peaks = [hardware.peak_flop_per_s(dtype) for dtype in ("f8E4M3FN", "bf16", "f32", "f64")]
    assert peaks == sorted(peaks, reverse=True)
    assert hardware.peak_flop_per_s("i4") == hardware.peak_flop_per_s("i8") > 0
    assert hardware.peak_flop_per_s("i32") == hardware.peak_flop_per_s("f32", "vector") > 0


def test_f32_products_run_at_default_precision() -> None:
    """On TPU one bf16 pass, on H100 TF32."""
    assert V5E.peak_flop_per_s("f32") == V5E.peak_flop_per_s("bf16")
    assert H100.peak_flop_per_s("f32") == H100.peak_flop_per_s("bf16") / 2


def test_a_complex_product_is_four_real_ones() -> None:
    """(a+bi)(c+di) takes four multiplications and as many additions."""
    size = {"m": 2048, "k": 2048, "n": 2048}
    real, imaginary = (V5E.matmul_ns(**size, dtype=dtype, bytes=0) for dtype in ("f32", "complex<f32>"))
    assert imaginary - 1000 == pytest.approx(4 * (real - 1000), rel=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "fp8", "", "i3", "f"])
def test_unknown_types_are_refused(dtype: str) -> None:
    """Nothing unknown is free: the error lists the known types."""
    with pytest.raises(HardwareError, match="is not a known element type"):
        V5E.kernel_ns(1, 1, dtype)


def test_types_with_an_efficiency_of_their_own() -> None:
    """8192^3 on an H200 in types whose kernels differ; bf16 and f16 are the profile's own."""
    chip, flops = H200.chip, 2 * 8192**3
    overhead = 1e3 * (chip.kernel_overhead_us + (chip.matrix_overhead_us or 0))
    for dtype, peak, efficiency in (
        ("bf16", 989e3, chip.matrix_efficiency),
        ("f16", 989e3, chip.matrix_efficiency),
        ("f32", 494.5e3, chip.f32_matrix_efficiency),
        ("f64", 67e3, chip.f64_matrix_efficiency),
        ("f8E4M3FN", 1979e3, chip.f8_matrix_efficiency),
        ("i8", 1979e3, chip.i8_matrix_efficiency),
    ):
        assert efficiency is not None
        expected = flops / (peak * efficiency) + overhead
        assert H200.matmul_ns(m=8192, k=8192, n=8192, dtype=dtype) == pytest.approx(expected, rel=1e-6), dtype


def test_positions_that_are_gone_through_in_turn() -> None:
    """Three kernels of one H200, in which 8 elements of bf16 are summed at once: 437 ms of a U-Net, 15.2 and 3.3 of a vocoder.

    They are gradients by filters of 27, 3 and 11 places: few results, for which the matrix unit would take next to nothing.
    """

    def work_ns(
        hardware: Hardware, in_turn: tuple[int, int], k: int, m: int, n: int, dtype: str = "bf16"
    ) -> Any:
        return hardware.matmul_roofline(m=m, k=k, n=n, dtype=dtype, in_turn=in_turn).work_ns

    for positions, places, images, m, n, measured in (
        (128**3, 27, 2, 64, 3, 437e6),
        (65536, 3, 4, 32, 32, 15.2e6),
        (16384, 11, 4, 64, 64, 3.3e6),
    ):
        k, in_turn = positions * places * images, (positions, places)
        assert work_ns(H200, in_turn, k, m, n) == pytest.approx(measured, rel=0.15)
        assert work_ns(H200, (0, 1), k, m, n) < 0.05 * measured
        assert work_ns(V5E, in_turn, k, m, n) == work_ns(V5E, (0, 1), k, m, n)
    assert work_ns(H200, (1024, 9), 1024 * 9 * 8, 2048, 256) == pytest.approx(0.83e6, rel=0.15)
    half, whole = (work_ns(H200, (65536, 1), 65536 * 8, 64, 64, dtype) for dtype in ("bf16", "f32"))
    assert whole == pytest.approx(2 * half)


@pytest.mark.parametrize(("m", "k", "n"), [(4096, 4095, 4096), (4096, 4096, 4095)])
def test_rows_that_are_no_multiple_of_16_bytes(m: int, k: int, n: int) -> None:
    """Slower on Hopper: 8 elements of bf16 and 4 of f32 are 16 bytes. m is no row; TPUs pad and do not mind."""
    even = H200.matmul_roofline(m=4096, k=4096, n=4096, dtype="bf16").work_ns
    odd = H200.matmul_roofline(m=m, k=k, n=n, dtype="bf16").work_ns
    read = H200.matmul_roofline(m=m, k=k, n=n, dtype="bf16", bytes=10**9).memory_ns
    whole = H200.matmul_roofline(m=4096, k=4096, n=4096, dtype="bf16", bytes=10**9).memory_ns
    assert read == pytest.approx(whole / (H200.chip.misaligned_efficiency or 1))
    assert odd == pytest.approx(even / (H200.chip.misaligned_efficiency or 1))
    assert H200.matmul_roofline(m=4095, k=4096, n=4096, dtype="bf16").work_ns == even
    assert H200.matmul_roofline(m=m, k=k, n=n, dtype="bf16", rows=()).work_ns == even
    assert H200.matmul_roofline(m=4096, k=4096, n=4096, dtype="bf16", rows=(4095,)).work_ns == odd
    k4, n4 = k // 4 * 4 + 4, n // 4 * 4 + 4
    ratio = k4 * n4 / 4096**2
    f32 = H200.matmul_roofline(m=4096, k=4096, n=4096, dtype="f32").work_ns
    assert H200.matmul_roofline(m=m, k=k4, n=n4, dtype="f32").work_ns == pytest.approx(f32 * ratio, rel=0.05)
    assert V5E.matmul_ns(m=m, k=k, n=n, dtype="bf16", bytes=0) == V5E.matmul_ns(
        m=4096, k=4096, n=4096, dtype="bf16", bytes=0
    )
