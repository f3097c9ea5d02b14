"""Models of x-transformers, vit-pytorch, open_clip, torchvision, segmentation-models-pytorch and timm, of kinds not seen before.

Built and lowered as those of `zoo_torch.py`, on abstract shapes; training steps donate their state.

    python experiments/fidelity/zoo_packages.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, x-transformers 2.21.3, vit-pytorch 1.26.11, open_clip 3.3.0, torchvision 0.28.0,
segmentation-models-pytorch 0.6.0, timm 1.0.31, optax 0.2.8 (Python 3.11, JAX_PLATFORMS=cpu).
"""

from typing import Any

import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo_torch import ADAMW, cast, images_train, torch_model, training


def forward(run: Any, weights: Tree, buffers: Tree, *inputs: Any) -> Program:
    """What a model answers, its weights in bfloat16."""

    def answer(weights: Tree, buffers: Tree, *inputs: Any) -> Any:
        return run(weights, buffers, *inputs)

    return answer, (cast(weights), cast(buffers), *inputs), ()


def whole(model: Any) -> Any:
    """A torchvision model that leaves no layer out at random."""
    for module in model.modules():
        if type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return model


def xtransformer_train() -> Program:
    """x-transformers' decoder of 12 layers, rotary, gated by SiLU, 4 of 16 heads for keys, 128 x 1024; bfloat16 on float32, AdamW."""
    from x_transformers import Decoder, TransformerWrapper

    run, weights, buffers = torch_model(
        lambda: TransformerWrapper(
            num_tokens=32000,
            max_seq_len=1024,
            use_abs_pos_emb=False,
            attn_layers=Decoder(
                dim=1024, depth=12, heads=16, attn_dim_head=64, rotary_pos_emb=True, ff_swish=True, ff_glu=True,
                use_rmsnorm=True, attn_kv_heads=4, ff_no_bias=True,
            ),
        )
    )  # fmt: skip

    def loss(weights: Tree, buffers: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), cast(buffers), ids), labels)

    ids = Shape((128, 1024), I32)
    return training(loss, ADAMW, weights, buffers, ids, ids)


def xencoder_fwd() -> Program:
    """x-transformers' encoder of 24 layers with ALiBi and sandwich norms, 256 x 512 tokens; bfloat16."""
    from x_transformers import Encoder, TransformerWrapper

    run, weights, buffers = torch_model(
        lambda: TransformerWrapper(
            num_tokens=50000,
            max_seq_len=512,
            return_only_embed=True,
            attn_layers=Encoder(dim=1024, depth=24, heads=16, alibi_pos_bias=True, sandwich_norm=True),
        ),
        training=False,
    )
    return forward(run, weights, buffers, Shape((256, 512), I32))


def simplevit_train() -> Program:
    """vit-pytorch's SimpleViT of 24 layers, 1024 wide, 2048 images; bfloat16 on float32, AdamW."""
    from vit_pytorch import SimpleViT

    run, weights, buffers = torch_model(
        lambda: SimpleViT(
            image_size=224, patch_size=16, num_classes=1000, dim=1024, depth=24, heads=16, mlp_dim=4096
        )
    )
    return images_train(run, weights, buffers, Shape((2048, 3, 224, 224), F32))


def cct_train() -> Program:
    """vit-pytorch's compact convolutional transformer, 14 layers, 384 wide, 1024 images of 224 x 224; float32, SGD with momentum."""
    from vit_pytorch.cct import CCT

    run, weights, buffers = torch_model(
        lambda: CCT(
            img_size=(224, 224), embedding_dim=384, n_conv_layers=2, kernel_size=7, stride=2, padding=3,
            pooling_kernel_size=3, pooling_stride=2, pooling_padding=1, num_layers=14, num_heads=6, mlp_ratio=3.0,
            num_classes=1000, positional_embedding="learnable", dropout_rate=0.0, attention_dropout=0.0,
            stochastic_depth_rate=0.0,
        )
    )  # fmt: skip
    return images_train(
        run, weights, buffers, Shape((256, 3, 224, 224), F32), optax.sgd(0.1, 0.9), narrowed=False
    )


def maxvit_train() -> Program:
    """torchvision's MaxViT-T, 512 images; bfloat16 on float32, AdamW."""
    import torchvision

    run, weights, buffers = torch_model(lambda: whole(torchvision.models.maxvit_t()))
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32))


def swinv2_train() -> Program:
    """torchvision's Swin V2 B, 512 images of 256 x 256; bfloat16 on float32, AdamW."""
    import torchvision

    run, weights, buffers = torch_model(lambda: whole(torchvision.models.swin_v2_b()))
    return images_train(run, weights, buffers, Shape((512, 3, 256, 256), F32))


def convnext_fwd() -> Program:
    """torchvision's ConvNeXt L, 2048 images; bfloat16."""
    import torchvision

    run, weights, buffers = torch_model(lambda: torchvision.models.convnext_large(), training=False)
    return forward(run, weights, buffers, Shape((2048, 3, 224, 224), BF16))


def resnet152_train() -> Program:
    """torchvision's ResNet-152, 2048 images; bfloat16 on float32, SGD with momentum."""
    import torchvision

    run, weights, buffers = torch_model(lambda: torchvision.models.resnet152())
    return images_train(run, weights, buffers, Shape((2048, 3, 224, 224), F32), optax.sgd(0.1, 0.9))


def video_train() -> Program:
    """torchvision's R(2+1)D of 18 layers, 128 clips of 16 frames; bfloat16 on float32, AdamW."""
    import torchvision

    run, weights, buffers = torch_model(lambda: torchvision.models.video.r2plus1d_18())
    return images_train(run, weights, buffers, Shape((128, 3, 16, 112, 112), F32))


def densenet_fwd() -> Program:
    """torchvision's DenseNet-201, 1024 images; bfloat16."""
    import torchvision

    run, weights, buffers = torch_model(lambda: torchvision.models.densenet201(), training=False)
    return forward(run, weights, buffers, Shape((1024, 3, 224, 224), BF16))


def openclip_train() -> Program:
    """open_clip's ViT-L/14 with its text tower, 2048 pairs, the loss of CLIP; bfloat16 on float32, AdamW."""
    import open_clip

    config = open_clip.get_model_config("ViT-L-14")
    run, weights, buffers = torch_model(lambda: open_clip.model.CLIP(**config))

    def loss(weights: Tree, buffers: Tree, images: Any, texts: Any) -> Any:
        image, text, scale = run(cast(weights), cast(buffers), images.astype(BF16), texts)
        scores = (scale * image @ text.T).astype(F32)
        own = jnp.arange(len(scores))
        return (cross_entropy(scores, own) + cross_entropy(scores.T, own)) / 2

    return training(loss, ADAMW, weights, buffers, Shape((2048, 3, 224, 224), F32), Shape((2048, 77), I32))


def segment_train() -> Program:
    """segmentation-models-pytorch's U-Net on ResNet-50, 21 classes, 128 images of 512 x 512; bfloat16 on float32, AdamW."""
    import segmentation_models_pytorch as smp

    run, weights, buffers = torch_model(
        lambda: smp.Unet("resnet50", encoder_weights=None, in_channels=3, classes=21)
    )

    def loss(weights: Tree, buffers: Tree, images: Any, labels: Any) -> Any:
        answer = run(cast(weights), cast(buffers), images.astype(BF16))
        return cross_entropy(jnp.moveaxis(answer, 1, -1), labels)

    return training(
        loss, ADAMW, weights, buffers, Shape((128, 3, 512, 512), F32), Shape((128, 512, 512), I32)
    )


def eva02_fwd() -> Program:
    """timm's EVA-02 L, 1024 images; bfloat16."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("eva02_large_patch14_224"), training=False)
    return forward(run, weights, buffers, Shape((1024, 3, 224, 224), BF16))


def xcit_train() -> Program:
    """timm's XCiT small of 12 layers, attention over channels, 512 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("xcit_small_12_p16_224"))
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32))


def poolformer_train() -> Program:
    """timm's PoolFormer M36, pooling for attention, 512 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("poolformer_m36"))
    return images_train(run, weights, buffers, Shape((512, 3, 224, 224), F32))


def gmlp_train() -> Program:
    """timm's gMLP small, 1024 images; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("gmlp_s16_224"))
    return images_train(run, weights, buffers, Shape((1024, 3, 224, 224), F32))


PROGRAMS = (
    xtransformer_train, xencoder_fwd, simplevit_train, cct_train, maxvit_train, swinv2_train, convnext_fwd, resnet152_train,
    video_train, densenet_fwd, openclip_train, segment_train, eva02_fwd, xcit_train, poolformer_train, gmlp_train,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
