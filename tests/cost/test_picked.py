"""What labels are picked from in float32 and what goes back to bfloat16 logits, which a loop of products reads."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check
from tests.programs.unembedding import unembedding

REQUEST = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)


def taken(text: str) -> int:
    written = price_as_written(pipeline.load_module(text.encode(), REQUEST))
    return written.priced.expected_peak(written.choice)


@pytest.mark.parametrize(
    ("text", "compiled"),
    [
        (unembedding(), 617_700_000),
        (unembedding(from_copy=True), 617_700_000),
        (unembedding(has_bias=True), 622_100_000),
        (unembedding(are_words_split=False), 619_800_000),
        (unembedding(are_words_split=False, has_bias=True, from_copy=True), 619_900_000),
    ],
    ids=["split", "copied", "biased", "whole", "whole copied"],
)
def test_both_are_there_at_once(text: str, compiled: int) -> None:
    """Beside the logits that they are made of: as libtpu 0.0.51 has it for v5e 4x4."""
    assert 0.9 * compiled <= taken(text) <= 1.1 * compiled


def test_without_a_norm_labels_of_split_words_are_picked_first() -> None:
    """No sum of what goes back is there for theirs to join: 487 MB (libtpu 0.0.51)."""
    assert taken(unembedding(has_scale=False)) < 0.8 * taken(unembedding())


def test_the_checker_counts_both() -> None:
    loaded = pipeline.load_module(unembedding().encode(), REQUEST)
    plan = pipeline.plan_loaded(loaded)
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
