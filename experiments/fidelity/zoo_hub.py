"""Models of transformers and diffusers that people train and serve most, through torchax, that the other files here do not have.

Built and lowered as those of `zoo_torch.py`, on abstract shapes; training steps donate their state.

    python experiments/fidelity/zoo_hub.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, transformers 5.24.0, diffusers 0.42.1, accelerate 1.15.0, optax 0.2.8
(Python 3.11, JAX_PLATFORMS=cpu).
"""

from typing import Any

import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo_torch import (
    ADAMW,
    answers,
    cast,
    causal_lm,
    logits,
    masked_texts,
    prefilling,
    remat_layers,
    torch_model,
    training,
)


def mistral_train() -> Program:
    """Mistral 7B, 8 of its layers, each made again, windows of 1024, 32 sequences of 2048 tokens; bfloat16 weights, AdamW."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=8, num_attention_heads=32,
        num_key_value_heads=8, sliding_window=1024,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: MistralForCausalLM(config))
    remat_layers(run.model.model.layers)
    ids = Shape((32, 2048), I32)
    return training(causal_lm(run), ADAMW, cast(weights), buffers, ids, ids)


def starcoder2_train() -> Program:
    """StarCoder2 3B, 8 of its layers, 32 sequences of 1024 tokens; bfloat16 on float32, AdamW, gradients clipped."""
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    config = Starcoder2Config(
        vocab_size=49152, hidden_size=3072, intermediate_size=12288, num_hidden_layers=8, num_attention_heads=24,
        num_key_value_heads=2, residual_dropout=0.0, embedding_dropout=0.0,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Starcoder2ForCausalLM(config))
    ids = Shape((32, 1024), I32)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), ADAMW)
    return training(causal_lm(run, narrowed=True), optimizer, weights, buffers, ids, ids)


def gemma2_torch_train() -> Program:
    """Gemma 2 2B, 10 of its layers, 32 sequences of 1024 tokens, logits and scores capped; bfloat16 weights, Adafactor."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(num_hidden_layers=10, attn_implementation="eager")
    run, weights, buffers = torch_model(lambda: Gemma2ForCausalLM(config))
    ids = Shape((32, 1024), I32)
    return training(causal_lm(run), optax.adafactor(1e-3), cast(weights), buffers, ids, ids)


def gpt2_torch_train() -> Program:
    """GPT-2 medium with dropout off, 64 sequences of 1024 tokens; bfloat16 on float32, AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    run, weights, buffers = torch_model(lambda: GPT2LMHeadModel(config))
    ids = Shape((64, 1024), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def bert_mlm_train() -> Program:
    """BERT large, words hidden, 256 texts of 512 tokens with a mask each; bfloat16 on float32, LAMB."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: BertForMaskedLM(config))

    ids = Shape((256, 512), I32)
    return training(masked_texts(run), optax.lamb(1e-3), weights, buffers, ids, ids, ids)


def bart_train() -> Program:
    """BART large, 64 texts of 1024 tokens and 256 of what is said of them; bfloat16 on float32, AdamW."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    run, weights, buffers = torch_model(lambda: BartForConditionalGeneration(config))

    said = Shape((64, 256), I32)
    return training(answers(run), ADAMW, weights, buffers, Shape((64, 1024), I32), said, said)


def clip_train() -> Program:
    """CLIP ViT-L/14, 512 images and texts; bfloat16 on float32, AdamW."""
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    seen = CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, patch_size=14,
    )  # fmt: skip
    read = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    config = CLIPConfig(text_config=read.to_dict(), vision_config=seen.to_dict(), projection_dim=768)
    run, weights, buffers = torch_model(lambda: CLIPModel(config))

    def loss(weights: Tree, buffers: Tree, ids: Any, images: Any) -> Any:
        said = run(cast(weights), buffers, ids, images.astype(BF16), of=lambda a: a.logits_per_text).astype(
            F32
        )
        own = jnp.arange(len(ids))
        return (cross_entropy(said, own) + cross_entropy(said.T, own)) / 2

    ids, images = Shape((512, 77), I32), Shape((512, 3, 224, 224), F32)
    return training(loss, ADAMW, weights, buffers, ids, images)


def bloom_train() -> Program:
    """BLOOM 560M, biases by distance, 64 sequences of 1024 tokens; bfloat16 on float32, AdamW."""
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(vocab_size=250880, hidden_size=1024, n_layer=24, n_head=16)
    run, weights, buffers = torch_model(lambda: BloomForCausalLM(config))
    ids = Shape((64, 1024), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def wav2vec2_train() -> Program:
    """wav2vec 2.0 base tells 32 classes of each frame, 64 clips of 10 s; bfloat16 on float32, AdamW."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForAudioFrameClassification

    config = Wav2Vec2Config(
        num_labels=32, hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0,
        activation_dropout=0.0, apply_spec_augment=False,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Wav2Vec2ForAudioFrameClassification(config))

    def loss(weights: Tree, buffers: Tree, sound: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), buffers, sound.astype(BF16), of=logits), labels)

    return training(loss, ADAMW, weights, buffers, Shape((64, 160000), F32), Shape((64, 499), I32))


def sdxl_unet_fwd() -> Program:
    """The U-Net of Stable Diffusion XL, 64 latents of 64 x 64; bfloat16."""
    from diffusers import UNet2DConditionModel

    run, weights, buffers = torch_model(
        lambda: UNet2DConditionModel(
            sample_size=64, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), block_out_channels=(320, 640, 1280),
            transformer_layers_per_block=(1, 2, 10), cross_attention_dim=2048, attention_head_dim=(5, 10, 20),
            use_linear_projection=True,
        ), False
    )  # fmt: skip

    def noise(weights: Tree, buffers: Tree, latents: Any, words: Any, times: Any) -> Any:
        return run(weights, buffers, latents, times, words, of=lambda a: a.sample)

    latents, words = Shape((64, 4, 64, 64), BF16), Shape((64, 77, 2048), BF16)
    return noise, (cast(weights), buffers, latents, words, Shape((64,), I32)), ()


def sd3_train() -> Program:
    """The transformer of Stable Diffusion 3 medium, each block made again, 64 latents of 64 x 64; bfloat16 on float32, AdamW."""
    from diffusers import SD3Transformer2DModel

    run, weights, buffers = torch_model(
        lambda: SD3Transformer2DModel(
            sample_size=64, num_layers=24, num_attention_heads=24, caption_projection_dim=1536,
            pooled_projection_dim=2048, pos_embed_max_size=192,
        )
    )  # fmt: skip

    def loss(
        weights: Tree, buffers: Tree, latents: Any, noise: Any, words: Any, pooled: Any, times: Any
    ) -> Any:
        share = (times / 1000).astype(F32)[:, None, None, None]
        mixed = ((1 - share) * latents + share * noise).astype(BF16)
        made = run(cast(weights), cast(buffers), mixed, words, pooled, times, of=lambda a: a.sample).astype(
            F32
        )
        return ((made - (noise - latents)) ** 2).mean()

    latents = Shape((32, 16, 64, 64), F32)
    words, pooled = Shape((32, 154, 4096), BF16), Shape((32, 2048), BF16)
    return training(loss, ADAMW, weights, buffers, latents, latents, words, pooled, Shape((32,), I32))


def cohere_prefill() -> Program:
    """Cohere's Command R, 8 of its layers (attention beside the perceptron), 16 prompts of 2048 tokens; bfloat16."""
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(num_hidden_layers=8, num_key_value_heads=8)
    run, weights, buffers = torch_model(lambda: CohereForCausalLM(config), False)

    return prefilling(run, logits_to_keep=1), (cast(weights), buffers, Shape((16, 2048), I32)), ()


def glm4_train() -> Program:
    """GLM-4 9B, 6 of its layers, 32 sequences of 2048 tokens; bfloat16 on float32, each layer made again, AdamW."""
    from transformers import Glm4Config, Glm4ForCausalLM

    config = Glm4Config(num_hidden_layers=6)
    run, weights, buffers = torch_model(lambda: Glm4ForCausalLM(config))
    remat_layers(run.model.model.layers)
    ids = Shape((32, 2048), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def deepseek_fwd() -> Program:
    """DeepSeek V3 with 5 layers of a quarter of its width, latent keys and values, 32 experts, 32 sequences of 1024 tokens; bfloat16."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        hidden_size=1792, intermediate_size=4608, moe_intermediate_size=512, num_hidden_layers=5, num_attention_heads=32,
        num_key_value_heads=32, n_routed_experts=32, first_k_dense_replace=1, experts_implementation="grouped_mm",
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: DeepseekV3ForCausalLM(config), False)

    def answer(weights: Tree, buffers: Tree, ids: Any) -> Any:
        return run(weights, buffers, ids, use_cache=False, of=logits)

    return answer, (cast(weights), buffers, Shape((32, 1024), I32)), ()


def dinov2_giant_fwd() -> Program:
    """DINOv2 giant, gated by SiLU, 256 images of 224 x 224; bfloat16."""
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=1536, num_hidden_layers=40, num_attention_heads=24, use_swiglu_ffn=True, patch_size=14, image_size=224
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Dinov2Model(config), False)
    images = Shape((256, 3, 224, 224), BF16)
    return (
        (lambda w, b, images: run(w, b, images, of=lambda a: a.last_hidden_state)),
        (cast(weights), buffers, images),
        (),
    )


def llava_fwd() -> Program:
    """What LLaVA's language half makes of 32 images as 576 words each and 448 tokens: 12 layers of Vicuna 7B; bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(num_hidden_layers=12)
    run, weights, buffers = torch_model(lambda: LlamaForCausalLM(config), False)

    def answer(weights: Tree, buffers: Tree, seen: Any, ids: Any) -> Any:
        words = weights["model.embed_tokens.weight"][ids]
        both = jnp.concatenate([seen, words], 1)
        return run(weights, buffers, inputs_embeds=both, use_cache=False, of=logits)[:, -448:].argmax(-1)

    return answer, (cast(weights), buffers, Shape((32, 576, 4096), BF16), Shape((32, 448), I32)), ()


PROGRAMS = (
    mistral_train, starcoder2_train, gemma2_torch_train, gpt2_torch_train, bert_mlm_train, bart_train, clip_train, bloom_train,
    wav2vec2_train, sdxl_unet_fwd, sd3_train, cohere_prefill, glm4_train, deepseek_fwd, dinov2_giant_fwd, llava_fwd,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
