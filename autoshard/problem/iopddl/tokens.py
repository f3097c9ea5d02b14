"""Rows of whole numbers as text, `,[1,-2],[],[3]` without blanks -> their numbers and the length of every row.

No step looks at one number at a time. The marks (all that is no digit) are found once; a number is what lies between two of
them. Its digits are fetched as words of 8 bytes that end where it ends, and each word becomes a value by three
multiplications that join neighbouring digits, pairs and fours (D. Lemire, "Number parsing at a gigabyte per second",
Software: Practice and Experience 51(8), 2021, section 3).

That the text is well formed follows from counts: marks are as many as commas, brackets and signs; rows follow
each other as `],[`; and the commas within rows are one fewer than their numbers. Only where a count is wrong is the place
looked for, row by row.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.iopddl.walk import shown
from autoshard.problem.model import Bools, Ints

_COMMA, _MINUS, _ZERO, _OPEN, _CLOSE = b",-0[]"
_MOST_DIGITS = 19  # 10**18 has 19; whatever has 19 fits 64 bits without a sign
_WORD = 8  # digits in a word
_PADDING = b"," * (3 * _WORD)  # so that words before the first number exist
_HIGHEST = 2**63 - 1
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_SHOWN = 20  # bytes of the text that a message repeats


class RowError(ValueError):
    """Row `row` of a text is no list of whole numbers, for that reason."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason


def parse_rows(text: bytes) -> tuple[Ints, Ints]:
    """([numbers of all rows], [rows] how many each has) of `(,[...])*`.

    Raises:
        RowError: a row that is no list of whole numbers of 64 bits.
    """
    if not text:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    chars = np.frombuffer(_PADDING + text, dtype=np.uint8)
    marks = np.flatnonzero((chars - np.uint8(_ZERO)) > 9)[len(_PADDING) - 1 :]
    lengths = np.diff(marks) - 1
    is_number = lengths > 0
    ends, lengths = marks[1:][is_number], lengths[is_number]
    counts = _row_lengths(chars, marks, ends)
    negative = _signs(chars, ends - lengths)
    leading_zero = chars[ends - lengths] == _ZERO
    if (
        counts is None
        or negative is None
        or (lengths.max(initial=0) > 1 and (leading_zero & (lengths > 1)).any())
        or lengths.max(initial=0) > _MOST_DIGITS
    ):
        raise _explain(text)
    values = _values(chars, ends, lengths)
    if values.max(initial=0) > _HIGHEST:
        raise _explain(text)
    whole = values.view(np.int64)
    if len(negative):
        whole[negative] *= -1
    return whole, counts


def _row_lengths(chars: NDArray[np.uint8], marks: Ints, ends: Ints) -> Ints | None:
    """Numbers of every row; None where the marks are not those of rows of numbers."""
    kinds = chars[marks[1:]]  # without the last comma of the padding
    opens, closes = marks[1:][kinds == _OPEN], marks[1:][kinds == _CLOSE]
    first = len(_PADDING)
    if not len(opens) or len(opens) != len(closes) or closes[-1] != len(chars) - 1 or opens[0] != first + 1:
        return None
    commas, signs = int((kinds == _COMMA).sum()), int((kinds == _MINUS).sum())
    if commas + signs + len(opens) + len(closes) != len(kinds) or chars[first] != _COMMA:
        return None
    follows = (opens[1:] == closes[:-1] + 2).all() and (chars[opens - 1] == _COMMA).all()
    if not follows or not (opens < closes).all():
        return None
    counts = np.searchsorted(ends, closes, side="right") - np.searchsorted(ends, opens, side="right")
    within = int(np.maximum(counts - 1, 0).sum())
    return counts if commas == within + len(opens) and counts.sum() == len(ends) else None


def _signs(chars: NDArray[np.uint8], starts: Ints) -> Ints | None:
    """Which numbers have a minus; None where a minus stands anywhere but between a mark and a number."""
    total = int((chars == _MINUS).sum())
    if not total:
        return np.zeros(0, dtype=np.int64)
    negative = np.flatnonzero(chars[starts - 1] == _MINUS)
    before = chars[starts[negative] - 2]
    stands_right = (before == _COMMA) | (before == _OPEN)
    return negative if len(negative) == total and stands_right.all() else None


def _values(chars: NDArray[np.uint8], ends: Ints, lengths: Ints) -> NDArray[np.uint64]:
    """The numbers of `lengths` digits that end before `ends`; most have one digit in most files."""
    values = (chars[ends - 1] - np.uint8(_ZERO)).astype(np.uint64)
    weight = 1
    long = np.flatnonzero(lengths > 1)
    ends, lengths = ends[long], lengths[long]
    while len(long):
        digits = np.minimum(lengths, _WORD)
        word = _eight_digits(_words_before(chars, ends), digits)
        values[long] = word if weight == 1 else values[long] + word * np.uint64(weight)
        goes_on: Bools = lengths > _WORD
        long, ends, lengths = long[goes_on], ends[goes_on] - _WORD, lengths[goes_on] - _WORD
        weight *= 10**_WORD
    return values


def _words_before(chars: NDArray[np.uint8], ends: Ints) -> NDArray[np.uint64]:
    """The 8 bytes before each end as one number, the last byte highest."""
    words = np.ndarray((len(chars) - _WORD + 1,), dtype="<u8", buffer=chars.data, strides=(1,))
    return words[ends - _WORD].astype(np.uint64, copy=False)


def _eight_digits(words: NDArray[np.uint64], digits: Ints) -> NDArray[np.uint64]:
    """The last `digits` characters of each word as a number."""
    foreign = ((_WORD - digits) * 8).astype(np.uint64)
    words = (words >> foreign) << foreign  # what is no digit of this number becomes 0
    words &= np.uint64(0x0F0F0F0F0F0F0F0F)
    words *= np.uint64(10 * 2**8 + 1)
    words >>= np.uint64(8)
    words &= np.uint64(0x00FF00FF00FF00FF)
    words *= np.uint64(100 * 2**16 + 1)
    words >>= np.uint64(16)
    words &= np.uint64(0x0000FFFF0000FFFF)
    words *= np.uint64(10_000 * 2**32 + 1)
    words >>= np.uint64(32)
    return words


def _explain(text: bytes) -> RowError:
    """The first row that is none, found the slow way."""
    *pieces, rest = text.split(b"]")
    for row, piece in enumerate(pieces):
        if not piece.startswith(b",["):
            return RowError(row, f"{shown(piece[:_SHOWN])} where a list of whole numbers should begin")
        for token in piece[2:].split(b",") if len(piece) > 2 else ():
            if not _NUMBER.fullmatch(token):
                return RowError(row, f"{shown(token) if token else 'nothing'} where a whole number belongs")
            if len(token) > _MOST_DIGITS + 1 or abs(int(token)) > _HIGHEST:
                return RowError(row, f"{shown(token)} does not fit 64 bits")
    assert rest, "the counts are wrong, and every row is right"
    return RowError(len(pieces), f"{shown(rest[:_SHOWN])} in a list that does not end")
