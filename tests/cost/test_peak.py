"""What a plan holds at its peak: the parts add up to the figure that plans have, whatever the limit."""

import pytest

from autoshard import pipeline
from tests.cost.test_returned import scores


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p", "h100"])
@pytest.mark.parametrize("limit", [None, 2**40, 400_000_000, 1_000_000])
def test_parts_add_up(hardware: str, limit: int | None) -> None:
    """With memory to spare, at the limit, and beyond it."""
    request = pipeline.Request(hardware=hardware, memory_bytes=limit)
    written = pipeline.price_as_written(pipeline.load_module(scores(30522, "3").encode(), request))
    held = written.held()
    parts = sum(one.bytes for one in held.buffers) + held.gap_bytes + held.rest_bytes
    assert held.peak_bytes == parts == written.plan().price.peak_bytes
    assert [one.bytes for one in held.buffers] == sorted((one.bytes for one in held.buffers), reverse=True)
    if limit is None:
        assert held.rest_bytes == 0


def test_names() -> None:
    """Arguments and results by what they are, the rest by its op, with the type of one device."""
    request = pipeline.Request(hardware="h100", memory_bytes=None)
    held = pipeline.price_as_written(pipeline.load_module(scores(30522, "3").encode(), request)).held()
    scores_, result = held.buffers[:2]  # a GPU's product is stored before the tangent is worked out
    assert (scores_.kind, scores_.op, scores_.note) == ("value", "stablehlo.dot_general", "")
    assert (result.kind, result.op, result.note) == ("result", "stablehlo.tanh", "")
    assert {one.kind for one in held.buffers} <= {"argument", "result", "value", "copy"}
    assert held.handed_over_bytes == sum(
        one.bytes for one in held.buffers if one.kind in ("argument", "result")
    )
