"""Prices as pandas tables: one row for each collective, product or kernel that is asked about.

>>> h100 = costmodels.load("h100")
>>> costmodels.collective_table(h100.place([("x", 8)]), bytes=[2**20, 2**30], groups=[["x"]])
>>> costmodels.matmul_table(h100, m=[128, 4096], k=4096, n=4096, dtype="bf16")
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .amounts import as_amount, as_amounts, as_list, whole_ns
from .collectives import KINDS, Communication
from .compute import Roofline, Unit, matmul_bytes, matmul_flops
from .errors import HardwareError
from .topology import Axis

if TYPE_CHECKING:
    import pandas as pd

    from .hardware import Hardware


def collective_table(
    model: Communication,
    bytes: ArrayLike,
    groups: Sequence[Sequence[Axis]],
    kinds: Sequence[str] = KINDS,
) -> "pd.DataFrame":
    """Every kind over every group with every size: kind, axes, bytes, ns, devices, gb_per_s (bytes over time).

    `bytes` mean what `costmodels.collectives` says for each kind.

    Raises:
        HardwareError: a kind that there is not, a group that the mesh has not, or what is no amount.
    """
    import pandas as pd

    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise HardwareError(f'"{unknown[0]}" is not a collective', fix=f"There are {', '.join(KINDS)}.")
    groups = as_list("groups", groups, 'as in [["x"], ["x", "y"]]')
    sizes = _whole(np.atleast_1d(as_amount("bytes", bytes)))
    parts = [
        pd.DataFrame(
            {
                "kind": kind,
                "axes": ",".join(map(axis_text, group)),
                "bytes": sizes,
                "ns": getattr(model, f"{kind}_ns")(sizes, group),
                "devices": _devices(model, group),
            }
        )
        for kind in kinds
        for group in groups
    ]
    empty = pd.DataFrame({name: [] for name in ("kind", "axes", "bytes", "ns", "devices")})
    table = pd.concat(parts, ignore_index=True) if parts else empty
    return table.assign(gb_per_s=table["bytes"] / table["ns"].where(table["ns"] > 0))


def matmul_table(
    hardware: "Hardware", *, m: ArrayLike, k: ArrayLike, n: ArrayLike, dtype: str, batch: ArrayLike = 1
) -> "pd.DataFrame":
    """Products of broadcast sizes: m, k, n, batch, dtype, and the columns of a roofline.

    Raises:
        HardwareError: as `Hardware.matmul_roofline`, or a time beyond an int64.
    """
    import pandas as pd

    sizes = np.broadcast_arrays(*map(np.atleast_1d, as_amounts(m=m, k=k, n=n, batch=batch)))
    m_, k_, n_, batch_ = sizes
    flops, moved = matmul_flops(m_, k_, n_, batch_, dtype), matmul_bytes(m_, k_, n_, batch_, dtype)
    line = hardware.matmul_roofline(m=m_, k=k_, n=n_, batch=batch_, dtype=dtype)
    columns = {name: _whole(size) for name, size in zip(("m", "k", "n", "batch"), sizes, strict=True)}
    return pd.DataFrame({**columns, "dtype": dtype, **_columns(flops, moved, line)})


def kernel_table(
    hardware: "Hardware", *, flops: ArrayLike, bytes: ArrayLike, dtype: str, unit: Unit = "vector"
) -> "pd.DataFrame":
    """Kernels of broadcast operations and memory traffic: dtype, and the columns of a roofline.

    Raises:
        HardwareError: as `Hardware.kernel_roofline`, or a time beyond an int64.
    """
    import pandas as pd

    work, moved = np.broadcast_arrays(*map(np.atleast_1d, as_amounts(flops=flops, bytes=bytes)))
    line = hardware.kernel_roofline(work, moved, dtype, unit=unit)
    return pd.DataFrame({"dtype": dtype, **_columns(work, moved, line)})


def axis_text(axis: Axis) -> str:
    """An axis as Shardy writes it, without quotes: `x`, or `x:(2)4`."""
    return axis if isinstance(axis, str) else f"{axis[0]}:({axis[1]}){axis[2]}"


def _whole(sizes: NDArray[np.float64]) -> NDArray[Any]:
    """As whole numbers, where all are."""
    is_whole = ((sizes < 2**63) & (sizes == np.floor(sizes))).all()
    return sizes.astype(np.int64) if is_whole else sizes


def _columns(flops: Any, moved: Any, line: Roofline) -> dict[str, Any]:
    ns = np.asarray(line.ns)
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where(moved > 0, flops / moved, np.inf)
        speed = np.where(ns > 0, flops / ns / 1e3, 0.0)
    return {
        "flops": flops,
        "bytes": moved,
        "flop_per_byte": intensity,
        "bound": line.bound,
        "ns": whole_ns(ns),
        "tflop_per_s": speed,
    }


def _devices(model: Communication, group: Sequence[Axis]) -> int:
    sizes = dict(model.placement.mesh)
    return math.prod(sizes[axis] if isinstance(axis, str) else axis[2] for axis in group)
