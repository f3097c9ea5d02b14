"""Programs of real packages, of kinds that the tables of this folder had not seen; no rule of any cost model was made on them before.

Here are models that the packages have whole (transformers' flax models, keras-hub); `zoo_layers.py` has those built of a package's
layers. Each is lowered on abstract shapes, without weights. Training steps donate their state.

    python experiments/fidelity/zoo.py FOLDER [NAME...]

Lowered with jax 0.10.2, flax 0.12.8, transformers 4.48.3, keras 3.15.1, keras-hub 0.32.0, dm-haiku 0.0.17, equinox 0.13.8, jraph
0.0.6.dev0, distrax 0.1.9, optax 0.2.8 (Python 3.12, JAX_PLATFORMS=cpu).
"""

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower

ADAMW = optax.adamw(1e-3)


def training(
    loss: Callable[..., Any], optimizer: optax.GradientTransformation, parameters: Tree, *batch: Any
) -> Program:
    """A step of `loss(parameters, *batch)` that is descended by `optimizer`."""

    def step(parameters: Tree, state: Tree, *batch: Any) -> tuple[Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return step, (parameters, jax.eval_shape(optimizer.init, parameters), *batch), (0, 1)


def abstract(build: Callable[[], Any], variables: Callable[[Any], Tree]) -> tuple[Any, Tree]:
    """A model that is built without values, and the shapes of its variables."""
    built: list[Any] = []

    def traced() -> Tree:
        built.append(build())
        return variables(built[0])

    shapes = jax.eval_shape(traced)
    return built[0], shapes


def flax_model(build: Callable[[], Any]) -> tuple[Any, Tree]:
    """A model of transformers' flax classes, and the shapes of its weights."""
    return abstract(build, lambda model: model.params)


def keras_model(build: Callable[[], Any]) -> tuple[Callable[..., Any], Tree, Tree]:
    """`run(weights, others, inputs)` of a keras model in training, the shapes of its weights and of its other variables."""

    def variables(model: Any) -> Tree:
        return [
            [v.value for v in kind] for kind in (model.trainable_variables, model.non_trainable_variables)
        ]

    model, (weights, others) = abstract(build, variables)

    def run(weights: Tree, others: Tree, inputs: Any, training: bool = True) -> Any:
        return model.stateless_call(weights, others, inputs, training=training)

    return run, weights, others


def roberta_prenorm_train() -> Program:
    """Four layers of RoBERTa with normalization before them, masked words, 128 sequences of 256 tokens; float32, AdamW."""
    from transformers import FlaxRobertaPreLayerNormForMaskedLM, RobertaPreLayerNormConfig

    config = RobertaPreLayerNormConfig(num_hidden_layers=4, max_position_embeddings=514)
    model, weights = flax_model(lambda: FlaxRobertaPreLayerNormForMaskedLM(config))

    def loss(weights: Tree, ids: Any, mask: Any, labels: Any) -> Any:
        return cross_entropy(model(ids, mask, params=weights).logits, labels)

    words = Shape((128, 256), I32)
    return training(loss, ADAMW, weights, words, words, words)


def blenderbot_train() -> Program:
    """Two encoder and four decoder layers of Blenderbot, half its width, 256 dialogues of 128 tokens; bfloat16 on float32, AdamW."""
    from transformers import BlenderbotConfig, FlaxBlenderbotForConditionalGeneration

    config = BlenderbotConfig(
        d_model=1280,
        encoder_layers=2,
        decoder_layers=4,
        encoder_ffn_dim=5120,
        decoder_ffn_dim=5120,
        encoder_attention_heads=20,
        decoder_attention_heads=20,
    )
    model, weights = flax_model(lambda: FlaxBlenderbotForConditionalGeneration(config, dtype=BF16))

    def loss(weights: Tree, said: Any, mask: Any, answer: Any, labels: Any) -> Any:
        logits = model(said, mask, decoder_input_ids=answer, params=weights).logits
        return cross_entropy(logits, labels)

    words = Shape((256, 128), I32)
    return training(loss, ADAMW, weights, words, words, words, words)


def xglm_train() -> Program:
    """Four layers of XGLM 564M with its 256008 words, 64 sequences of 256 tokens; bfloat16 on float32, Adafactor."""
    from transformers import FlaxXGLMForCausalLM, XGLMConfig

    config = XGLMConfig(d_model=1024, ffn_dim=4096, num_layers=4, attention_heads=16)
    model, weights = flax_model(lambda: FlaxXGLMForCausalLM(config, dtype=BF16))

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(model(ids, params=weights).logits, labels)

    words = Shape((64, 256), I32)
    return training(loss, optax.adafactor(1e-3), weights, words, words)


def captioner_train() -> Program:
    """A vision transformer and GPT-2 with cross attention, four layers each, 64 images and captions of 64 words; float32, momentum."""
    from transformers import (
        FlaxVisionEncoderDecoderModel,
        GPT2Config,
        VisionEncoderDecoderConfig,
        ViTConfig,
    )

    seen = ViTConfig(num_hidden_layers=4)
    said = GPT2Config(n_layer=4)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, said)
    model, weights = flax_model(lambda: FlaxVisionEncoderDecoderModel(config))

    def loss(weights: Tree, images: Any, words: Any, labels: Any) -> Any:
        return cross_entropy(model(images, words, params=weights).logits, labels)

    words = Shape((64, 64), I32)
    images = Shape((64, 3, 224, 224), F32)
    return training(loss, optax.sgd(1e-3, 0.9), weights, images, words, words)


def xlm_roberta_train() -> Program:
    """Four layers of XLM-R base tagging words, eight microbatches of 64 sequences by a scan; bfloat16 weights, Lion."""
    from transformers import FlaxXLMRobertaForTokenClassification, XLMRobertaConfig

    config = XLMRobertaConfig(
        num_hidden_layers=4, vocab_size=250002, max_position_embeddings=514, type_vocab_size=1, num_labels=32
    )
    model, wide = flax_model(lambda: FlaxXLMRobertaForTokenClassification(config, dtype=BF16))
    weights = jax.tree.map(lambda a: Shape(a.shape, BF16), wide)
    optimizer = optax.lion(1e-4)

    def loss(weights: Tree, ids: Any, mask: Any, labels: Any) -> Any:
        return cross_entropy(model(ids, mask, params=weights).logits, labels)

    def step(weights: Tree, state: Tree, *batch: Any) -> tuple[Tree, Tree, Any]:
        def microbatch(carried: tuple[Tree, Any], part: Any) -> tuple[Any, None]:
            value, gradients = jax.value_and_grad(loss)(weights, *part)
            return (jax.tree.map(jnp.add, carried[0], gradients), carried[1] + value), None

        zeros = jax.tree.map(jnp.zeros_like, weights)
        (gradients, value), _ = lax.scan(microbatch, (zeros, jnp.zeros((), F32)), batch)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value / 8

    words = Shape((8, 64, 256), I32)
    return step, (weights, jax.eval_shape(optimizer.init, weights), words, words, words), (0, 1)


def dual_encoder_train() -> Program:
    """A vision transformer beside BERT, four layers each, contrasted over 1024 pairs; bfloat16 on float32, AdamW."""
    from transformers import (
        BertConfig,
        FlaxVisionTextDualEncoderModel,
        VisionTextDualEncoderConfig,
        ViTConfig,
    )

    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        ViTConfig(num_hidden_layers=4, patch_size=32), BertConfig(num_hidden_layers=4)
    )
    model, weights = flax_model(lambda: FlaxVisionTextDualEncoderModel(config, dtype=BF16))

    def loss(weights: Tree, ids: Any, images: Any, mask: Any) -> Any:
        logits = model(ids, images, mask, params=weights).logits_per_text.astype(F32)
        pairs = jnp.arange(len(logits))
        return cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)

    words = Shape((1024, 64), I32)
    images = Shape((1024, 3, 224, 224), F32)
    return training(loss, ADAMW, weights, words, images, words)


def phi3_train() -> Program:
    """Four layers of Phi-3 mini at two thirds of its width, 128 sequences of 512 tokens; bfloat16 on float32, Adafactor."""
    from keras_hub.models import Phi3Backbone

    def build() -> Any:
        return Phi3Backbone(
            vocabulary_size=32064,
            num_layers=4,
            hidden_dim=2048,
            intermediate_dim=5504,
            num_query_heads=32,
            num_key_value_heads=32,
            dtype="mixed_bfloat16",
        )

    run, weights, others = keras_model(build)
    head = Shape((2048, 32064), F32)

    def loss(parameters: Tree, others: Tree, ids: Any, mask: Any, labels: Any) -> Any:
        hidden, _ = run(parameters["body"], others, {"token_ids": ids, "padding_mask": mask})
        return cross_entropy(hidden @ parameters["head"].astype(BF16), labels)

    words = Shape((128, 512), I32)
    return training(loss, optax.adafactor(1e-3), {"body": weights, "head": head}, others, words, words, words)


def images_train(
    build: Callable[[], Any], optimizer: optax.GradientTransformation, count: int, side: int
) -> Program:
    """A step of a keras-hub backbone with a mean and a layer of 1000 classes behind it; statistics of batches are carried too."""
    run, weights, others = keras_model(build)

    def loss(parameters: Tree, others: Tree, images: Any, labels: Any) -> tuple[Any, Tree]:
        features, others = run(parameters["body"], others, images)
        pooled = features.astype(F32).mean((1, 2))
        return cross_entropy(pooled @ parameters["head"], labels), others

    def step(
        parameters: Tree, state: Tree, others: Tree, images: Any, labels: Any
    ) -> tuple[Tree, Tree, Tree, Any]:
        found = jax.value_and_grad(loss, has_aux=True)(parameters, others, images, labels)
        (value, others), gradients = found
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, others, value

    images, labels = Shape((count, side, side, 3), F32), Shape((count,), I32)
    features = jax.eval_shape(run, weights, others, images)[0]
    parameters = {"body": weights, "head": Shape((features.shape[-1], 1000), F32)}
    state = jax.eval_shape(optimizer.init, parameters)
    return step, (parameters, state, others, images, labels), (0, 1, 2)


def mit_train() -> Program:
    """Mix transformer B1 (SegFormer's encoder) on 128 images of 224 x 224; float32, AdamW."""
    from keras_hub.models import MiTBackbone

    def build() -> Any:
        return MiTBackbone(
            layerwise_depths=[2, 2, 2, 2],
            num_layers=4,
            layerwise_num_heads=[1, 2, 5, 8],
            layerwise_sr_ratios=[8, 4, 2, 1],
            max_drop_path_rate=0.0,
            layerwise_patch_sizes=[7, 3, 3, 3],
            layerwise_strides=[4, 2, 2, 2],
            image_shape=(224, 224, 3),
            hidden_dims=[64, 128, 320, 512],
        )

    return images_train(build, ADAMW, 128, 224)


def cspnet_train() -> Program:
    """CSP-DarkNet of four stages with leaky rectifiers, 256 images of 224 x 224; bfloat16 on float32, momentum."""
    from keras_hub.models import CSPNetBackbone

    def build() -> Any:
        return CSPNetBackbone(
            stem_filters=32,
            stem_kernel_size=3,
            stem_strides=1,
            stackwise_depth=[1, 2, 4, 2],
            stackwise_strides=[2],
            stackwise_num_filters=[64, 128, 256, 512],
            block_type="dark_block",
            stage_type="csp",
            bottle_ratio=[0.5, 1.0],
            block_ratio=[1.0, 0.5],
            expand_ratio=[2.0, 1.0],
            image_shape=(224, 224, 3),
            dtype="mixed_bfloat16",
        )

    return images_train(build, optax.sgd(1e-2, 0.9, nesterov=True), 256, 224)


def esm_train() -> Program:
    """Six layers of ESM-2 (rotary, 33 letters) on 128 proteins of 512 residues; float32, AdamW."""
    from keras_hub.models import ESMBackbone

    def build() -> Any:
        return ESMBackbone(
            vocabulary_size=33,
            num_layers=6,
            num_heads=20,
            hidden_dim=640,
            intermediate_dim=2560,
            dropout=0.0,
            use_pre_layer_norm=True,
        )

    run, weights, others = keras_model(build)

    def loss(parameters: Tree, others: Tree, ids: Any, labels: Any) -> Any:
        hidden, _ = run(parameters["body"], others, {"token_ids": ids})
        return cross_entropy(hidden @ parameters["head"], labels)

    residues = Shape((128, 512), I32)
    return training(loss, ADAMW, {"body": weights, "head": Shape((640, 33), F32)}, others, residues, residues)


def gemma3_prefill() -> Program:
    """A forward pass of six layers of Gemma 3 at the width of 1B (windows of 512, normalized queries), 32 prompts of 2048; bfloat16."""
    from keras_hub.models import Gemma3Backbone

    def build() -> Any:
        return Gemma3Backbone(
            vocabulary_size=262144,
            image_size=None,
            num_layers=6,
            num_query_heads=4,
            num_key_value_heads=1,
            hidden_dim=1152,
            intermediate_dim=6912,
            head_dim=256,
            use_query_key_norm=True,
            use_sliding_window_attention=True,
            sliding_window_size=512,
            dtype="bfloat16",
        )

    run, weights, others = keras_model(build)

    def forward(weights: Tree, others: Tree, ids: Any, mask: Any) -> Any:
        hidden, _ = run(weights, others, {"token_ids": ids, "padding_mask": mask}, training=False)
        return hidden[:, -1]

    words = Shape((32, 2048), I32)
    return forward, (weights, others, words, words), ()


PROGRAMS = (
    roberta_prenorm_train,
    blenderbot_train,
    xglm_train,
    captioner_train,
    xlm_roberta_train,
    dual_encoder_train,
    phi3_train,
    mit_train,
    cspnet_train,
    esm_train,
    gemma3_prefill,
)


if __name__ == "__main__":
    import zoo_layers

    lower(__doc__, (*PROGRAMS, *zoo_layers.PROGRAMS), compressed=True)
