"""Contest documents for tests: one that is valid, ways to write it, and a reader that is too simple to be wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autoshard.problem import Problem, ProblemBuilder, Table

EXAMPLE: dict[str, Any] = {
    "nodes": {
        "intervals": [[30, 70], [40, 70], [0, 0]],
        "costs": [[15], [55, 65], [25, 10**18, 35]],
        "usages": [[10], [25, 25], [15, 20, 15]],
    },
    "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[30, 40], [50, 10, 40, 10**18, 9, 8]]},
    "usage_limit": 50,
}
_FORBIDDEN_FROM = 10**17


def example(**replaced: Any) -> dict[str, Any]:
    """A document with EXAMPLE, parts of it replaced: `nodes__costs=...` is ["nodes"]["costs"]; None takes a key away."""
    body = copy.deepcopy(EXAMPLE)
    for path, value in replaced.items():
        *outer, last = path.split("__")
        part = body
        for key in outer:
            part = part[key]
        if value is None:
            del part[last]
        else:
            part[last] = value
    return {"problem": body}


def plain_reader(text: str) -> Problem:
    """The Problem of a valid document, by the json module and one node after the other."""
    body = json.loads(text)["problem"]
    builder = ProblemBuilder()
    for cost in body["nodes"]["costs"]:
        allowed = [number < _FORBIDDEN_FROM for number in cost]
        builder.add_node([number * ok for number, ok in zip(cost, allowed, strict=True)], allowed)
    for node, ((start, end), usage) in enumerate(
        zip(body["nodes"]["intervals"], body["nodes"]["usages"], strict=True)
    ):
        builder.add_node_usage(node, start, end, usage)
    for (u, v), numbers in zip(body["edges"]["nodes"], body["edges"]["costs"], strict=True):
        matrix = np.array(numbers, dtype=np.int64).reshape(len(body["nodes"]["costs"][u]), -1)
        builder.add_edge(u, v, Table(matrix, matrix < _FORBIDDEN_FROM))
    return builder.build(body.get("usage_limit"))


def spelled(draw: st.DrawFn, value: Any) -> str:
    """The value as JSON with keys in any order, unknown keys among them and blanks anywhere."""

    def blank() -> str:
        return draw(st.sampled_from(["", "", "", " ", "\n", " \t\r\n"]))

    def text(part: Any) -> str:
        if isinstance(part, dict):
            members = [(json.dumps(key), text(item)) for key, item in part.items()]
            unknown = draw(
                st.sampled_from([None, None, '"]] \\" [["', "[[1, 2.5e3], {}]", '{"a": [null, []]}', "-0.5"])
            )
            if unknown is not None:
                members.append(('"x\\u00e9"', unknown))
            inner = ",".join(
                f"{blank()}{key}{blank()}:{blank()}{item}{blank()}"
                for key, item in draw(st.permutations(members))
            )
            return f"{{{inner}}}"
        if isinstance(part, list):
            return (
                "["
                + ",".join(f"{blank()}{text(item)}{blank()}" for item in part)
                + (blank() if not part else "")
                + "]"
            )
        return json.dumps(part)

    return blank() + text(value) + blank()
