"""MLIR element types as numpy ones (`ml_dtypes` has those that numpy lacks), and how finely they round."""

import ml_dtypes
import numpy as np

from autoshard.errors import AutoshardError

_NUMPY: dict[str, np.dtype] = {
    "i1": np.dtype(bool),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
    "i2": np.dtype(ml_dtypes.int2),
    "i4": np.dtype(ml_dtypes.int4),
    "ui2": np.dtype(ml_dtypes.uint2),
    "ui4": np.dtype(ml_dtypes.uint4),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "f8E3M4": np.dtype(ml_dtypes.float8_e3m4),
    "f8E4M3": np.dtype(ml_dtypes.float8_e4m3),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}


def numpy_dtype(element: str) -> np.dtype:
    """`bf16` as `ml_dtypes.bfloat16`; signless integers count as signed.

    Raises:
        AutoshardError: quantised types and tokens have no values that could be drawn and compared.
    """
    dtype = _NUMPY.get(element)
    if dtype is None:
        raise AutoshardError(f"no random values can be drawn for element type {element}")
    return dtype


def is_float(element: str) -> bool:
    return element.startswith(("f", "bf"))


def is_complex(element: str) -> bool:
    return element.startswith("complex<")


def is_integer(element: str) -> bool:
    return element.startswith(("i", "ui")) and element != "i1" and element != "index"


def epsilon(element: str) -> float:
    """Distance from 1 to the next larger value of a floating or complex type."""
    if is_complex(element):
        return epsilon(element[len("complex<") : -1])
    return float(ml_dtypes.finfo(numpy_dtype(element)).eps)
