"""The one door to numba: compiled on first use, kept on disk, imported only by the engines that need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile to native code; the signature stays that of the Python function."""
    return numba.njit(cache=True, nogil=True, boundscheck=False)(function)  # type: ignore[return-value]  # untyped
