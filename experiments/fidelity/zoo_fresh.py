"""Further models of transformers, diffusers, timm and torchvision, of kinds that the other files do not have, planned at first sight.

Built and lowered as those of `zoo_torch.py`, on abstract shapes; training steps donate their state.

    python experiments/fidelity/zoo_fresh.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, transformers 5.24.0, diffusers 0.42.1, timm 1.0.31, torchvision 0.28.0, optax 0.2.8
(Python 3.11, JAX_PLATFORMS=cpu).
"""

from typing import Any

import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo_packages import forward, whole
from zoo_torch import (
    ADAMW,
    answers,
    cast,
    causal_lm,
    images_train,
    logits,
    masked_texts,
    prefilling,
    remat_layers,
    torch_model,
    training,
)


def opt_train() -> Program:
    """OPT 1.3B, 12 of its layers, 64 sequences of 1024 tokens; bfloat16 on float32, AdamW."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=2048, num_hidden_layers=12, ffn_dim=8192, num_attention_heads=32, dropout=0.0
    )
    run, weights, buffers = torch_model(lambda: OPTForCausalLM(config))
    ids = Shape((64, 1024), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def falcon_fwd() -> Program:
    """Falcon 7B, 10 of its layers (one head of keys, perceptron beside attention), 32 sequences of 2048 tokens; bfloat16."""
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(hidden_size=4544, num_hidden_layers=10, num_attention_heads=71)
    run, weights, buffers = torch_model(lambda: FalconForCausalLM(config), False)
    ids = Shape((32, 2048), I32)
    return (
        (lambda w, b, ids: run(w, b, ids, use_cache=False, of=logits)[:, -1]),
        (cast(weights), buffers, ids),
        (),
    )


def stablelm_train() -> Program:
    """StableLM 2 1.6B, 12 of its layers, each made again, 64 sequences of 2048 tokens; bfloat16 on float32, AdamW, clipped."""
    from transformers import StableLmConfig, StableLmForCausalLM

    config = StableLmConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=12, num_attention_heads=32, num_key_value_heads=32
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: StableLmForCausalLM(config))
    remat_layers(run.model.model.layers)
    ids = Shape((64, 2048), I32)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), ADAMW)
    return training(causal_lm(run, narrowed=True), optimizer, weights, buffers, ids, ids)


def phi_prefill() -> Program:
    """Phi-2, 16 of its layers, 32 prompts of 1024 tokens and the keys and values of all; bfloat16."""
    from transformers import PhiConfig, PhiForCausalLM

    config = PhiConfig(
        hidden_size=2560, intermediate_size=10240, num_hidden_layers=16, num_attention_heads=32
    )
    run, weights, buffers = torch_model(lambda: PhiForCausalLM(config), False)

    return prefilling(run, logits_to_keep=1), (cast(weights), buffers, Shape((32, 1024), I32)), ()


def deberta_train() -> Program:
    """DeBERTa V2 large, 12 of its layers, distances in attention, 3 classes of 128 texts of 256 tokens; bfloat16 on float32, AdamW."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, intermediate_size=4096, num_labels=3, relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_buckets=256, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pooler_dropout=0.0,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: DebertaV2ForSequenceClassification(config))

    ids = Shape((128, 256), I32)
    return training(masked_texts(run), ADAMW, weights, buffers, ids, ids, Shape((128,), I32))


def mbart_train() -> Program:
    """mBART with 6 layers a side, 64 texts of 512 tokens and as long translations; bfloat16 on float32, AdamW."""
    from transformers import MBartConfig, MBartForConditionalGeneration

    config = MBartConfig(
        vocab_size=250027, encoder_layers=6, decoder_layers=6, d_model=1024, encoder_ffn_dim=4096, decoder_ffn_dim=4096,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: MBartForConditionalGeneration(config))

    said = Shape((64, 512), I32)
    return training(answers(run), ADAMW, weights, buffers, said, said, said)


def hubert_train() -> Program:
    """HuBERT base tells 32 classes of each frame, 128 clips of 5 s; bfloat16 on float32, AdamW."""
    from transformers import HubertConfig, HubertModel

    config = HubertConfig(
        hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, activation_dropout=0.0,
        apply_spec_augment=False,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: HubertModel(config))

    def loss(weights: Tree, buffers: Tree, sound: Any, wanted: Any) -> Any:
        made = run(cast(weights), buffers, sound.astype(BF16), of=lambda a: a.last_hidden_state)
        return ((made.astype(F32) - wanted) ** 2).mean()

    return training(loss, ADAMW, weights, buffers, Shape((128, 80000), F32), Shape((128, 249, 768), F32))


def timesformer_train() -> Program:
    """TimeSformer base, attention over time and over space, 64 clips of 8 frames; bfloat16 on float32, SGD with momentum."""
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    config = TimesformerConfig(num_labels=400, drop_path_rate=0)
    run, weights, buffers = torch_model(lambda: TimesformerForVideoClassification(config))

    def loss(weights: Tree, buffers: Tree, clips: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), buffers, clips.astype(BF16), of=logits), labels)

    clips = Shape((64, 8, 3, 224, 224), F32)
    return training(loss, optax.sgd(0.1, 0.9), weights, buffers, clips, Shape((64,), I32))


def flux_fwd() -> Program:
    """FLUX.1 with 4 blocks of two streams and 8 of one, 16 latents of 64 x 64 and 512 words; bfloat16."""
    from diffusers import FluxTransformer2DModel

    run, weights, buffers = torch_model(
        lambda: FluxTransformer2DModel(num_layers=4, num_single_layers=8, guidance_embeds=False), False
    )

    def noise(weights: Tree, buffers: Tree, latents: Any, words: Any, pooled: Any, times: Any) -> Any:
        image_ids, word_ids = jnp.zeros((1024, 3), F32), jnp.zeros((512, 3), F32)
        return run(
            weights, buffers, latents, words, pooled, times, image_ids, word_ids, of=lambda a: a.sample
        )

    latents, words = Shape((16, 1024, 64), BF16), Shape((16, 512, 4096), BF16)
    return (
        noise,
        (cast(weights), cast(buffers), latents, words, Shape((16, 768), BF16), Shape((16,), BF16)),
        (),
    )


def vae_train() -> Program:
    """The autoencoder of Stable Diffusion on 32 images of 256 x 256; bfloat16 on float32, AdamW."""
    from diffusers import AutoencoderKL

    run, weights, buffers = torch_model(
        lambda: AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=256,
        )
    )  # fmt: skip

    def loss(weights: Tree, buffers: Tree, images: Any) -> Any:
        made = run(cast(weights), cast(buffers), images.astype(BF16), of=lambda a: a.sample).astype(F32)
        return ((made - images) ** 2).mean()

    return training(loss, ADAMW, weights, buffers, Shape((32, 3, 256, 256), F32))


def hiera_train() -> Program:
    """timm's Hiera base, 512 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("hiera_base_224", drop_path_rate=0.0))
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32))


def pvt_train() -> Program:
    """timm's PVT v2 B2, keys and values from fewer places, 512 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("pvt_v2_b2", drop_path_rate=0.0))
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32))


def vgg_train() -> Program:
    """torchvision's VGG-16 with batch normalization, 1024 images; bfloat16 on float32, SGD with momentum."""
    import torch
    import torchvision

    def make() -> Any:
        model = torchvision.models.vgg16_bn()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model

    run, weights, buffers = torch_model(make)
    return images_train(run, weights, buffers, Shape((1024, 3, 224, 224), F32), optax.sgd(0.1, 0.9))


def inception_fwd() -> Program:
    """torchvision's Inception v3, 2048 images of 299 x 299; bfloat16."""
    import torchvision

    run, weights, buffers = torch_model(
        lambda: whole(torchvision.models.inception_v3(init_weights=False)), training=False
    )
    return forward(run, weights, buffers, Shape((2048, 3, 299, 299), BF16))


PROGRAMS = (
    opt_train, falcon_fwd, stablelm_train, phi_prefill, deberta_train, mbart_train, hubert_train, timesformer_train, flux_fwd,
    vae_train, hiera_train, pvt_train, vgg_train, inception_fwd,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
