"""Time of a kernel on one device: a roofline with padding to the matrix unit's tile.

1. kernel = max(FLOP/(peak·efficiency), bytes/(bandwidth·efficiency)) + overhead [1].
2. A matrix product of [m, k] by [k, n] works on whole tiles: 2·⌈m⌉·⌈k⌉·⌈n⌉ FLOP with each size rounded up to
   the tile [2]; where the vector unit does the unpadded product sooner (a size is 1, say), it does it.

Units are those of `figures`; 1 TFLOP/s is 1000 FLOP/ns.

[1] Williams et al., Roofline, 2009.
[2] "How to Scale Your Model", chapter on TPUs: sizes are padded to 128, 256 on v6e, to fill the matrix unit.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import HardwareError
from .figures import Chip

Quantity = int | float | NDArray[Any]
Unit = Literal["matrix", "vector"]

_WIDE = {"i64": 64, "ui64": 64, "f64": 64, "complex<f32>": 64, "complex<f64>": 128}
_NARROW = {"i32": 32, "ui32": 32, "f32": 32, "i16": 16, "ui16": 16, "f16": 16, "bf16": 16}
_BYTE = {"i8": 8, "ui8": 8, "i1": 8}
_BITS = _WIDE | _NARROW | _BYTE | {"i4": 4, "ui4": 4, "i2": 2, "ui2": 2}


def bits(dtype: str) -> int:
    """Bits of one element of an MLIR element type as it lies in memory ("i1" takes a byte).

    Raises:
        HardwareError: a type that is not known.
    """
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype.startswith("f") and dtype[1:2] in ("4", "6", "8"):
        return 8 if dtype[1] in "68" else 4
    raise HardwareError(
        f'"{dtype}" is not a known element type', fix=f"Known: {', '.join(_BITS)}, f8*, f6*, f4*."
    )


def matrix_flop_per_ns(chip: Chip, dtype: str) -> float | None:
    """Peak of one device's matrix unit on real multiply-adds; None where it has none for the type.

    Types that the unit lacks run as the next wider one that it has.
    """
    width = bits(dtype)
    match dtype:
        case "bf16":
            peak = chip.bf16_tflop_per_s
        case "f16":
            peak = chip.f16_tflop_per_s or chip.bf16_tflop_per_s
        case "f32" | "complex<f32>":
            peak = chip.f32_tflop_per_s
        case "f64" | "complex<f64>":
            peak = chip.f64_tflop_per_s
        case _ if dtype.startswith("f"):
            peak = chip.f8_tflop_per_s or chip.bf16_tflop_per_s
        case _ if width <= 8:
            peak = chip.i8_top_per_s or chip.bf16_tflop_per_s
        case _:
            peak = None
    return None if peak is None else peak * 1e3 / chip.devices_per_chip


def vector_flop_per_ns(chip: Chip, dtype: str) -> float:
    """Peak of one device's vector unit: lanes of 32 bits, so wider elements take several."""
    return chip.elementwise_gflop_per_s / max(1, bits(dtype) // 32) / chip.devices_per_chip


def memory_ns(chip: Chip, bytes: Quantity) -> Quantity:
    """Time to move `bytes` between one device and its memory."""
    return bytes / (chip.hbm_gb_per_s / chip.devices_per_chip * chip.hbm_efficiency)


def kernel_ns(chip: Chip, flops: Quantity, bytes: Quantity, dtype: str, unit: Unit) -> Quantity:
    """Formula 1. `flops` count real operations; a type without matrix unit runs on the vector unit."""
    peak = matrix_flop_per_ns(chip, dtype) if unit == "matrix" else None
    rate = vector_flop_per_ns(chip, dtype) if peak is None else peak * chip.matrix_efficiency
    return np.maximum(flops / rate, memory_ns(chip, bytes)) + chip.kernel_overhead_us * 1e3


def matmul_ns(
    chip: Chip, m: Quantity, k: Quantity, n: Quantity, batch: Quantity, dtype: str, bytes: Quantity | None
) -> Quantity:
    """Formula 2 within formula 1; `bytes` None: the two operands and the result once, all of type `dtype`."""
    moved = batch * (m * k + k * n + m * n) * (bits(dtype) / 8) if bytes is None else bytes
    real = 8.0 if dtype.startswith("complex") else 2.0
    work = real * batch * m * k * n / vector_flop_per_ns(chip, dtype)
    peak = matrix_flop_per_ns(chip, dtype)
    if peak is not None:
        tile = chip.matrix_tile
        padded = real * batch * _padded(m, tile) * _padded(k, tile) * _padded(n, tile)
        work = np.minimum(work, padded / (peak * chip.matrix_efficiency))
    return np.maximum(work, memory_ns(chip, moved)) + chip.kernel_overhead_us * 1e3


def _padded(size: Quantity, tile: int) -> Quantity:
    return np.ceil(np.asarray(size) / tile) * tile
