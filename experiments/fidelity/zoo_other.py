"""Models of further packages (MONAI, denoising-diffusion-pytorch, PyG) and of kinds that the other files do not have.

Built and lowered as those of `zoo_torch.py`, on abstract shapes; training steps donate their state.

    python experiments/fidelity/zoo_other.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, transformers 5.24.0, diffusers 0.42.1, torchvision 0.28.0, optax 0.2.8
(Python 3.11, JAX_PLATFORMS=cpu).
"""

from typing import Any

import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo_packages import forward, whole
from zoo_torch import ADAMW, answers, cast, causal_lm, images_train, masked_texts, torch_model, training


def esm2_train() -> Program:
    """ESM-2 650M, residues hidden, 64 proteins of 512 with a mask each; bfloat16 on float32, AdamW."""
    from transformers import EsmConfig, EsmForMaskedLM

    config = EsmConfig(
        vocab_size=33, hidden_size=1280, num_hidden_layers=33, num_attention_heads=20, intermediate_size=5120,
        position_embedding_type="rotary", token_dropout=False, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=1, mask_token_id=32, emb_layer_norm_before=False,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: EsmForMaskedLM(config))

    ids = Shape((64, 512), I32)
    return training(masked_texts(run), ADAMW, weights, buffers, ids, ids, ids)


def conformer_train() -> Program:
    """A conformer of 12 layers tells 768 numbers of each frame, 64 clips of 10 s; bfloat16 on float32, AdamW."""
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerModel

    config = Wav2Vec2ConformerConfig(
        hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, activation_dropout=0.0,
        conformer_conv_dropout=0.0, apply_spec_augment=False, position_embeddings_type="rotary",
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Wav2Vec2ConformerModel(config))

    def loss(weights: Tree, buffers: Tree, sound: Any, wanted: Any) -> Any:
        made = run(cast(weights), cast(buffers), sound.astype(BF16), of=lambda a: a.last_hidden_state)
        return ((made.astype(F32) - wanted) ** 2).mean()

    return training(loss, ADAMW, weights, buffers, Shape((64, 160000), F32), Shape((64, 499, 768), F32))


def dinov3_train() -> Program:
    """DINOv3 ViT-L with a linear head, 256 images; bfloat16 on float32, AdamW."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    config = DINOv3ViTConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
        num_register_tokens=4,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: DINOv3ViTModel(config))
    head = Shape((1024, 1000), F32)

    def loss(weights: tuple[Tree, Any], buffers: Tree, images: Any, labels: Any) -> Any:
        body, head = cast(weights)
        pooled = run(body, buffers, images.astype(BF16), of=lambda a: a.pooler_output)
        return cross_entropy(pooled @ head, labels)

    images = Shape((256, 3, 224, 224), F32)
    return training(loss, ADAMW, (weights, head), buffers, images, Shape((256,), I32))


def qwen3_moe_train() -> Program:
    """Qwen3's mixture, 4 layers of 32 experts, 8 of them a word, 32 sequences of 1024 tokens; bfloat16 on float32, AdamW."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=151936, hidden_size=2048, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, moe_intermediate_size=768, num_experts=32, num_experts_per_tok=8, norm_topk_prob=True,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: Qwen3MoeForCausalLM(config))
    ids = Shape((32, 1024), I32)
    return training(causal_lm(run, narrowed=True), ADAMW, weights, buffers, ids, ids)


def volumes_train(run: Any, weights: Tree, buffers: Tree, volumes: Any, optimizer: Any) -> Program:
    """A model that tells each place of volumes apart."""

    def loss(weights: Tree, buffers: Tree, volumes: Any, labels: Any) -> Any:
        answer = run(cast(weights), cast(buffers), volumes.astype(BF16))
        return cross_entropy(jnp.moveaxis(answer, 1, -1), labels)

    labels = Shape((volumes.shape[0], *volumes.shape[2:]), I32)
    return training(loss, optimizer, weights, buffers, volumes, labels)


def swin_unetr_train() -> Program:
    """MONAI's Swin UNETR, 14 organs in 32 volumes of 96 x 96 x 96; bfloat16 on float32, AdamW."""
    from monai.networks.nets import SwinUNETR

    run, weights, buffers = torch_model(
        lambda: SwinUNETR(in_channels=1, out_channels=14, feature_size=48, use_checkpoint=False)
    )
    return volumes_train(run, weights, buffers, Shape((32, 1, 96, 96, 96), F32), ADAMW)


def unet3d_train() -> Program:
    """MONAI's residual U-Net in three dimensions, 32 volumes of 128 x 128 x 128; bfloat16 on float32, SGD with momentum."""
    from monai.networks.nets import UNet

    run, weights, buffers = torch_model(
        lambda: UNet(3, 4, 3, channels=(32, 64, 128, 256, 320), strides=(2, 2, 2, 2), num_res_units=2)
    )
    return volumes_train(
        run, weights, buffers, Shape((32, 4, 128, 128, 128), F32), optax.sgd(1e-2, momentum=0.99)
    )


def flan_t5_train() -> Program:
    """T5 1.1 large with gated GELU, 64 texts of 512 tokens and answers of 128; bfloat16 on float32, Adafactor."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=32128, d_model=1024, d_kv=64, d_ff=2816, num_layers=24, num_heads=16, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: T5ForConditionalGeneration(config))

    said = Shape((64, 128), I32)
    return training(answers(run), optax.adafactor(1e-3), weights, buffers, Shape((64, 512), I32), said, said)


def depth_fwd() -> Program:
    """Depth Anything on DINOv2 L, 128 images of 518 x 518; bfloat16."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(
        image_size=518, patch_size=14, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
        out_features=["stage5", "stage12", "stage18", "stage24"], apply_layernorm=True, reshape_hidden_states=False,
    )  # fmt: skip
    config = DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=1024, neck_hidden_sizes=[256, 512, 1024, 1024],
        fusion_hidden_size=256,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: DepthAnythingForDepthEstimation(config), False)

    def depth(weights: Tree, buffers: Tree, images: Any) -> Any:
        return run(weights, buffers, images, of=lambda a: a.predicted_depth)

    return depth, (cast(weights), cast(buffers), Shape((128, 3, 518, 518), BF16)), ()


def hifigan_train() -> Program:
    """SpeechT5's HiFi-GAN makes 64 clips of 256 frames; bfloat16 on float32, AdamW."""
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    run, weights, buffers = torch_model(lambda: SpeechT5HifiGan(SpeechT5HifiGanConfig()))

    def loss(weights: Tree, buffers: Tree, mels: Any, wanted: Any) -> Any:
        made = run(cast(weights), cast(buffers), mels.astype(BF16)).astype(F32)
        return jnp.abs(made - wanted).mean()

    return training(loss, ADAMW, weights, buffers, Shape((64, 256, 80), F32), Shape((64, 256 * 256), F32))


def ddpm_train() -> Program:
    """denoising-diffusion-pytorch's U-Net, 64 images of 128 x 128; float32, AdamW."""
    from denoising_diffusion_pytorch import Unet

    run, weights, buffers = torch_model(lambda: Unet(dim=128, dim_mults=(1, 2, 4, 8), flash_attn=False))

    def loss(weights: Tree, buffers: Tree, images: Any, times: Any, noise: Any) -> Any:
        made = run(weights, buffers, images, times)
        return ((made - noise) ** 2).mean()

    images = Shape((64, 3, 128, 128), F32)
    return training(loss, ADAMW, weights, buffers, images, Shape((64,), F32), images)


def sage_train() -> Program:
    """PyG's GraphSAGE of three layers, 262144 nodes of 256 numbers and two million edges; float32, Adam."""
    from torch_geometric.nn import GraphSAGE

    run, weights, buffers = torch_model(lambda: GraphSAGE(256, 512, 3, out_channels=47))

    def loss(weights: Tree, buffers: Tree, nodes: Any, edges: Any, labels: Any) -> Any:
        return cross_entropy(run(weights, buffers, nodes, edges), labels)

    nodes, edges = Shape((262144, 256), F32), Shape((2, 2097152), I32)
    return training(loss, optax.adam(1e-3), weights, buffers, nodes, edges, Shape((262144,), I32))


def wan_fwd() -> Program:
    """Wan 2.1 14B, 6 of its blocks, 8 latents of 13 frames of 60 x 104 and 512 words; bfloat16."""
    from diffusers import WanTransformer3DModel

    run, weights, buffers = torch_model(lambda: WanTransformer3DModel(num_layers=6), False)

    def noise(weights: Tree, buffers: Tree, latents: Any, times: Any, words: Any) -> Any:
        return run(weights, buffers, latents, times, words, of=lambda a: a.sample)

    latents, words = Shape((8, 16, 13, 60, 104), BF16), Shape((8, 512, 4096), BF16)
    return noise, (cast(weights), buffers, latents, Shape((8,), I32), words), ()


def ltx_train() -> Program:
    """LTX-Video, 8 of its blocks, 16 latents of 2048 places and 128 words; bfloat16 on float32, AdamW."""
    from diffusers import LTXVideoTransformer3DModel

    run, weights, buffers = torch_model(lambda: LTXVideoTransformer3DModel(num_layers=8))

    def loss(
        weights: Tree, buffers: Tree, latents: Any, words: Any, mask: Any, times: Any, wanted: Any
    ) -> Any:
        made = run(
            cast(weights), buffers, latents.astype(BF16), words.astype(BF16), times, mask,
            num_frames=8, height=16, width=16, of=lambda a: a.sample,
        )  # fmt: skip
        return ((made.astype(F32) - wanted) ** 2).mean()

    latents = Shape((16, 2048, 128), F32)
    batch = latents, Shape((16, 128, 4096), F32), Shape((16, 128), I32), Shape((16,), I32), latents
    return training(loss, ADAMW, weights, buffers, *batch)


def sana_train() -> Program:
    """Sana 1.6B, 8 of its blocks, linear attention and gated convolutions, 128 latents of 32 x 32; bfloat16 on float32, AdamW."""
    from diffusers import SanaTransformer2DModel

    run, weights, buffers = torch_model(lambda: SanaTransformer2DModel(num_layers=8))

    def loss(weights: Tree, buffers: Tree, latents: Any, words: Any, times: Any, wanted: Any) -> Any:
        made = run(
            cast(weights), buffers, latents.astype(BF16), words.astype(BF16), times, of=lambda a: a.sample
        )
        return ((made.astype(F32) - wanted) ** 2).mean()

    latents = Shape((128, 32, 32, 32), F32)
    batch = latents, Shape((128, 300, 2304), F32), Shape((128,), I32), latents
    return training(loss, ADAMW, weights, buffers, *batch)


def deeplab_train() -> Program:
    """torchvision's DeepLab v3 on ResNet-101, dilated, 21 classes, 128 images of 256 x 256; bfloat16 on float32, SGD with momentum."""
    import torchvision

    run, weights, buffers = torch_model(
        lambda: whole(
            torchvision.models.segmentation.deeplabv3_resnet101(weights=None, weights_backbone=None)
        )
    )

    def loss(weights: Tree, buffers: Tree, images: Any, labels: Any) -> Any:
        answer = run(cast(weights), cast(buffers), images.astype(BF16), of=lambda a: a["out"])
        return cross_entropy(jnp.moveaxis(answer, 1, -1), labels)

    images = Shape((128, 3, 256, 256), F32)
    return training(loss, optax.sgd(0.1, 0.9), weights, buffers, images, Shape((128, 256, 256), I32))


def regnet_train() -> Program:
    """torchvision's RegNet Y 16GF, 512 images; bfloat16 on float32, SGD with momentum."""
    import torchvision

    run, weights, buffers = torch_model(lambda: torchvision.models.regnet_y_16gf())
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32), optax.sgd(0.1, 0.9))


def efficientnet_fwd() -> Program:
    """torchvision's EfficientNet V2 L, 1024 images of 384 x 384; bfloat16."""
    import torchvision

    run, weights, buffers = torch_model(lambda: whole(torchvision.models.efficientnet_v2_l()), training=False)
    return forward(run, weights, buffers, Shape((1024, 3, 384, 384), BF16))


PROGRAMS = (
    esm2_train, conformer_train, dinov3_train, qwen3_moe_train, swin_unetr_train, unet3d_train, flan_t5_train, depth_fwd,
    hifigan_train, ddpm_train, sage_train, wan_fwd, ltx_train, sana_train, deeplab_train,
    regnet_train, efficientnet_fwd,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
