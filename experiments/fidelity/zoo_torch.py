"""Torch models of real packages through torchax, of kinds that the tables of this folder had not seen.

Models of transformers, timm and diffusers. Each is built with weights that have shapes alone and lowered on abstract shapes. Training
steps donate their state.

    python experiments/fidelity/zoo_torch.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.9.1, torchax 0.0.13, transformers 5.23.0, timm 1.0.31, diffusers 0.42.1, accelerate 1.15.0, optax 0.2.8
(Python 3.11, JAX_PLATFORMS=cpu).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
import torchax
from accelerate import init_empty_weights
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from torchax import interop
from torchax.ops import jaten, mappings


@jaten.op(torch.ops.aten._grouped_mm)
def grouped_mm(rows: Any, weights: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """What torchax leaves out: rows of groups, which end at `offs`, times a matrix each."""
    return lax.ragged_dot(rows, weights, jnp.diff(offs, prepend=0))


ADAMW = optax.adamw(1e-3)
ENV = torchax.default_env()


def torch_model(build: Callable[[], torch.nn.Module], training: bool = True) -> tuple[Any, Tree, Tree]:
    """`run(weights, buffers, *inputs, **inputs)` of a torch module, the shapes of its weights and of its buffers.

    What it answers goes through `of` as it is in torch; with `moved` the buffers as the module leaves them come second.
    """
    with init_empty_weights(include_buffers=False):
        model = build()
    model.train(training)
    weights = {name: shape(p) for name, p in model.named_parameters()}
    buffers = {name: shape(b) for name, b in model.named_buffers()}

    def run(
        weights: Tree,
        buffers: Tree,
        *args: Any,
        of: Callable[[Any], Any] = lambda answer: answer,
        moved: bool = False,
        **kwargs: Any,
    ) -> Any:
        with ENV:
            w, b, args, kwargs = interop.torch_view((weights, buffers, args, kwargs))
            answer = of(torch.func.functional_call(model, {**w, **b}, args, kwargs))
        answer = interop.jax_view(answer)
        return (answer, interop.jax_view(b)) if moved else answer

    run.model = model
    return run, weights, buffers


def shape(tensor: torch.Tensor) -> Any:
    return Shape(tuple(tensor.shape), mappings.t2j_dtype(tensor.dtype))


def cast(tree: Tree, to: Any = BF16) -> Tree:
    """Its floating shapes or values, as `to`."""

    def of(a: Any) -> Any:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return a
        return Shape(a.shape, to) if isinstance(a, Shape) else a.astype(to)

    return jax.tree.map(of, tree)


def logits(answer: Any) -> Any:
    return answer.logits


def training(
    loss: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    weights: Tree,
    buffers: Tree,
    *batch: Any,
) -> Program:
    """A step of `loss(weights, buffers, *batch)` that is descended by `optimizer`; buffers are constant."""

    def step(weights: Tree, state: Tree, buffers: Tree, *batch: Any) -> tuple[Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(weights, buffers, *batch)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    return step, (weights, jax.eval_shape(optimizer.init, weights), buffers, *batch), (0, 1)


def causal_lm(run: Any, narrowed: bool = False) -> Callable[..., Any]:
    def loss(weights: Tree, buffers: Tree, ids: Any, labels: Any) -> Any:
        weights = cast(weights) if narrowed else weights
        return cross_entropy(run(weights, buffers, ids, use_cache=False, of=logits), labels)

    return loss


def masked_texts(run: Any) -> Callable[..., Any]:
    """What is said of texts with a mask each; bfloat16 on float32."""

    def loss(weights: Tree, buffers: Tree, ids: Any, mask: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), buffers, ids, mask, of=logits), labels)

    return loss


def answers(run: Any) -> Callable[..., Any]:
    """What is said to texts, word by word; bfloat16 on float32."""

    def loss(weights: Tree, buffers: Tree, ids: Any, said: Any, labels: Any) -> Any:
        answer = run(cast(weights), buffers, ids, decoder_input_ids=said, use_cache=False, of=logits)
        return cross_entropy(answer, labels)

    return loss


def prefilling(run: Any, **options: Any) -> Callable[..., Any]:
    """The last word's logits, and the keys and values of all layers."""

    def prefill(weights: Tree, buffers: Tree, ids: Any) -> Any:
        def of(answer: Any) -> Any:
            return answer.logits[:, -1], [
                (layer.keys, layer.values) for layer in answer.past_key_values.layers
            ]

        return run(weights, buffers, ids, use_cache=True, of=of, **options)

    return prefill


def llama_remat_train() -> Program:
    """Llama 3.2 1B, each layer made again, 64 sequences of 2048 tokens; bfloat16 weights, AdamW."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072, rope_theta=500000.0, tie_word_embeddings=True, head_dim=64,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: LlamaForCausalLM(config))
    remat_layers(run.model.model.layers)
    ids = Shape((64, 2048), I32)
    return training(causal_lm(run), ADAMW, cast(weights), buffers, ids, ids)


def remat_layers(layers: Any) -> None:
    """Each layer is made again in the backward pass; what it reads beside the hidden states comes by name."""
    for layer in layers:
        inner = layer.forward

        def forward(hidden: Any, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            def again(hidden: Any) -> Any:
                return inner(hidden, *args, **kwargs)

            return interop.gradient_checkpoint(again)(hidden)

        layer.forward = forward


def qwen3_train() -> Program:
    """Qwen3 0.6B, 32 sequences of 1024 tokens; bfloat16 on float32, AdamW."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, rope_theta=1e6,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Qwen3ForCausalLM(config))
    ids = Shape((32, 1024), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def smollm_accumulate_train() -> Program:
    """SmolLM2 135M, four microbatches of 32 sequences of 512 tokens by a scan; float32, gradients clipped, AdamW."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: LlamaForCausalLM(config))
    loss = causal_lm(run)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), ADAMW)

    def step(weights: Tree, state: Tree, buffers: Tree, ids: Any, labels: Any) -> tuple[Tree, Tree, Any]:
        def microbatch(carried: tuple[Tree, Any], part: Any) -> tuple[Any, None]:
            value, gradients = jax.value_and_grad(loss)(weights, buffers, *part)
            return (jax.tree.map(jnp.add, carried[0], gradients), carried[1] + value), None

        zeros = jax.tree.map(jnp.zeros_like, weights)
        (gradients, value), _ = lax.scan(microbatch, (zeros, jnp.zeros((), F32)), (ids, labels))
        gradients = jax.tree.map(lambda g: g / 4, gradients)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value / 4

    ids = Shape((4, 32, 512), I32)
    return step, (weights, jax.eval_shape(optimizer.init, weights), buffers, ids, ids), (0, 1)


def gemma3_train() -> Program:
    """Gemma 3 1B text, windows of 512 in five of six layers, 16 sequences of 1024 tokens; bfloat16 weights, AdamW."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, sliding_window=512, attn_implementation="eager",
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Gemma3ForCausalLM(config))
    ids = Shape((16, 1024), I32)
    return training(causal_lm(run), ADAMW, cast(weights), buffers, ids, ids)


def modernbert_train() -> Program:
    """ModernBERT base, masked words, 64 sequences of 512 tokens; bfloat16 on float32, AdamW."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(attn_implementation="sdpa", reference_compile=False)
    run, weights, buffers = torch_model(lambda: ModernBertForMaskedLM(config))

    ids = Shape((64, 512), I32)
    return training(masked_texts(run), ADAMW, weights, buffers, ids, ids, ids)


def distilbert_dropout_train() -> Program:
    """DistilBERT with dropout, questions answered by two ends, 128 sequences of 384 tokens; float32, Adam with decay of its rate."""
    from transformers import DistilBertConfig, DistilBertForQuestionAnswering

    run, weights, buffers = torch_model(lambda: DistilBertForQuestionAnswering(DistilBertConfig()))

    def loss(weights: Tree, buffers: Tree, ids: Any, mask: Any, first: Any, last: Any, seed: Any) -> Any:
        ENV.param.prng = jax.random.wrap_key_data(seed)
        start, end = run(weights, buffers, ids, mask, of=lambda a: (a.start_logits, a.end_logits))
        return cross_entropy(start, first) + cross_entropy(end, last)

    ids, ends = Shape((128, 384), I32), Shape((128,), I32)
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-4, 100, 1000))
    return training(loss, optimizer, weights, buffers, ids, ids, ends, ends, Shape((2,), jnp.uint32))


def whisper_train() -> Program:
    """Whisper small, 32 recordings of 30 s with 256 tokens; bfloat16 weights and state, AdamW."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: WhisperForConditionalGeneration(config))

    def loss(weights: Tree, buffers: Tree, mels: Any, ids: Any, labels: Any) -> Any:
        answer = run(weights, buffers, mels, decoder_input_ids=ids, use_cache=False, of=logits)
        return cross_entropy(answer, labels)

    ids = Shape((32, 256), I32)
    return training(loss, ADAMW, cast(weights), buffers, Shape((32, 80, 3000), BF16), ids, ids)


def mamba2_train() -> Program:
    """Mamba 2, 130M, 24 layers by chunks of 256, 32 sequences of 1024 tokens; bfloat16 on float32, AdamW."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        num_heads=24, head_dim=64, vocab_size=50288, hidden_size=768, state_size=128, num_hidden_layers=24,
        expand=2, n_groups=1, chunk_size=256, tie_word_embeddings=True,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Mamba2ForCausalLM(config))
    ids = Shape((32, 1024), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def dino_train() -> Program:
    """DINOv2 base with a teacher that follows it, two views of 256 images; bfloat16 on float32, AdamW and a moving average."""
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(image_size=224, patch_size=14)
    run, weights, _ = torch_model(lambda: Dinov2Model(config))
    head = Shape((768, 65536), F32)

    def seen(weights: Tree, head: Any, images: Any) -> Any:
        pooled = run(cast(weights), {}, images.astype(BF16), of=lambda a: a.pooler_output)
        pooled = pooled / jnp.linalg.norm(pooled.astype(F32), axis=-1, keepdims=True).astype(BF16)
        return (pooled @ head.astype(BF16)).astype(F32)

    def loss(student: Tree, teacher: Tree, center: Any, views: Any) -> Any:
        wanted = lax.stop_gradient([seen(*teacher, view) for view in views])
        said = [jax.nn.log_softmax(seen(*student, view) / 0.1) for view in views]
        crossed = sum(
            -(jax.nn.softmax((w - center) / 0.04) * s).sum(-1).mean()
            for w, s in zip(wanted, said[::-1], strict=True)
        )
        return crossed, sum(w.mean(0) for w in wanted) / 2

    def step(student: Tree, teacher: Tree, state: Tree, center: Any, *views: Any) -> Any:
        (value, mean), gradients = jax.value_and_grad(loss, has_aux=True)(student, teacher, center, views)
        updates, state = ADAMW.update(gradients, state, student)
        student = optax.apply_updates(student, updates)
        teacher = jax.tree.map(lambda t, s: 0.996 * t + 0.004 * s, teacher, student)
        return student, teacher, state, 0.9 * center + 0.1 * mean, value

    both = (weights, head)
    view = Shape((256, 3, 224, 224), F32)
    state = jax.eval_shape(ADAMW.init, both)
    return step, (both, both, state, Shape((65536,), F32), view, view), (0, 1, 2, 3)


def images_train(
    run: Any, weights: Tree, buffers: Tree, images: Any, optimizer: Any = ADAMW, narrowed: bool = True
) -> Program:
    """A classifier of images, whose buffers (moving statistics) are state as well."""

    def loss(weights: Tree, buffers: Tree, images: Any, labels: Any) -> Any:
        if narrowed:
            weights, images = cast(weights), cast(images)
        answer, moved = run(weights, buffers, images, moved=True)
        return cross_entropy(answer, labels), moved

    def step(weights: Tree, state: Tree, buffers: Tree, images: Any, labels: Any) -> Any:
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(weights, buffers, images, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, buffers, value

    arguments = (
        weights,
        jax.eval_shape(optimizer.init, weights),
        buffers,
        images,
        Shape(images.shape[:1], I32),
    )
    return step, arguments, (0, 1, 2)


def convnextv2_train() -> Program:
    """timm's ConvNeXt V2 base, 1024 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("convnextv2_base"))
    return images_train(run, weights, buffers, Shape((1024, 3, 224, 224), F32))


def efficientnetv2_train() -> Program:
    """timm's EfficientNet V2 S, 256 images of 300 x 300, moving averages of weights; float32, RMSProp."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("tf_efficientnetv2_s"))
    optimizer = optax.rmsprop(1e-3, 0.9, momentum=0.9)
    images = Shape((256, 3, 300, 300), F32)
    inner, (_, state, _, _, labels), _ = images_train(
        run, weights, buffers, images, optimizer, narrowed=False
    )

    def step(weights: Tree, averages: Tree, state: Tree, buffers: Tree, images: Any, labels: Any) -> Any:
        weights, state, buffers, value = inner(weights, state, buffers, images, labels)
        averages = jax.tree.map(lambda a, w: 0.9999 * a + 1e-4 * w, averages, weights)
        return weights, averages, state, buffers, value

    return step, (weights, weights, state, buffers, images, labels), (0, 1, 2, 3)


def coatnet_train() -> Program:
    """timm's CoAtNet 1, 256 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("coatnet_1_rw_224"))
    return images_train(run, weights, buffers, Shape((256, 3, 224, 224), F32))


def regnety_train() -> Program:
    """timm's RegNetY 4 GF, 512 images; float32, momentum."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("regnety_040"))
    return images_train(
        run, weights, buffers, Shape((512, 3, 224, 224), F32), optax.sgd(0.1, 0.9, True), False
    )


def vjepa2_train() -> Program:
    """The encoder of V-JEPA 2, large, eight of its layers, 32 clips of 16 frames, a probe of 174 classes; bfloat16, Lion."""
    from transformers import VJEPA2Config, VJEPA2ForVideoClassification

    config = VJEPA2Config(
        hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, frames_per_clip=16, crop_size=256, num_labels=174,
        pred_num_hidden_layers=1, num_pooler_layers=2,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: VJEPA2ForVideoClassification(config))

    def loss(weights: Tree, buffers: Tree, clips: Any, labels: Any) -> Any:
        return cross_entropy(run(weights, buffers, clips, of=logits), labels)

    clips = Shape((32, 16, 3, 256, 256), BF16)
    return training(loss, optax.lion(1e-4), cast(weights), buffers, clips, Shape((32,), I32))


def autoencoder_train() -> Program:
    """The latent autoencoder of Stable Diffusion, 64 images of 256 x 256; bfloat16 on float32, Adam."""
    from diffusers import AutoencoderKL

    def build() -> Any:
        down, up = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
        return AutoencoderKL(
            down_block_types=down,
            up_block_types=up,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
        )

    run, weights, buffers = torch_model(build)

    def loss(weights: Tree, buffers: Tree, images: Any) -> Any:
        made = run(cast(weights), buffers, images.astype(BF16), of=lambda a: a.sample)
        return jnp.abs(made.astype(F32) - images).mean()

    return training(loss, optax.adam(1e-4), weights, buffers, Shape((64, 3, 256, 256), F32))


def pixart_train() -> Program:
    """PixArt Sigma, 28 blocks, each made again, 64 latents of 64 x 64 with 300 words; bfloat16 on float32, AdamW."""
    from diffusers import PixArtTransformer2DModel

    run, weights, buffers = torch_model(
        lambda: PixArtTransformer2DModel(
            num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=28,
            cross_attention_dim=1152, sample_size=64, patch_size=2, caption_channels=4096, use_additional_conditions=False,
        )
    )  # fmt: skip
    remat_layers(run.model.transformer_blocks)

    def loss(weights: Tree, buffers: Tree, latents: Any, noise: Any, words: Any, times: Any) -> Any:
        share = (times / 1000).astype(F32)[:, None, None, None]
        mixed = (jnp.sqrt(1 - share) * latents + jnp.sqrt(share) * noise).astype(BF16)
        made = run(
            cast(weights), buffers, mixed, words, timestep=times, of=lambda a: a.sample,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
        )  # fmt: skip
        return ((made[:, :4].astype(F32) - noise) ** 2).mean()

    latents = Shape((64, 4, 64, 64), F32)
    words = Shape((64, 300, 4096), BF16)
    return training(loss, ADAMW, weights, buffers, latents, latents, words, Shape((64,), I32))


def detr_fwd() -> Program:
    """DETR with ResNet-50, 64 images of 800 x 1088; float32."""
    from transformers import DetrConfig, DetrForObjectDetection

    run, weights, buffers = torch_model(
        lambda: DetrForObjectDetection(DetrConfig(use_pretrained_backbone=False)), False
    )

    def detect(weights: Tree, buffers: Tree, images: Any, mask: Any) -> Any:
        return run(weights, buffers, images, mask, of=lambda a: (a.logits, a.pred_boxes))

    return detect, (weights, buffers, Shape((64, 3, 800, 1088), F32), Shape((64, 800, 1088), I32)), ()


def depth_anything_fwd() -> Program:
    """Depth Anything base, 64 images of 518 x 518; bfloat16."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    seen = Dinov2Config(
        image_size=518,
        patch_size=14,
        out_indices=[3, 6, 9, 12],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    config = DepthAnythingConfig(
        backbone_config=seen,
        reassemble_hidden_size=768,
        fusion_hidden_size=128,
        neck_hidden_sizes=[96, 192, 384, 768],
    )
    run, weights, buffers = torch_model(lambda: DepthAnythingForDepthEstimation(config), False)

    def depth(weights: Tree, buffers: Tree, images: Any) -> Any:
        return run(weights, buffers, images, of=lambda a: a.predicted_depth)

    return depth, (cast(weights), buffers, Shape((64, 3, 518, 518), BF16)), ()


def mobilenetv4_fwd() -> Program:
    """timm's MobileNet V4 hybrid large, 1024 images of 384 x 384; bfloat16."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("mobilenetv4_hybrid_large"), False)
    images = Shape((1024, 3, 384, 384), BF16)
    return (lambda w, b, images: run(w, b, images)), (cast(weights), cast(buffers), images), ()


def qwen3_decode() -> Program:
    """A token for each of 128 sequences of Qwen3 4B with up to 4096 positions behind it; bfloat16."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

    config = Qwen3Config(
        vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, rope_theta=1e6,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Qwen3ForCausalLM(config), False)
    kept = Shape((128, 8, 4096, 128), BF16)

    def decode(weights: Tree, buffers: Tree, kept: Tree, ids: Any, place: Any) -> Any:
        with ENV:
            cache = StaticCache(config=config, max_cache_len=4096)
            for layer, (keys, values) in zip(cache.layers, interop.torch_view(kept), strict=True):
                layer.keys, layer.values, layer.is_initialized = keys, values, True
                layer.device, layer.cumulative_length = keys.device, interop.torch_view(place)
            positions = interop.torch_view(place[None])
        answer = run(
            weights, buffers, ids, past_key_values=cache, cache_position=positions, use_cache=True, of=logits,
            position_ids=jnp.broadcast_to(place[None, None], (128, 1)),
        )  # fmt: skip
        return answer[:, -1].argmax(-1), interop.jax_view(
            [(layer.keys, layer.values) for layer in cache.layers]
        )

    return decode, (cast(weights), buffers, [(kept, kept)] * 36, Shape((128, 1), I32), Shape((), I32)), (2,)


def mixtral_prefill() -> Program:
    """Mixtral with 8 layers of half its width, 16 prompts of 512 tokens; bfloat16."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=2048, intermediate_size=7168, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4,
        experts_implementation="grouped_mm",
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: MixtralForCausalLM(config), False)

    return prefilling(run), (cast(weights), buffers, Shape((16, 512), I32)), ()


PROGRAMS = (
    llama_remat_train,
    qwen3_train,
    smollm_accumulate_train,
    gemma3_train,
    modernbert_train,
    distilbert_dropout_train,
    whisper_train,
    mamba2_train,
    dino_train,
    convnextv2_train,
    efficientnetv2_train,
    coatnet_train,
    regnety_train,
    vjepa2_train,
    autoencoder_train,
    pixart_train,
    detr_fwd,
    depth_anything_fwd,
    mobilenetv4_fwd,
    qwen3_decode,
    mixtral_prefill,
)

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
