"""A list of lists of whole numbers in a Source -> parts of some 100 kB -> arrays.

A part is whole rows, `,[1,2],[3]`, or a piece of one row that is longer than the window, written as if it were a row. The
first row, too, gets a comma in front, and blanks are gone, so equal rows have equal text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from autoshard.errors import AutoshardError
from autoshard.problem.iopddl.tokens import RowError, parse_rows
from autoshard.problem.iopddl.walk import Walk, shown
from autoshard.problem.model import Ints

_LAST_ROW = re.compile(rb"\][ \t\n\r]*\]")
_BLANKS = b" \t\n\r"
_SPLIT_WORD = re.compile(rb"[^,\[\] \t\n\r]+[ \t\n\r]+[^,\[\] \t\n\r]+")
_IN_WORD = bytes(byte not in b",[]" + _BLANKS for byte in range(256))

Name = Callable[[int], str]
"""What a row is called in messages, by its number: `node 3`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows first_row, first_row + 1, ... as text; `opens` and `closes`: where it is a piece of a row, is it the first or last?"""

    first_row: int
    text: bytes
    opens: bool = True
    closes: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Row r is values[start[r]:start[r + 1]]."""

    values: Ints
    start: Ints  # [rows + 1]

    @property
    def lengths(self) -> Ints:
        return np.diff(self.start)


def read_rows(walk: Walk, what: str, name: Name) -> Rows:
    """The list of lists that is next in the text.

    Raises:
        AutoshardError: it is none, or a number in it is no whole number of 64 bits; names the row.
    """
    values: list[Ints] = [np.zeros(0, dtype=np.int64)]
    counts: list[Ints] = [np.zeros(0, dtype=np.int64)]
    for part in parts(walk, what, name):
        numbers, lengths = parse_part(part, name)
        values.append(numbers)
        if part.opens:
            counts.append(lengths)
        else:
            counts[-1][-1] += lengths[0]
    start = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    return Rows(np.concatenate(values), start)


def parse_part(part: Part, name: Name) -> tuple[Ints, Ints]:
    """`parse_rows` of the part's text, with the row named in the error."""
    try:
        return parse_rows(part.text)
    except RowError as error:
        raise AutoshardError(error.reason, where=name(part.first_row + error.row)) from None


def parts(walk: Walk, what: str, name: Name) -> Iterator[Part]:
    """The list of lists that is next in the text, piece by piece; the last row of the last part ends it.

    Raises:
        AutoshardError: no list, or one that the file does not end.
    """
    walk.expect(b"[", what)
    if walk.take(b"]"):
        return
    row, inside, comma = 0, False, b","
    while inside or not walk.take(b"]"):
        piece, closes = _next_piece(walk, what, inside, lambda row=row: name(row))
        text, comma = comma + _without_blanks(piece, row, name), b""
        if inside or not closes:
            text = (b",[" if inside else b"") + (text if closes else text[:-1] + b"]")
            if text == b",[]":
                raise AutoshardError("nothing where a whole number belongs", where=name(row))
            yield Part(row, text, not inside, closes)
            row += closes
        else:
            yield Part(row, text)
            row += text.count(b"]")
        inside = not closes


def _next_piece(walk: Walk, what: str, inside: bool, name: Callable[[], str]) -> tuple[bytes, bool]:
    """(as much as ends with a row, or the rest of one row, or as much of one as ends with a comma; does it end one?)"""
    source = walk.source
    if len(source.text) - source.at < source.block:
        source.fill()
    while True:
        text, begin = source.text, source.at
        if inside:
            end = text.find(b"]", begin) + 1
        else:
            last = _LAST_ROW.search(text, begin)
            end = text.rfind(b"]", begin) + 1 if last is None else last.start() + 1
        closes = end > 0
        if not closes:
            own = begin if inside else text.find(b"[", begin)
            end = text.rfind(b",", own) + 1 if own >= 0 else 0
        if end:
            source.at = end
            return text[begin:end], closes
        if not source.fill():
            where = f"{name()}, byte {source.offset + len(source.text) - source.at}"
            raise AutoshardError(f"cut off: the file ends within {what}", where=where)


def _without_blanks(piece: bytes, row: int, name: Name) -> bytes:
    """The piece without blanks.

    Raises:
        AutoshardError: a blank splits a number.
    """
    if not any(blank in piece for blank in (b" ", b"\n", b"\r", b"\t")):
        return piece
    compact = piece.translate(None, _BLANKS)
    if _words(piece) != _words(compact):
        split = _SPLIT_WORD.search(piece)
        assert split is not None
        where = name(row + piece.count(b"]", 0, split.start()))
        raise AutoshardError(f"{shown(split[0])} where a whole number belongs", where=where)
    return compact


def _words(text: bytes) -> int:
    in_word = np.frombuffer(text.translate(_IN_WORD), dtype=np.bool_)
    return int(np.count_nonzero(in_word[1:] & ~in_word[:-1])) + bool(in_word[:1].any())
