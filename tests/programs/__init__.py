"""Small real programs in StableHLO, lowered by jax on abstract shapes: the inputs of tests throughout.

Every dimension that a plan may want to split divides by 8 (meshes 4x2 and 2x2x2), and every program runs on a
CPU in well under a second. jax is imported at the first call, so without it the tests that need a program
are skipped.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import pytest


def _module(name: str) -> Any:
    pytest.importorskip("jax")
    return import_module(f"tests.programs.{name}")


@lru_cache
def mlp_train() -> str:
    """Two dense layers, one-hot labels, SGD; parameters donated."""
    return _module("smaller").mlp_train()


@lru_cache
def gated_train(compute: str = "bfloat16") -> str:
    """Blocks of gated perceptrons, whose products share normalized rows in the dtype `compute`; larger than the others."""
    return _module("smaller").gated_train(compute)


@lru_cache
def transformer_train(compute: str = "float32") -> str:
    """Two unrolled layers, tied embedding, Adam on float32 weights; `compute` is the dtype of the matmuls."""
    return _module("transformer").train(scan=False, compute=compute)


@lru_cache
def transformer_train_scan(compute: str = "float32") -> str:
    """The same with stacked weights, a scan over layers and rematerialisation."""
    return _module("transformer").train(scan=True, compute=compute)


@lru_cache
def decode_step() -> str:
    """One token into the KV caches (bfloat16, donated) by dynamic_update_slice, argmax of the logits."""
    return _module("transformer").decode()


@lru_cache
def convnet_train() -> str:
    """Convolutions, batch normalisation, max pool and its select_and_scatter, SGD with momentum."""
    return _module("smaller").convnet_train()


@lru_cache
def moe_train() -> str:
    """Top-2 routing into 8 experts by one-hot dispatch and combine einsums."""
    return _module("experts").train(sort=False)


@lru_cache
def moe_sorted_train() -> str:
    """The same routing by sorting tokens, gathers and scatters."""
    return _module("experts").train(sort=True)


@lru_cache
def embedding_train() -> str:
    """Gather forwards, scatter-add backwards, softmax over the vocabulary."""
    return _module("smaller").embedding_train()


@lru_cache
def rnn_train() -> str:
    """A gated recurrence as while loops, forwards and backwards."""
    return _module("smaller").rnn_train()


@lru_cache
def fixed_point() -> str:
    """A while loop whose trip count is not known before it runs."""
    return _module("smaller").fixed_point()


@lru_cache
def fft_mixer() -> str:
    """Fourier transforms, complex values and a complex result."""
    return _module("smaller").fft_mixer()


@lru_cache
def dropout_train() -> str:
    """Threefry random bits from a carried uint32[2] key."""
    return _module("smaller").dropout_train()


PROGRAMS: dict[str, Callable[[], str]] = {
    program.__name__: program
    for program in (
        mlp_train,
        transformer_train,
        transformer_train_scan,
        decode_step,
        convnet_train,
        moe_train,
        moe_sorted_train,
        embedding_train,
        rnn_train,
        fixed_point,
        fft_mixer,
        dropout_train,
    )
}
