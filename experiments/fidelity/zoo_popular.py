"""What else people train with torch: learning from preferences, embeddings, dense prediction, common convnets.

Built and lowered as those of `zoo_torch.py`, on abstract shapes; training steps donate their state.

    python experiments/fidelity/zoo_popular.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, transformers 5.24.0, diffusers 0.42.1, timm 1.0.31, torchvision 0.28.0,
optax 0.2.8 (Python 3.11, JAX_PLATFORMS=cpu).
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo_packages import whole
from zoo_torch import ADAMW, cast, causal_lm, images_train, logits, torch_model, training


def upernet_train() -> Program:
    """UperNet on ConvNeXt B, 150 classes, 64 images of 512 x 512; bfloat16 on float32, AdamW."""
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    config = UperNetConfig(
        backbone_config=ConvNextConfig(
            depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024], out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        num_labels=150, auxiliary_in_channels=512,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: UperNetForSemanticSegmentation(config))

    def loss(weights: Tree, buffers: Tree, images: Any, labels: Any) -> Any:
        made = run(cast(weights), cast(buffers), images.astype(BF16), of=logits)
        return cross_entropy(jnp.moveaxis(made, 1, -1), labels)

    return training(loss, ADAMW, weights, buffers, Shape((64, 3, 512, 512), F32), Shape((64, 512, 512), I32))


def dpt_train() -> Program:
    """DPT on ViT L, depth of 64 images of 384 x 384; bfloat16 on float32, AdamW."""
    from transformers import DPTConfig, DPTForDepthEstimation

    config = DPTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, image_size=384,
        backbone_out_indices=[5, 11, 17, 23], neck_hidden_sizes=[256, 512, 1024, 1024], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, is_hybrid=False,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: DPTForDepthEstimation(config))

    def loss(weights: Tree, buffers: Tree, images: Any, depths: Any) -> Any:
        made = run(cast(weights), cast(buffers), images.astype(BF16), of=lambda a: a.predicted_depth)
        return jnp.abs(made.astype(F32) - depths).mean()

    return training(loss, ADAMW, weights, buffers, Shape((64, 3, 384, 384), F32), Shape((64, 384, 384), F32))


def resnet34_train() -> Program:
    """torchvision's ResNet-34, 512 images; float32, SGD with momentum."""
    import torchvision

    run, weights, buffers = torch_model(lambda: torchvision.models.resnet34())
    return images_train(
        run, weights, buffers, Shape((512, 3, 224, 224), F32), optax.sgd(0.1, 0.9), narrowed=False
    )


def efficientnet_b4_train() -> Program:
    """torchvision's EfficientNet B4, 256 images of 380 x 380; bfloat16 on float32, SGD with momentum."""
    import torchvision

    run, weights, buffers = torch_model(lambda: whole(torchvision.models.efficientnet_b4(dropout=0.0)))
    return images_train(run, weights, buffers, Shape((256, 3, 380, 380), F32), optax.sgd(0.1, 0.9))


def mobilenetv2_train() -> Program:
    """torchvision's MobileNet V2, 2048 images; bfloat16 on float32, SGD with momentum."""
    import torchvision

    run, weights, buffers = torch_model(lambda: torchvision.models.mobilenet_v2(dropout=0.0))
    return images_train(run, weights, buffers, Shape((2048, 3, 224, 224), F32), optax.sgd(0.1, 0.9))


def deit3_train() -> Program:
    """timm's DeiT III L with layer scales, 512 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("deit3_large_patch16_224"))
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32))


def convmixer_train() -> Program:
    """timm's ConvMixer 768/32, 512 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("convmixer_768_32"))
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32))


def olmo2_train() -> Program:
    """OLMo 2 1B, 64 texts of 1024; bfloat16 on float32, AdamW."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    config = Olmo2Config(
        vocab_size=100352, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
        max_position_embeddings=4096,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Olmo2ForCausalLM(config))
    ids = Shape((64, 1024), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def embeddings_train() -> Program:
    """BERT L embeds 1024 pairs of texts of 128, each told from all others; bfloat16 on float32, AdamW."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: BertModel(config, add_pooling_layer=False))

    def loss(weights: Tree, buffers: Tree, asked: Any, found: Any, asked_mask: Any, found_mask: Any) -> Any:
        def embedded(ids: Any, mask: Any) -> Any:
            hidden = run(cast(weights), buffers, ids, mask, of=lambda a: a.last_hidden_state).astype(F32)
            mean = (hidden * mask[..., None]).sum(1) / jnp.maximum(mask.sum(1, keepdims=True), 1)
            return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)

        scores = embedded(asked, asked_mask) @ embedded(found, found_mask).T / 0.05
        return cross_entropy(scores, jnp.arange(len(scores)))

    ids = Shape((1024, 128), I32)
    return training(loss, ADAMW, weights, buffers, ids, ids, ids, ids)


def dpo_train() -> Program:
    """Llama 3.2 1B learns which of two answers is preferred beside one that stays, 64 pairs of 512; bfloat16 on float32, AdamW."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, rope_theta=500000.0, tie_word_embeddings=True, head_dim=64,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: LlamaForCausalLM(config))

    def said(weights: Tree, buffers: Tree, ids: Any) -> Any:
        made = jax.nn.log_softmax(run(weights, buffers, ids, use_cache=False, of=logits).astype(F32)[:, :-1])
        return jnp.take_along_axis(made, ids[:, 1:, None], -1).sum((1, 2))

    def loss(weights: Tree, buffers: Tree, reference: Tree, better: Any, worse: Any) -> Any:
        ids = jnp.concatenate([better, worse])
        gained = said(cast(weights), buffers, ids) - jax.lax.stop_gradient(said(reference, buffers, ids))
        first, second = jnp.split(gained, 2)
        return -jax.nn.log_sigmoid(0.1 * (first - second)).mean()

    ids = Shape((64, 512), I32)
    return training(loss, ADAMW, weights, buffers, cast(weights), ids, ids)


def sdxl_train() -> Program:
    """The U-Net of Stable Diffusion XL, 64 latents of 64 x 64; bfloat16 on float32, AdamW."""
    from diffusers import UNet2DConditionModel

    run, weights, buffers = torch_model(
        lambda: UNet2DConditionModel(
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), block_out_channels=(320, 640, 1280),
            transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20), cross_attention_dim=2048,
            addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
            use_linear_projection=True,
        )
    )  # fmt: skip

    def loss(
        weights: Tree, buffers: Tree, latents: Any, times: Any, words: Any, text: Any, sizes: Any, wanted: Any
    ) -> Any:
        made = run(
            cast(weights), buffers, latents.astype(BF16), times, words.astype(BF16),
            added_cond_kwargs={"text_embeds": text.astype(BF16), "time_ids": sizes}, of=lambda a: a.sample,
        )  # fmt: skip
        return ((made.astype(F32) - wanted) ** 2).mean()

    latents = Shape((64, 4, 64, 64), F32)
    batch = (
        latents, Shape((64,), I32), Shape((64, 77, 2048), F32), Shape((64, 1280), F32), Shape((64, 6), F32), latents,
    )  # fmt: skip
    return training(loss, ADAMW, weights, buffers, *batch)


def cogvideox_train() -> Program:
    """CogVideoX 5B at eight blocks, 16 clips of 13 x 60 x 90 latents; bfloat16 on float32, AdamW."""
    from diffusers import CogVideoXTransformer3DModel

    run, weights, buffers = torch_model(
        lambda: CogVideoXTransformer3DModel(
            num_attention_heads=48, num_layers=8, use_rotary_positional_embeddings=False
        )
    )

    def loss(weights: Tree, buffers: Tree, latents: Any, words: Any, times: Any, wanted: Any) -> Any:
        made = run(
            cast(weights),
            cast(buffers),
            latents.astype(BF16),
            words.astype(BF16),
            times,
            of=lambda a: a.sample,
        )
        return ((made.astype(F32) - wanted) ** 2).mean()

    latents = Shape((16, 13, 16, 60, 90), F32)
    return training(
        loss, ADAMW, weights, buffers, latents, Shape((16, 226, 4096), F32), Shape((16,), I32), latents
    )


PROGRAMS = (
    upernet_train, dpt_train, resnet34_train, efficientnet_b4_train, mobilenetv2_train, deit3_train, convmixer_train,
    olmo2_train, embeddings_train, dpo_train, sdxl_train, cogvideox_train,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
