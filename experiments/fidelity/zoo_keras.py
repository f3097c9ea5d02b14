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


def words_train(build: Callable[[], Any], width: int, words: int, count: int, length: int, *more: str) -> Program:
    """A step of a keras-hub backbone of texts with a matrix of logits behind it; `more`: inputs of ids beside the words and their mask."""
    run, weights, others = keras_model(build)

    def loss(parameters: Tree, others: Tree, ids: Any, labels: Any) -> Any:
        inputs = {"token_ids": ids, "padding_mask": jnp.ones_like(ids), **{name: jnp.zeros_like(ids) for name in more}}
        hidden, _ = run(parameters["body"], others, inputs)
        hidden = hidden["sequence_output"] if isinstance(hidden, dict) else hidden
        return cross_entropy(hidden @ parameters["head"].astype(BF16), labels)

    ids = Shape((count, length), I32)
    return training(loss, ADAMW, {"body": weights, "head": Shape((width, words), F32)}, others, ids, ids)


def fnet_train() -> Program:
    """FNet base, sums of Fourier transforms for attention, 256 texts of 512, every word predicted; bfloat16 on float32, AdamW."""
    from keras_hub.models import FNetBackbone

    run, weights, others = keras_model(
        lambda: FNetBackbone(32000, 12, 768, 3072, dropout=0.0, dtype="mixed_bfloat16")
    )

    def loss(parameters: Tree, others: Tree, ids: Any, labels: Any) -> Any:
        made, _ = run(parameters["body"], others, {"token_ids": ids, "segment_ids": jnp.zeros_like(ids)})
        return cross_entropy(made["sequence_output"] @ parameters["head"].astype(BF16), labels)

    ids = Shape((256, 512), I32)
    return training(loss, ADAMW, {"body": weights, "head": Shape((768, 32000), F32)}, others, ids, ids)


def smollm3_train() -> Program:
    """SmolLM3 at twelve of its layers, 64 texts of 2048; bfloat16 on float32, AdamW."""
    from keras_hub.models import SmolLM3Backbone

    def build() -> Any:
        return SmolLM3Backbone(
            vocabulary_size=128256, hidden_dim=2048, intermediate_dim=11008, num_layers=12, num_attention_heads=16,
            num_key_value_heads=4, attention_bias=False, attention_dropout=0.0,
            rope_layer_enabled_list=[(i + 1) % 4 != 0 for i in range(12)], layer_types=["full_attention"] * 12, mlp_bias=False,
            layer_norm_epsilon=1e-6, max_position_embeddings=32768, rope_theta=5000000.0, partial_rotary_factor=1.0,
            dtype="mixed_bfloat16",
        )  # fmt: skip

    return words_train(build, 2048, 128256, 64, 2048)


def qwen35_train() -> Program:
    """Qwen 3.5 at eight layers, three of four with gated delta rules, 64 texts of 1024; bfloat16 on float32, AdamW."""
    from keras_hub.models import Qwen3_5Backbone

    def build() -> Any:
        return Qwen3_5Backbone(
            vocabulary_size=151936, num_layers=8, num_query_heads=16, num_key_value_heads=4, head_dim=128, hidden_dim=2048,
            intermediate_dim=6144, linear_num_key_heads=16, linear_num_value_heads=16, dtype="mixed_bfloat16",
        )  # fmt: skip

    return words_train(build, 2048, 151936, 64, 1024)


def efficientnetv2_keras_train() -> Program:
    """EfficientNet V2 S of keras, 512 images of 300 x 300; bfloat16 on float32, momentum."""
    import keras

    def build() -> Any:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
        return keras.applications.EfficientNetV2S(
            include_top=False, weights=None, input_shape=(300, 300, 3), include_preprocessing=False
        )

    return images_train(build, optax.sgd(0.1, 0.9), 512, 300)


def hgnet_train() -> Program:
    """HGNet V2 B4, 512 images of 224 x 224; bfloat16 on float32, momentum."""
    from keras_hub.models import HGNetV2Backbone

    def build() -> Any:
        return HGNetV2Backbone(
            depths=[1, 1, 3, 1], embedding_size=48, hidden_sizes=[128, 512, 1024, 2048], stem_channels=[3, 32, 48],
            hidden_act="relu", use_learnable_affine_block=False,
            stackwise_stage_filters=[(48, 48, 128, 1, 6, 3), (128, 96, 512, 1, 6, 3), (512, 192, 1024, 3, 6, 5), (1024, 384, 2048, 1, 6, 5)],
            apply_downsample=[False, True, True, True], use_lightweight_conv_block=[False, False, True, True],
            image_shape=(224, 224, 3), out_features=["stage4"], dtype="mixed_bfloat16",
        )  # fmt: skip

    return images_train(build, optax.sgd(0.1, 0.9), 512, 224)


def swin_keras_train() -> Program:
    """Swin B of keras-hub, 512 images of 224 x 224; bfloat16 on float32, AdamW."""
    from keras_hub.models import SwinTransformerBackbone

    def build() -> Any:
        return SwinTransformerBackbone(
            image_shape=(224, 224, 3), embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32], window_size=7,
            drop_path=0.0, dtype="mixed_bfloat16",
        )  # fmt: skip

    return images_train(build, ADAMW, 512, 224)


def videoprism_fwd() -> Program:
    """VideoPrism B, 128 clips of 16 frames; bfloat16."""
    from keras_hub.models import VideoPrismBackbone

    run, weights, others = keras_model(
        lambda: VideoPrismBackbone(16, 18, 768, 3072, 12, 12, 4, 0, attention_logit_soft_cap=50.0, dtype="bfloat16")
    )

    def forward(weights: Tree, others: Tree, clips: Any) -> Any:
        made, _ = run(weights, others, {"pixel_values": clips}, training=False)
        return made

    return forward, (weights, others, Shape((128, 16, 288, 288, 3), BF16)), ()


def tunix_model(build: Callable[[], Any]) -> tuple[Any, Tree]:
    """The structure and the shapes of the weights of a model of tunix (nnx)."""
    from flax import nnx

    return nnx.split(nnx.eval_shape(build))


def gemma3_tunix_train() -> Program:
    """Gemma 3 1B of tunix, 64 texts of 1024; bfloat16 weights, AdamW."""
    from flax import nnx
    from tunix.models.gemma3 import model as gemma3

    graph, weights = tunix_model(lambda: gemma3.Gemma3(gemma3.ModelConfig.gemma3_1b_it(), rngs=nnx.Rngs(0)))
    weights = jax.tree.map(lambda a: Shape(a.shape, BF16), weights)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        count, length = ids.shape
        places = jnp.broadcast_to(jnp.arange(length), ids.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (count, length, length))
        made, _ = nnx.merge(graph, weights)(ids, places, None, mask)
        return cross_entropy(made, labels)

    ids = Shape((64, 1024), I32)
    return training(loss, ADAMW, weights, ids, ids)


def qwen3_tunix_train() -> Program:
    """Qwen 3 1.7B of tunix, 64 texts of 1024; bfloat16 weights, AdamW."""
    from flax import nnx
    from tunix.models.qwen3 import model as qwen3

    graph, weights = tunix_model(lambda: qwen3.Qwen3(qwen3.ModelConfig.qwen3_1p7b(), rngs=nnx.Rngs(0)))
    weights = jax.tree.map(lambda a: Shape(a.shape, BF16), weights)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        count, length = ids.shape
        places = jnp.broadcast_to(jnp.arange(length), ids.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (count, length, length))
        made, _ = nnx.merge(graph, weights)(ids, places, None, mask)
        return cross_entropy(made, labels)

    ids = Shape((64, 1024), I32)
    return training(loss, ADAMW, weights, ids, ids)


PROGRAMS = (
    fnet_train, smollm3_train, qwen35_train, efficientnetv2_keras_train, hgnet_train, swin_keras_train, videoprism_fwd,
    gemma3_tunix_train, qwen3_tunix_train,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
