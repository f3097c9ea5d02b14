"""Amounts that are none are refused, whatever model is asked."""

import math
from typing import Any

import numpy as np
import pytest

from costmodels import KINDS, HardwareError, kernel_table, load
from costmodels.amounts import check_amounts


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
    """None is left out; nothing, and an array of nothing, are amounts."""
    check_amounts(bytes=None, flops=0, m=np.array([0, 10**18]), n=np.array([]))


def test_a_kernel_that_takes_no_time() -> None:
    """A scheduler prices products alone; no speed is told, and no warning of arithmetic."""
    table = kernel_table(load("tpu-v5e:scheduler"), flops=[0, 10**12], bytes=10**9, dtype="f32")
    assert table["tflop_per_s"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [4.5, math.nan, math.inf])
def test_axes_of_part_of_a_device(size: Any) -> None:
    """A size of 4.5 was one of 4."""
    with pytest.raises(HardwareError, match=f'axis "x" has size {size}'):
        load("tpu-v5e").place([("x", size)])
