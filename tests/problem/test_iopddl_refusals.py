"""Files that are no problem: the error names the file, the node, edge or byte, and what is wrong there."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.problem import read_iopddl
from tests.problem.documents import EXAMPLE, example

VALID = json.dumps(example())
HUGE = 2**59

REFUSED: dict[str, tuple[str, str]] = {
    "nothing": ("", "is empty"),
    "only blanks": (" \n ", "is empty"),
    "no object": ("[1, 2]", "byte 0: malformed: '[1, 2]' where { of the document should be"),
    "not JSON": ("problem: x", "byte 0: malformed: 'problem: x' where { of the document should be"),
    "no problem": ("{}", 'is no IOPDDL problem: it has no "problem"'),
    "a problem that is no object": ('{"problem": 3}', "byte 12: malformed: '3}' where { of problem should be"),
    "no nodes": (json.dumps(example(nodes=None)), 'problem: is no IOPDDL problem: it has no "nodes"'),
    "no edges": (json.dumps(example(edges=None)), 'problem: is no IOPDDL problem: it has no "edges"'),
    "no intervals": (json.dumps(example(nodes__intervals=None)), 'nodes: has no "intervals"'),
    "no costs": (json.dumps(example(nodes__costs=None)), 'nodes: has no "costs"'),
    "no usages": (json.dumps(example(nodes__usages=None)), 'nodes: has no "usages"'),
    "no ends": (json.dumps(example(edges__nodes=None)), 'edges: has no "nodes"'),
    "no edge costs": (json.dumps(example(edges__costs=None)), 'edges: has no "costs"'),
    "costs that are no list": (json.dumps(example(nodes__costs=7)), "malformed: '7, \"usages\": [[10], ' where [ of costs"),
    "a node that is no list": (json.dumps(example(nodes__costs=[[1], 2, [3]])), "node 1, costs: ',2,[3' where a list"),
    "a list too deep": (json.dumps(example(nodes__costs=[[1], [[2]], [3]])), "node 1, costs: '[2' where a whole number"),
    "two of a key": (VALID.replace('"usages"', '"costs"', 1), "nodes has a second 'costs'"),
    "a key that is no string": ("{1: 2}", "byte 1: malformed: '1: 2}' where a key of the document should be"),
    "a string that does not end": ('{"problem', "malformed: a string that does not end"),
    "a bad escape": ('{"\\x": 1}', "malformed string"),
    "no colon": ('{"problem" 3}', "malformed: '3}' where : of the value of 'problem' should be"),
    "something behind": (VALID + "]", "malformed: ']' where the end of the file should be"),
    "garbage in an unknown key": ('{"a": [1, nope]}', "malformed: 'nope]}' where a value of JSON should be"),
    "a trailing comma": ('{"a": [1,]}', "malformed: ']}' where a value of JSON should be"),
    "endless nesting": ('{"a": ' + "[" * 100_000, "nested more than 200 levels deep"),
    "a word for a cost": (VALID.replace("55", '"x"'), "node 1, costs: '\"x\"' where a whole number belongs"),
    "a float for a cost": (VALID.replace("55", "5.5"), "node 1, costs: '5.5' where a whole number belongs"),
    "an exponent": (VALID.replace("55", "5e5"), "node 1, costs: '5e5' where a whole number belongs"),
    "not a number": (VALID.replace("55", "NaN"), "node 1, costs: 'NaN' where a whole number belongs"),
    "no number": (VALID.replace("55", "null"), "node 1, costs: 'null' where a whole number belongs"),
    "infinity": (VALID.replace("[10]", "[-Infinity]"), "node 0, usages: '-Infinity' where a whole number belongs"),
    "a split number": (VALID.replace("[50, 10", "[5 0, 10"), "edge 1, costs: '5 0' where a whole number belongs"),
    "two minus signs": (VALID.replace("[50, 10", "[--5, 10"), "edge 1, costs: '--5' where a whole number belongs"),
    "more than 64 bits": (VALID.replace("35]", "99999999999999999999]"), "node 2, costs: '99999999999999999999' does not fit"),
    "a missing number": (VALID.replace("55, 65", "55, , 65"), "node 1, costs: nothing where a whole number belongs"),
    "an interval of one": (json.dumps(example(nodes__intervals=[[1, 2], [3], [4, 5]])), "node 1: 1 numbers for an interval"),
    "an interval backwards": (
        json.dumps(example(nodes__intervals=[[1, 2], [3, 4], [9, 5]])),
        "node 2: its interval [9, 5] ends before it starts",
    ),
    "an interval backwards that uses nothing": (
        json.dumps(example(nodes__intervals=[[9, 5], [3, 4], [5, 9]], nodes__usages=[[0], [0, 0], [0, 0, 0]])),
        "node 0: its interval [9, 5] ends before it starts",
    ),
    "too few usages": (json.dumps(example(nodes__usages=[[10], [25], [1, 2, 3]])), "node 1: 2 costs but 1 usages"),
    "a node without usages": (
        json.dumps(example(nodes__usages=[[10], [25, 25]])),
        "node 2: the file has 3 intervals, 3 lists of costs and 2 of usages",
    ),
    "a node without an interval": (
        json.dumps(example(nodes__intervals=[[0, 1]])),
        "node 1: the file has 1 intervals, 3 lists of costs and 3 of usages",
    ),
    "negative usage": (json.dumps(example(nodes__usages=[[10], [25, -1], [1, 2, 3]])), "node 1: has a negative usage"),
    "negative usage of no time": (
        json.dumps(example(nodes__usages=[[10], [25, 1], [1, 2, -3]])),
        "node 2: has a negative usage",
    ),
    "no strategies": (
        json.dumps(example(nodes__costs=[[15], [], [1, 2, 3]], nodes__usages=[[15], [], [1, 2, 3]])),
        "node 1: has no strategies",
    ),
    "none allowed": (json.dumps(example(nodes__costs=[[15], [10**18] * 2, [1, 2, 3]])), "node 1: has no allowed strategy"),
    "an edge of one node": (json.dumps(example(edges__nodes=[[0, 1], [1]])), "edge 1: joins 1 nodes, not 2"),
    "an edge of three nodes": (json.dumps(example(edges__nodes=[[0, 1, 2], [1, 2]])), "edge 0: joins 3 nodes, not 2"),
    "an edge to a missing node": (json.dumps(example(edges__nodes=[[0, 1], [1, 3]])), "edge 1: ends at node 3, which does not"),
    "an edge to a node far away": (
        json.dumps(example(edges__nodes=[[2**32, 1], [1, 2]])),
        "edge 0: ends at node 4294967296, which does not exist",
    ),
    "an edge to a negative node": (json.dumps(example(edges__nodes=[[0, -1], [1, 2]])), "edge 0: ends at node -1, which does"),
    "an edge to itself": (json.dumps(example(edges__nodes=[[0, 1], [1, 1]], edges__costs=[[1, 2], [1] * 4])), "edge 1: joins a"),
    "a matrix too small": (json.dumps(example(edges__costs=[[30, 40], [50] * 5])), "edge 1: 5 costs for 2 x 3 strategies"),
    "an edge without costs": (json.dumps(example(edges__costs=[[30, 40]])), "edge 1: the file has 2 pairs of nodes but 1 lists"),
    "costs without an edge": (json.dumps(example(edges__nodes=[[0, 1]])), "edge 1: the file has 1 pairs of nodes but 2 lists"),
    "costs that overflow": (
        json.dumps(example(nodes__costs=[[-HUGE], [-HUGE, 1], [1, 2, 3]])),
        "problem: the largest costs sum to 2**60 or more",
    ),
    "usages that overflow": (
        json.dumps(example(nodes__usages=[[HUGE], [HUGE, 1], [1, 2, 3]])),
        "problem: the largest usages sum to 2**60 or more",
    ),
    "a negative limit": (json.dumps(example(usage_limit=-1)), "problem: the memory limit -1 is negative"),
    "a limit that is a float": (json.dumps(example(usage_limit=1.5)), "usage_limit is no whole number: '1.5'"),
    "a limit that is a word": (json.dumps(example(usage_limit="1")), "where the whole number usage_limit should be"),
    "a limit of more than 64 bits": (json.dumps(example(usage_limit=2**64)), "usage_limit does not fit 64 bits"),
    "a minus and nothing": (VALID.replace("[50, 10", "[-, 10"), "edge 1, costs: '-' where a whole number belongs"),
}  # fmt: skip


def refusal(path: Path, block: int | None = None) -> str:
    with pytest.raises(AutoshardError) as caught:
        read_iopddl(path, block=block)
    return str(caught.value)


@pytest.mark.parametrize("block", [5, 64, None])
@pytest.mark.parametrize("case", REFUSED)
def test_malformed_files_are_refused(case: str, block: int | None, tmp_path: Path) -> None:
    """The message is the same wherever the text is cut into windows, but for how much of the text it shows."""
    text, message = REFUSED[case]
    path = tmp_path / "p.json"
    path.write_text(text)
    said = refusal(path, block)
    assert said.startswith(f"{path}: ")
    assert message in said or (block is not None and "malformed: " in message and "malformed: " in said)


@pytest.mark.parametrize("block", [11, None])
@pytest.mark.parametrize("indent", [None, 1])
def test_every_truncation_is_refused(indent: int | None, block: int | None, tmp_path: Path) -> None:
    """A text that ends early is never a problem, and never anything worse than an error that says where."""
    text = json.dumps(example(), indent=indent)
    path = tmp_path / "p.json"
    for length in range(len(text)):
        path.write_text(text[:length])
        said = refusal(path, block)
        assert any(word in said for word in ("cut off", "is empty", "does not end", "is no whole number")), (
            said
        )


def test_every_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    """A damaged archive is told from damaged JSON."""
    packed = gzip.compress(VALID.encode())
    path = tmp_path / "p.json.gz"
    for length in range(2, len(packed)):
        path.write_bytes(packed[:length])
        assert "damaged gzip file" in refusal(path)
    path.write_bytes(packed[:40] + bytes([packed[40] ^ 255]) + packed[41:])
    assert refusal(path).startswith(f"{path}: ")


@settings(
    deadline=None,
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data(), st.integers(3, 200))
def test_a_changed_text_is_read_or_refused(tmp_path: Path, data: st.DataObject, block: int) -> None:
    """Whatever is done to the bytes, the answer is a problem or an error; what is no JSON is always an error."""
    text = VALID.encode()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.one_of(
                st.binary(max_size=2), st.sampled_from([*map(bytes, zip(b'[]{},:"-0e. ', strict=True))])
            )
        )
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 3)) :]
    path = tmp_path / "p.json"
    path.write_bytes(text)
    try:
        read_iopddl(path, block=block)
    except AutoshardError as error:
        assert str(error).startswith(f"{path}: ")
    else:
        json.loads(text)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """No traceback for a wrong path."""
    assert "cannot be read: No such file or directory" in refusal(tmp_path / "missing.json")
    assert "cannot be read: Is a directory" in refusal(tmp_path)


def test_a_word_without_end_is_refused(tmp_path: Path) -> None:
    """A file of one number, string or gap does not end up in memory."""
    path = tmp_path / "p.json"
    for begin, filler in (
        ('{"a": ', b" "),
        ('{"', b"a"),
        ('{"a": ', b"1"),
        ('{"problem":{"nodes":{"costs":[[', b"1"),
    ):
        path.write_bytes(begin.encode() + filler * 6_000_000)
        assert refusal(path)


def test_the_document_that_the_others_change_is_valid(tmp_path: Path) -> None:
    """So every refusal above is due to its change."""
    (tmp_path / "p.json").write_text(VALID)
    assert read_iopddl(tmp_path / "p.json").node_count == len(EXAMPLE["nodes"]["costs"])
