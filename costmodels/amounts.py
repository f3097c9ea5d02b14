"""One number or an array of them: what the cost models take and give back.

Every amount, size and shape that a user gives is read here, so that all methods accept the same and refuse the rest alike.
"""

import math
import numbers
import reprlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import HardwareError

Integers = NDArray[np.int64]
Number = float | NDArray[np.float64]

Item = TypeVar("Item")
Amount = TypeVar("Amount", int, NDArray[np.int64])
"""A whole number, or an int64 array of them: the answer has the same form as the question."""

MOST = 1e30
"""An amount is at most this, so that no product of four overflows."""
_MOST_NS = 2**63
_MOST_BITS = 2**53
"""A tensor is of fewer (a pebibyte), which fit in an int64 with the padding of tiles."""

# A sum of doubles that is whole on paper may lie a hair above its whole number: not a nanosecond more.
_DECIMALS = 3


def as_amount(name: str, given: object) -> Number:
    """A number as a float, and whatever numpy makes an array of numbers of (a list, a column of a table) as one of float64.

    Raises:
        HardwareError: what is no number, or one that is negative, not finite, or above `MOST`.
    """
    if _is_number(given):
        if not 0 <= given <= MOST:
            raise _no_amount(name, given)
        return float(given)
    found = _as_numbers(given)
    if found is None:
        raise _no_amount(name, given)
    is_wrong = ~((found >= 0) & (found <= MOST))
    if is_wrong.any():
        raise _no_amount(name, found[is_wrong][0])
    return found


def as_amounts(**given: object) -> list[Number]:
    """Amounts by name, each as `as_amount` has it.

    Raises:
        HardwareError: one that is no amount, or arrays whose shapes do not broadcast.
    """
    found = [as_amount(name, each) for name, each in given.items()]
    shapes = {
        name: each.shape for name, each in zip(given, found, strict=True) if isinstance(each, np.ndarray)
    }
    if len(set(shapes.values())) > 1:
        try:
            np.broadcast_shapes(*shapes.values())
        except ValueError:
            told = ", ".join(f"{name} has shape {shape}" for name, shape in shapes.items())
            raise HardwareError(f"{told}: they do not broadcast", fix="Write arrays of one shape.") from None
    return found


def as_whole(name: str, given: object, *, where: str) -> int:
    """A whole number, however it is typed (4, numpy's 4, 4.0).

    Raises:
        HardwareError: anything else.
    """
    if isinstance(given, int):
        return int(given)
    if not _is_number(given) or not float(given).is_integer():
        raise HardwareError(f"{name} {_shown(given)}", where=where, fix="Sizes are whole numbers.")
    return int(given)


def as_list(name: str, given: Iterable[Item] | object, example: str) -> list[Item]:
    """What is in a list, or in whatever can be gone through like one.

    Raises:
        HardwareError: what is none.
    """
    if not isinstance(given, Iterable):
        raise HardwareError(f"{reprlib.repr(given)} is no list", where=name, fix=f"Write a list, {example}.")
    return list(given)


def as_sizes(name: str, given: object) -> tuple[int, ...]:
    """Several whole numbers, such as the sizes of a topology.

    Raises:
        HardwareError: what are none.
    """
    sizes = as_list(name, given, "as in (4,) or (4, 4)")
    return tuple(as_whole("there is a size", each, where=name) for each in sizes)


def as_counts(name: str, given: object, example: tuple[int, ...]) -> tuple[int, ...]:
    """As many whole numbers from 0 as the example has.

    Raises:
        HardwareError: what are none.
    """
    counts = as_sizes(name, given)
    if len(counts) != len(example) or min(counts) < 0:
        raise HardwareError(
            f"{name} is {reprlib.repr(given)}",
            fix=f"Write {len(example)} whole numbers from 0, as in {example}.",
        )
    return counts


def check_dims(name: str, given: object, rank: int) -> None:
    """Refuses what are not two collections of dimensions of a tensor of this rank, and perhaps True, False or "paired" behind them.

    Raises:
        HardwareError: anything else.
    """
    kinds = tuple(given) if isinstance(given, Collection) else ()
    sides = [kind for kind in kinds[:2] if _are_dims(kind, rank)]
    order = kinds[2] if len(kinds) == 3 else False
    is_order = isinstance(order, bool | np.bool_) or (order == "paired" and _are_pairs(*sides))
    if len(kinds) not in (2, 3) or len(sides) < 2 or not is_order:
        raise HardwareError(
            f"{name} is {reprlib.repr(given)}",
            fix=f"Write two lists of dimensions below {rank}, as in ([0], [1]), or None for any; behind them True where the first is minor "
            f'to the second, or "paired" of two lists as long, with another dimension at each place.',
        )


def _are_pairs(*sides: Any) -> bool:
    """Whether these are two lists as long that have another item at each place."""
    are_lists = len(sides) == 2 and all(isinstance(side, Sequence) for side in sides)
    return (
        are_lists and len(sides[0]) == len(sides[1]) > 0 and all(a != b for a, b in zip(*sides, strict=True))
    )


def as_shapes(shapes: object, element_bits: object) -> Integers:
    """[count, rank] shapes of tensors of elements of so many bits, one a row; an empty list is no shapes.

    Raises:
        HardwareError: another rank than 2, a size that is no whole number from 0, elements of no bits, or a tensor beyond `_MOST_BITS`.
    """
    if not isinstance(element_bits, (int, np.integer)) or element_bits <= 0:
        raise HardwareError(
            f"element_bits is {reprlib.repr(element_bits)}", fix="Write a whole number from 1, as 16 of bf16."
        )
    found = shapes if isinstance(shapes, np.ndarray) else _as_numbers(shapes)
    if found is not None and not isinstance(shapes, np.ndarray) and found.shape == (0,):
        found = found.reshape(0, 0)
    if found is None or found.ndim != 2 or found.dtype.kind not in "iuf":
        raise HardwareError(
            f"shapes is {reprlib.repr(shapes)}",
            fix="Write one shape of whole numbers a row, all of one rank, as in [[50257, 1024]].",
        )
    is_wrong = found < 0
    if found.dtype.kind == "f":
        is_wrong |= ~(np.isfinite(found) & (found == np.floor(found)))
    if is_wrong.any():
        raise HardwareError(
            f"shapes has a dimension of {found[is_wrong][0]:g}", fix="Dimensions are whole numbers from 0."
        )
    with np.errstate(over="ignore"):
        most = np.prod(found, axis=1, dtype=np.float64).max(initial=0) * element_bits
    if most >= _MOST_BITS:
        raise HardwareError(
            f"shapes has a tensor of {most / 8:.4g} bytes", fix=f"Tensors have fewer than {_MOST_BITS // 8}."
        )
    return found.astype(np.int64, copy=False)


def whole_ns(ns: float | NDArray[Any]) -> int | Integers:
    """`ns` rounded up to whole nanoseconds: an int for a number, an int64 array for an array.

    Raises:
        HardwareError: no number, or a time beyond an int64.
    """
    if isinstance(ns, np.ndarray):
        longest = float(ns.max(initial=0))
        if not longest < _MOST_NS:
            raise _too_long(longest)
        return np.ceil(np.round(ns, _DECIMALS)).astype(np.int64)
    if not _is_number(ns):
        raise _no_amount("ns", ns)
    if not ns < _MOST_NS:
        raise _too_long(float(ns))
    return math.ceil(round(float(ns), _DECIMALS))


def affine_ns(amount: Amount, fixed_ns: float, ns_per_byte: float) -> Amount:
    """`fixed_ns + amount · ns_per_byte` in whole nanoseconds, rounded up.

    Raises:
        HardwareError: what is no amount, or a time beyond an int64.
    """
    found: Any = whole_ns(fixed_ns + as_amount("bytes", amount) * ns_per_byte)
    return found


def _are_dims(given: object, rank: int) -> bool:
    return isinstance(given, Collection) and all(
        isinstance(dim, (int, np.integer)) and 0 <= dim < rank for dim in given
    )


def _is_number(given: object) -> TypeGuard[float]:
    return isinstance(given, (int, float, numbers.Real))


def _as_numbers(given: object) -> NDArray[np.float64] | None:
    """None of what is no array of numbers; text that reads as a number is none."""
    try:
        found = np.asarray(given)
    except (ValueError, TypeError):  # rows of different lengths
        return None
    is_mixed = found.dtype.kind == "O" and all(map(_is_number, found.flat))
    return found.astype(np.float64) if found.dtype.kind in "biuf" or is_mixed else None


def _no_amount(name: str, given: object) -> HardwareError:
    return HardwareError(
        f"{name} is {_shown(given)}", fix=f"Write a number from 0 to {MOST:g}, or an array or a list of such."
    )


def _shown(given: object) -> str:
    return str(given) if isinstance(given, np.number) else reprlib.repr(given)


def _too_long(ns: float) -> HardwareError:
    return HardwareError(
        f"a time of {ns:.4g} ns is longer than can be told",
        fix="Check the sizes and their unit: times are below 2^63 ns.",
    )
