"""What the functions that Python callers use take, by the names of their arguments, which mean the same in all of them.

Values of other types are refused before any work; what a value of the right type may say is read where it is used.
"""

import functools
import inspect
import os
import reprlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ParamSpec, TypeVar, cast

from autoshard.errors import AutoshardError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Taken:
    """What an argument may be, as a person would say it, and whether a value is that."""

    what: str
    fits: Callable[[object], bool]

    @staticmethod
    def of(what: str, *types: type) -> "Taken":
        return Taken(what, lambda given: isinstance(given, types))


def _is_whole(given: object, least: int) -> bool:
    return isinstance(given, Integral) and int(given) >= least


def _are(given: object, is_one: Callable[[object], bool]) -> bool:
    if not isinstance(given, Collection) or isinstance(given, (str, bytes)):
        return False
    items = cast(Collection[object], given)
    return all(map(is_one, items))


def _is_time(given: object) -> bool:
    return isinstance(given, Real) and float(given) >= 0


_NUMBER = Taken.of("a number", Real)
_SHARDING = Taken.of("""a sharding as text, as in '[{"x"}, {}]'""", str)
TAKEN = {
    "mesh": Taken.of('names and sizes of axes, as in {"data": 4, "model": 4}', Iterable),
    "hardware": Taken.of("the name of a profile, or the path of one", str, os.PathLike),
    "topology": Taken(
        "sizes in whole numbers, as in (4, 4)", lambda given: _are(given, lambda one: _is_whole(one, 0))
    ),
    "slices": Taken("a whole number", lambda given: _is_whole(given, 0)),
    "placement": Taken.of('a placement as text, as in "x=0,y=1"', str),
    "memory_bytes": Taken.of('a number of bytes, "chip", or None for no limit', str, Real, type(None)),
    "time_limit_s": Taken("a number of seconds, as in 60", _is_time),
    "seed": Taken("a whole number from 0", lambda given: _is_whole(given, 0)),
    "threads": Taken("a whole number from 1", lambda given: _is_whole(given, 1)),
    "devices": Taken("a whole number from 1", lambda given: _is_whole(given, 1)),
    "most_axes": Taken("a whole number from 1", lambda given: _is_whole(given, 1)),
    "progress": Taken("a function of what is done and which part of it", callable),
    "value": Taken.of("the name of a value as text, as in 'arg3'", str),
    "figures": Taken(
        'names of figures, as in ["link-bandwidth"]',
        lambda given: _are(given, lambda one: isinstance(one, str)),
    ),
    "span": _NUMBER,
    "precision": _NUMBER,
    "shape": Taken.of('sizes and an element type as text, as in "8192x8192xbf16"', str),
    "before": _SHARDING,
    "after": _SHARDING,
}
"""What an argument is by default is taken besides."""


def checked(**more: Taken) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function raise AutoshardError for an argument that is not what `TAKEN`, or `more`, has of its name."""
    taken = {**TAKEN, **more}

    def with_checks(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, given in signature.bind(*args, **kwargs).arguments.items():
                is_default = given is signature.parameters[name].default
                if name in taken and not is_default and not taken[name].fits(given):
                    raise AutoshardError(
                        f"{name} is {reprlib.repr(given)}",
                        where=f"autoshard.{function.__name__}",
                        fix=f"give {taken[name].what}",
                    )
            return function(*args, **kwargs)

        return called

    return with_checks
