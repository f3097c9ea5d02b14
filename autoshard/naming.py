"""Values of a listing by what a person calls them: a name, `arg3`, `result0`, an op's name, a number as in plans (`%12`) or a line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from autoshard.errors import AutoshardError
from autoshard.mlir.listing import Listing

_SHOWN = 8
_FIX = "name an argument, a result or an op, or the number of a value in the plan: arg0, result0, %12"
_LINE = re.compile(r"(?:line |:)?(\d+)|.+:(\d+)")


@dataclass(frozen=True, slots=True)
class Named:
    """A value, or what the function returns as result number `result`."""

    value: int
    result: int | None
    text: str  # "argument 3 `params['wq']`"
    where: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text


def find_value(listing: Listing, asked: str) -> Named:
    """Raises AutoshardError: nothing is called that, or several values are."""
    if not asked:
        raise AutoshardError("no value is named", fix=_FIX)
    known = list(_named(listing))
    found = [named for named in known if asked in named.names] or _on_line(known, asked)
    if len(found) == 1:
        return found[0]
    if not found:
        names = list(dict.fromkeys(name for named in known for name in named.names))
        near = [name for name in names if asked in name][:_SHOWN] or get_close_matches(
            asked, names, _SHOWN, 0.4
        )
        raise AutoshardError(
            f"no value is called {asked!r}",
            fix=f"near to it: {', '.join(near)}" if near else _FIX,
        )
    shown = "".join(f"\n  {named.names[-1]}: {named}" for named in found[:_SHOWN])
    more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise AutoshardError(
        f"{len(found)} values are called {asked!r}:{shown}{more}", fix="name one by its number"
    )


def _named(listing: Listing) -> Iterator[Named]:
    for number, argument in enumerate(listing.arguments):
        names = (argument.name, f"arg{number}", f"%{argument.value}")
        yield Named(argument.value, None, f"argument {number} `{argument.name}`", argument.location, names)
    for flow in listing.data_flows:
        name = listing.values[flow.target].name
        yield Named(
            flow.target, None, f"a value carried by a {flow.kind}", flow.location, (name, f"%{flow.target}")
        )
    for op in listing.ops:
        for value in op.results:
            if (type_ := listing.values[value].type) is not None and type_.rank:
                names = (listing.values[value].name, f"%{value}")
                yield Named(value, None, f"%{value} of {op.name}", op.location, names)
    for number, result in enumerate(listing.results):
        text = f"result {number} `{result.name}` of the function"
        yield Named(
            result.value, number, text, result.location, tuple({result.name: 0, f"result{number}": 0})
        )


def _on_line(known: list[Named], asked: str) -> list[Named]:
    """Values of ops and arguments on a line, written as 12, :12, line 12 or file:12."""
    if _LINE.fullmatch(asked) is None:
        return []
    line = asked.removeprefix("line ")
    end = line if ":" in line else f":{line}"
    return [named for named in known if named.where.rstrip(")").endswith(end) and named.result is None]
