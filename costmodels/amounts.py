"""One number or an array of them: what the cost models take and give back."""

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import HardwareError

Integers = NDArray[np.int64]

Amount = TypeVar("Amount", int, NDArray[np.int64])
"""A whole number, or an int64 array of them: the answer has the same form as the question."""

# A sum of doubles that is whole on paper may lie a hair above its whole number: not a nanosecond more.
_DECIMALS = 3


def check_amounts(**amounts: float | NDArray[Any] | None) -> None:
    """Amounts by name, None for one that is left out.

    Raises:
        HardwareError: one that is negative or not finite.
    """
    for name, amount in amounts.items():
        if isinstance(amount, np.ndarray):
            wrong = amount[~((amount >= 0) & (amount < np.inf))]
            if wrong.size:
                raise _no_amount(name, wrong[0])
        elif amount is not None and not 0 <= amount < math.inf:
            raise _no_amount(name, amount)


def _no_amount(name: str, amount: float) -> HardwareError:
    return HardwareError(f"{name} is {amount}", fix="Write a number from 0.")


def whole_ns(ns: float | NDArray[Any]) -> int | Integers:
    """`ns` rounded up to whole nanoseconds: an int for a number, an int64 array for an array."""
    if isinstance(ns, np.ndarray):
        return np.ceil(np.round(ns, _DECIMALS)).astype(np.int64)
    return math.ceil(round(float(ns), _DECIMALS))


def affine_ns(amount: Amount, fixed_ns: float, ns_per_byte: float) -> Amount:
    """`fixed_ns + amount · ns_per_byte` in whole nanoseconds, rounded up.

    Raises:
        HardwareError: an amount that is negative or not finite.
    """
    check_amounts(bytes=amount)
    if isinstance(amount, np.ndarray):
        return np.ceil(np.round(fixed_ns + amount * ns_per_byte, _DECIMALS)).astype(np.int64)
    return math.ceil(round(fixed_ns + amount * ns_per_byte, _DECIMALS))
