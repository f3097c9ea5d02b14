"""Text of rows of whole numbers -> arrays, without a look at one number at a time."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoshard.problem.iopddl.tokens import RowError, parse_rows

HIGHEST = 2**63 - 1
NUMBERS = st.one_of(
    st.integers(-HIGHEST, HIGHEST),
    st.integers(0, 9),
    st.integers(1, 19).map(lambda digits: min(10**digits - 1, HIGHEST)),
    st.integers(0, 18).map(lambda digits: 10**digits),
)
ROWS = st.lists(st.lists(NUMBERS, max_size=6), min_size=1, max_size=8)
NUMBER = r"-?(?:0|[1-9][0-9]*)"
GRAMMAR = re.compile(rf"(?:,\[(?:{NUMBER}(?:,{NUMBER})*)?\])*")


def text_of(rows: list[list[int]]) -> str:
    return "".join("," + json.dumps(row, separators=(",", ":")) for row in rows)


@settings(deadline=None, max_examples=300)
@given(ROWS)
@example([[10**18, 10**17, -(10**18)], [], [0], [HIGHEST, -HIGHEST]])
def test_numbers_are_exact(rows: list[list[int]]) -> None:
    """Every whole number of 64 bits comes out as it is written, whatever its length."""
    values, counts = parse_rows(text_of(rows).encode())
    assert values.tolist() == [number for row in rows for number in row]
    assert counts.tolist() == [len(row) for row in rows]


@settings(deadline=None, max_examples=1000)
@given(ROWS, st.data())
def test_only_rows_of_whole_numbers_are_accepted(rows: list[list[int]], data: st.DataObject) -> None:
    """With some bytes changed, removed and added, the text is accepted exactly where it still follows the grammar."""
    text = text_of(rows)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        piece = data.draw(st.sampled_from([*',,,[[]]--01259.ex:/{"', "", "", "],[", "[]"]))
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 2)) :]
    fits = all(abs(int(number)) <= HIGHEST for number in re.findall(NUMBER, text))
    if GRAMMAR.fullmatch(text) and fits:
        assert parse_rows(text.encode())[0].tolist() == list(map(int, re.findall(NUMBER, text)))
    else:
        with pytest.raises(RowError):
            parse_rows(text.encode())


@pytest.mark.parametrize(
    ("text", "row", "reason"),
    [
        (",[1],[2,x]", 1, "'x' where a whole number belongs"),
        (",[1],[2,1.5]", 1, "'1.5' where a whole number belongs"),
        (",[1e3]", 0, "'1e3' where a whole number belongs"),
        (",[],[NaN]", 1, "'NaN' where a whole number belongs"),
        (",[null]", 0, "'null' where a whole number belongs"),
        (",[1],[2],[3,]", 2, "nothing where a whole number belongs"),
        (",[007]", 0, "'007' where a whole number belongs"),
        (",[1],[--1]", 1, "'--1' where a whole number belongs"),
        (",[9223372036854775808]", 0, "'9223372036854775808' does not fit 64 bits"),
        (",[-99999999999999999999]", 0, "'-99999999999999999999' does not fit 64 bits"),
        (",[" + "1" * 9000 + "]", 0, "does not fit 64 bits"),
        (",[1],2,[3]", 1, "',2,[3' where a list of whole numbers should begin"),
        (",[1],[[2]]", 1, "'[2' where a whole number belongs"),
    ],
)
def test_the_row_and_the_word_are_named(text: str, row: int, reason: str) -> None:
    """The error says which row, and what stands there."""
    with pytest.raises(RowError) as caught:
        parse_rows(text.encode())
    assert caught.value.row == row
    assert reason in caught.value.reason
