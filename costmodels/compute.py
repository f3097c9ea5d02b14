"""Time of a kernel on one device: a roofline with padding to the matrix unit's tile.

1. kernel = max(FLOP/(peak·efficiency), bytes/(bandwidth·efficiency)) + overhead [1].
2. A matrix product of [m, k] by [k, n] works on whole tiles: 2·⌈m⌉·⌈k⌉·⌈n⌉ FLOP with each size rounded up to
   the tile [2]; where the vector unit does the unpadded product sooner (a size is 1, say), it does it.
3. On chips whose copy engine takes rows only in multiples of 16 bytes [3], a product with a row that is none is that much
   slower, whether it multiplies or reads. Rows are of k and of n elements unless other ones are given.
4. A convolution with more positions in its window than places for it has too few results to fill a GPU, and where no kernel
   splits what it sums (gradients by the filters of dilated and of transposed convolutions) it goes through them in turn:
   positions · ⌈what it sums at one, of 16 bytes⌉ · max(1, results/results at once) · time of a position [4].

Units are those of `figures`; 1 TFLOP/s is 1000 FLOP/ns.

[1] Williams et al., Roofline, 2009.
[2] "How to Scale Your Model", chapter on TPUs: sizes are padded to 128, 256 on v6e, to fill the matrix unit.
[3] NVIDIA, CUDA C++ programming guide, tensor memory access: strides of a multiple of 16 bytes.
[4] cuDNN on one H200, 64 kernels with windows of 1024 to 2 097 152 positions: experiments/calibration.
"""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
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
    return _bits(dtype)


def _bits(dtype: object) -> int:
    told = f'"{dtype}"' if isinstance(dtype, str) else reprlib.repr(dtype)
    if isinstance(dtype, str):
        if dtype in _BITS:
            return _BITS[dtype]
        if dtype.startswith("f") and dtype[1:2] in ("4", "6", "8"):
            return 8 if dtype[1] in "68" else 4
    raise HardwareError(
        f"{told} is not a known element type", fix=f"Known: {', '.join(_BITS)}, f8*, f6*, f4*."
    )


def matrix_flop_per_ns(chip: Chip, dtype: str) -> float | None:
    """Peak of one device's matrix unit on real multiply-adds; None where it has none for the type.

    Types that the unit lacks run as the next wider one that it has.
    """
    peak, _ = _matrix_unit(chip, dtype)
    return None if peak is None else peak * 1e3 / chip.devices_per_chip


def matrix_efficiency(chip: Chip, dtype: str) -> float:
    """The share of that peak which large products reach."""
    _, own = _matrix_unit(chip, dtype)
    return chip.matrix_efficiency if own is None else own


def _matrix_unit(chip: Chip, dtype: str) -> tuple[float | None, float | None]:
    """The chip's peak on a type, and the efficiency that the type has of its own."""
    width = bits(dtype)
    bf16 = chip.bf16_tflop_per_s, None
    match dtype:
        case "bf16":
            return bf16
        case "f16":
            return chip.f16_tflop_per_s or chip.bf16_tflop_per_s, None
        case "f32" | "complex<f32>":
            return chip.f32_tflop_per_s, chip.f32_matrix_efficiency
        case "f64" | "complex<f64>":
            return chip.f64_tflop_per_s, chip.f64_matrix_efficiency
        case _ if dtype.startswith("f"):
            return (chip.f8_tflop_per_s, chip.f8_matrix_efficiency) if chip.f8_tflop_per_s else bf16
        case _ if width <= 8:
            return (chip.i8_top_per_s, chip.i8_matrix_efficiency) if chip.i8_top_per_s else bf16
        case _:
            return None, None


def vector_flop_per_ns(chip: Chip, dtype: str) -> float:
    """Peak of one device's vector unit: lanes of 32 bits, so wider elements take several."""
    return chip.elementwise_gflop_per_s / max(1, bits(dtype) // 32) / chip.devices_per_chip


def memory_ns(chip: Chip, bytes: Quantity) -> Quantity:
    """Time to move `bytes` between one device and its memory."""
    return bytes / (chip.hbm_gb_per_s / chip.devices_per_chip * chip.hbm_efficiency)


@dataclass(frozen=True, slots=True)
class Roofline:
    """What bounds a kernel on one device; every field is a number, or an array of them as asked.

    `work_ns` is the time of the operations on `unit`, `memory_ns` that of the memory traffic; the longer of the two and
    `overhead_ns` make the kernel's time.
    """

    work_ns: Quantity
    memory_ns: Quantity
    overhead_ns: float
    unit: Any  # "matrix" or "vector", or an array of those

    @property
    def ns(self) -> Quantity:
        """Time of the kernel."""
        return np.maximum(self.work_ns, self.memory_ns) + self.overhead_ns

    @property
    def bound(self) -> Any:
        """What the kernel spends most of its time on: "matrix", "vector", "memory" or "overhead"; "nothing" where it takes none."""
        longest = np.where(np.asarray(self.work_ns) > self.memory_ns, self.unit, "memory")
        found = np.where(np.maximum(self.work_ns, self.memory_ns) < self.overhead_ns, "overhead", longest)
        found = np.where(np.asarray(self.ns) == 0, "nothing", found)
        return found if found.ndim else str(found)


def kernel_roofline(chip: Chip, flops: Quantity, bytes: Quantity, dtype: str, unit: Unit) -> Roofline:
    """Formula 1. `flops` count real operations; a type without matrix unit runs on the vector unit."""
    peak = matrix_flop_per_ns(chip, dtype) if unit == "matrix" else None
    rate = vector_flop_per_ns(chip, dtype) if peak is None else peak * matrix_efficiency(chip, dtype)
    where = "vector" if peak is None else "matrix"
    return Roofline(flops / rate, memory_ns(chip, bytes), chip.kernel_overhead_us * 1e3, where)


def matmul_bytes(m: Quantity, k: Quantity, n: Quantity, batch: Quantity, dtype: str) -> Quantity:
    """Both operands and the result once, all of type `dtype`."""
    return batch * (m * k + k * n + m * n) * (bits(dtype) / 8)


def matmul_flops(m: Quantity, k: Quantity, n: Quantity, batch: Quantity, dtype: str) -> Quantity:
    """Real operations of the product itself, without padding."""
    bits(dtype)  # refuses what is no type
    return (8.0 if dtype.startswith("complex") else 2.0) * batch * m * k * n


def matmul_roofline(
    chip: Chip,
    m: Quantity,
    k: Quantity,
    n: Quantity,
    batch: Quantity,
    dtype: str,
    bytes: Quantity | None,
    rows: Sequence[Quantity] | None = None,
    in_turn: tuple[int, int] = (0, 1),
) -> Roofline:
    """Formulas 2 to 4 within formula 1; `bytes` None: `matmul_bytes`, `rows` None: of k and n elements."""
    moved = matmul_bytes(m, k, n, batch, dtype) if bytes is None else bytes
    work, unit = matmul_flops(m, k, n, batch, dtype) / vector_flop_per_ns(chip, dtype), "vector"
    reached, peak = 1.0, matrix_flop_per_ns(chip, dtype)
    if peak is not None:
        tile, aligned = chip.matrix_tile, _alignment(chip, (k, n) if rows is None else rows, dtype)
        padded = matmul_flops(_padded(m, tile), _padded(k, tile), _padded(n, tile), batch, dtype)
        on_matrix = padded / (peak * matrix_efficiency(chip, dtype) * aligned)
        fills_it = np.asarray(on_matrix) <= work
        unit, work = np.where(fills_it, "matrix", "vector"), np.minimum(work, on_matrix)
        reached = np.where(fills_it, aligned, 1.0)
    work = np.maximum(work, _in_turn_ns(chip, *in_turn, k, m * n * batch, dtype))
    overhead_us = chip.kernel_overhead_us + (chip.matrix_overhead_us or 0.0)
    return Roofline(work, memory_ns(chip, moved) / reached, overhead_us * 1e3, unit)


def scheduled_flops(m: Quantity, k: Quantity, n: Quantity, batch: Quantity, dtype: str) -> Quantity:
    """What a compiler for matrix units counts of a product: none where one side has one row or column, or the contraction one element."""
    is_product = (np.minimum(np.minimum(m, n), k) > 1).astype(np.float64)
    return is_product * matmul_flops(m, k, n, batch, dtype)


def product_at_peak(chip: Chip, flops: Quantity, dtype: str) -> Roofline:
    """Operations at the matrix unit's peak of bf16, whatever their type, and nothing beside them; none of a type that it has not."""
    has_unit = matrix_flop_per_ns(chip, dtype) is not None
    work = flops / (chip.bf16_tflop_per_s * 1e3 / chip.devices_per_chip) if has_unit else 0.0 * flops
    return Roofline(work, 0.0 * work, 0.0, "matrix")


def _alignment(chip: Chip, rows: Sequence[Quantity], dtype: str) -> Quantity:
    """Formula 3: what of the speed is left."""
    if chip.row_bytes is None or chip.misaligned_efficiency is None:
        return 1.0
    rest = sum((np.asarray(row) * (bits(dtype) / 8) % chip.row_bytes for row in rows), np.asarray(0.0))
    return np.where(rest > 0, chip.misaligned_efficiency, 1.0)


def _in_turn_ns(
    chip: Chip, positions: int, places: int, k: Quantity, results: Quantity, dtype: str
) -> Quantity:
    """Formula 4; 0 where no position is gone through in turn, or the chip has no figure for it."""
    if positions * places == 0 or chip.position_us is None or chip.results_at_once is None:
        return 0.0
    steps = np.ceil(k / (positions * places) * bits(dtype) / 128)
    waves = np.maximum(1.0, results * places / chip.results_at_once)
    return positions * steps * waves * chip.position_us * 1e3


def _padded(size: Quantity, tile: int) -> Quantity:
    return np.ceil(np.asarray(size) / tile) * tile
