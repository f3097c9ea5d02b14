"""Models of keras, keras-hub and tunix, at their published sizes, of kinds that the other files do not have.

    python experiments/fidelity/zoo_keras.py FOLDER [NAME...]

Lowered with jax 0.10.2, keras 3.15.1, keras-hub 0.32.0, google-tunix 0.1.7, flax 0.12.8, optax 0.2.8 (Python 3.11, JAX_PLATFORMS=cpu).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo import ADAMW, images_train, keras_model, training


def words_train(
    build: Callable[[], Any], width: int, words: int, texts: tuple[int, int], beside: str = "padding_mask"
) -> Program:
    """A step of a keras-hub backbone of texts with a matrix of logits behind it; `beside`: what it takes with the words."""
    run, weights, others = keras_model(build)

    def loss(parameters: Tree, others: Tree, ids: Any, labels: Any) -> Any:
        constant = jnp.ones_like(ids) if beside == "padding_mask" else jnp.zeros_like(ids)
        hidden, _ = run(parameters["body"], others, {"token_ids": ids, beside: constant})
        hidden = hidden["sequence_output"] if isinstance(hidden, dict) else hidden
        return cross_entropy(hidden @ parameters["head"].astype(BF16), labels)

    ids, head = Shape(texts, I32), Shape((width, words), F32)
    return training(loss, ADAMW, {"body": weights, "head": head}, others, ids, ids)


def fnet_train() -> Program:
    """FNet base, sums of Fourier transforms for attention, 256 texts of 512, every word predicted; bfloat16 on float32, AdamW."""
    from keras_hub.models import FNetBackbone

    def build() -> Any:
        return FNetBackbone(32000, 12, 768, 3072, dropout=0.0, dtype="mixed_bfloat16")

    return words_train(build, 768, 32000, (256, 512), "segment_ids")


def qwen35_train() -> Program:
    """Qwen 3.5 at eight layers, three of four with gated delta rules, 64 texts of 1024; bfloat16 on float32, AdamW."""
    from keras_hub.models import Qwen3_5Backbone

    def build() -> Any:
        return Qwen3_5Backbone(
            vocabulary_size=151936, num_layers=8, num_query_heads=16, num_key_value_heads=4, head_dim=128, hidden_dim=2048,
            intermediate_dim=6144, linear_num_key_heads=16, linear_num_value_heads=16, dtype="mixed_bfloat16",
        )  # fmt: skip

    return words_train(build, 2048, 151936, (64, 1024))


def efficientnetv2_keras_train() -> Program:
    """EfficientNet V2 S of keras, 512 images of 300 x 300; bfloat16 on float32, momentum."""
    import keras

    def build() -> Any:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
        return keras.applications.EfficientNetV2S(
            include_top=False, weights=None, input_shape=(300, 300, 3), include_preprocessing=False
        )

    return images_train(build, optax.sgd(0.1, 0.9), 512, 300)


def videoprism_fwd() -> Program:
    """VideoPrism B, 128 clips of 16 frames; bfloat16."""
    from keras_hub.models import VideoPrismBackbone

    run, weights, others = keras_model(
        lambda: VideoPrismBackbone(
            16, 18, 768, 3072, 12, 12, 4, 0, attention_logit_soft_cap=50.0, dtype="bfloat16"
        )
    )

    def forward(weights: Tree, others: Tree, clips: Any) -> Any:
        made, _ = run(weights, others, {"pixel_values": clips}, training=False)
        return made

    return forward, (weights, others, Shape((128, 16, 288, 288, 3), BF16)), ()


def tunix_train(build: Callable[[], Any]) -> Program:
    """A step of a model of tunix (nnx) on 64 texts of 1024; bfloat16 weights, AdamW."""
    from flax import nnx

    graph, weights = nnx.split(nnx.eval_shape(build))
    weights = jax.tree.map(lambda a: Shape(a.shape, BF16), weights)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        count, length = ids.shape
        places = jnp.broadcast_to(jnp.arange(length), ids.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (count, length, length))
        made, _ = nnx.merge(graph, weights)(ids, places, None, mask)
        return cross_entropy(made, labels)

    ids = Shape((64, 1024), I32)
    return training(loss, ADAMW, weights, ids, ids)


def gemma3_tunix_train() -> Program:
    """Gemma 3 1B of tunix."""
    from flax import nnx
    from tunix.models.gemma3 import model as gemma3

    return tunix_train(lambda: gemma3.Gemma3(gemma3.ModelConfig.gemma3_1b_it(), rngs=nnx.Rngs(0)))


def qwen3_tunix_train() -> Program:
    """Qwen 3 1.7B of tunix."""
    from flax import nnx
    from tunix.models.qwen3 import model as qwen3

    return tunix_train(lambda: qwen3.Qwen3(qwen3.ModelConfig.qwen3_1p7b(), rngs=nnx.Rngs(0)))


PROGRAMS = (
    fnet_train, qwen35_train, efficientnetv2_keras_train, videoprism_fwd,
    gemma3_tunix_train, qwen3_tunix_train,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
