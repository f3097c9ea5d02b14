"""Arguments that hold the batch, found in real programs."""

import pytest

from autoshard.program import batch_arguments
from tests.program.modules import program_of
from tests.programs import PROGRAMS

BATCH = {
    "mlp_train": ["x", "labels"],
    "transformer_train": ["tokens", "targets"],
    "transformer_train_scan": ["tokens", "targets"],
    "decode_step": ["token"],
    "convnet_train": ["images", "labels"],
    "moe_train": ["x", "y"],
    "moe_sorted_train": ["x", "y"],
    "embedding_train": ["tokens", "targets"],
    "rnn_train": [],  # time is the leading dimension of its inputs
    "fixed_point": [],
    "fft_mixer": ["x"],
    "dropout_train": ["x"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_arguments(name: str) -> None:
    """Never parameters or state, and all that shares the leading dimension of the work."""
    program = program_of(PROGRAMS[name](), axes=[("x", 4), ("y", 2)])
    assert [flow.name for flow in batch_arguments(program)] == BATCH[name]


def test_no_arguments() -> None:
    """A program without any has no batch."""
    text = """sdy.mesh @mesh = <["x"=2]>
      func.func @main() -> tensor<4xf32> {
        %0 = stablehlo.constant dense<1.0> : tensor<4xf32>
        return %0 : tensor<4xf32>
      }"""
    assert batch_arguments(program_of(text)) == ()
