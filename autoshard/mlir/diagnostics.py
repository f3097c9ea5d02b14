"""What MLIR says about a module, as errors that a user can act on: its words, where, and the text that they are about."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir

_POSITION = re.compile(r'loc\("-":(\d+):(\d+)\)')
_AFTER = 50  # lines of an op, a function's arguments say, that are searched for what the message quotes
_WIDTH = 120  # of a line of the module in a message


@contextmanager
def as_user_error(what: str, fix: str = "", text: str | None = None) -> Generator[None, None, None]:
    """Turn MLIR's error inside the block into an `AutoshardError`: `what`, then MLIR's own words with their locations.

    Args:
        text: what was parsed, to show the line that the error is about.
    """
    try:
        yield
    except ir.MLIRError as error:
        raise AutoshardError(f"{what}:\n{diagnostics_text(error, text)}", fix=fix) from None


def diagnostics_text(error: ir.MLIRError, text: str | None = None) -> str:
    """One line a diagnostic, in the form `line 3:14: message`, and the first one's line of `text`."""
    said = [(str(d.location), str(d.message)) for d in error.error_diagnostics]
    lines = [_line(location, message) for location, message in said]
    if said and text is not None:
        lines[1:1] = excerpt(*said[0], text.split("\n"))
    return "\n".join(f"  {line}" for line in lines) or f"  {error}"


def _line(location: str, message: str) -> str:
    place = location.removeprefix("loc(").removesuffix(")")
    if place.startswith('"-":'):
        place = "" if place == '"-":0:0' else f"line {place.removeprefix(chr(34) + '-' + chr(34) + ':')}"
    return message if place in ("", "unknown") else f"{place}: {message}"


def excerpt(location: str, message: str, lines: Sequence[str]) -> list[str]:
    """The line of the module that a message is about, around what the message quotes; empty where the module's text has no such place."""
    position = _POSITION.fullmatch(location)
    if position is None:
        return []
    number, column = int(position[1]) - 1, int(position[2]) - 1
    if not 0 <= number < len(lines):
        return []
    quoted = message.rpartition(": ")[2]
    for later in range(number, min(number + _AFTER, len(lines))):
        at = lines[later].find(quoted, column if later == number else 0) if quoted else -1
        if at >= 0:
            return [f"  {later + 1} | {_around(lines[later], at)}"]
    return [f"  {number + 1} | {_around(lines[number], column)}"]


def _around(line: str, at: int) -> str:
    begin = max(0, min(at - _WIDTH // 2, len(line) - _WIDTH))
    end = begin + _WIDTH
    shown = line[begin:end].strip()
    return ("..." if begin > 0 else "") + shown + ("..." if end < len(line) else "")
