"""More torch models through torchax, of kinds that `zoo_torch.py` does not have.

    python experiments/fidelity/zoo_wider.py FOLDER [NAME...]

Built and lowered as those of `zoo_torch.py`, with the same versions.
"""

from typing import Any

import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo_torch import ADAMW, cast, causal_lm, images_train, logits, remat_layers, torch_model, training


def mobilevit_train() -> Program:
    """timm's MobileViT v2, twice as wide, 512 images of 256 x 256; bfloat16 on float32, AdamW."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("mobilevitv2_200"))
    return images_train(run, weights, buffers, Shape((512, 3, 256, 256), F32))


def segformer_train() -> Program:
    """SegFormer B2, 150 classes of each of 128 x 128 patches of 64 images; float32, AdamW."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=150,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: SegformerForSemanticSegmentation(config), False)

    def loss(weights: Tree, buffers: Tree, images: Any, labels: Any) -> Any:
        return cross_entropy(jnp.moveaxis(run(weights, buffers, images, of=logits), 1, -1), labels)

    return training(loss, ADAMW, weights, buffers, Shape((64, 3, 512, 512), F32), Shape((64, 128, 128), I32))


def olmoe_train() -> Program:
    """OLMoE with 8 layers, 32 sequences of 1024 tokens, groups of rows for 64 experts; bfloat16 weights, AdamW."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    config = OlmoeConfig(num_hidden_layers=8, experts_implementation="grouped_mm")
    run, weights, buffers = torch_model(lambda: OlmoeForCausalLM(config))
    ids = Shape((32, 1024), I32)
    return training(causal_lm(run), ADAMW, cast(weights), buffers, ids, ids)


def albert_train() -> Program:
    """ALBERT large, one layer's weights read 24 times, masked words, 128 sequences of 256 tokens; float32, AdamW."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=24
    )
    run, weights, buffers = torch_model(lambda: AlbertForMaskedLM(config))

    def loss(weights: Tree, buffers: Tree, ids: Any, mask: Any, labels: Any) -> Any:
        return cross_entropy(run(weights, buffers, ids, mask, of=logits), labels)

    ids = Shape((128, 256), I32)
    return training(loss, ADAMW, weights, buffers, ids, ids, ids)


def videomae_train() -> Program:
    """VideoMAE base, 32 clips of 16 frames, 400 classes; bfloat16 on float32, AdamW."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    run, weights, buffers = torch_model(
        lambda: VideoMAEForVideoClassification(VideoMAEConfig(num_labels=400))
    )

    def loss(weights: Tree, buffers: Tree, clips: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), buffers, clips, of=logits), labels)

    return training(loss, ADAMW, weights, buffers, Shape((32, 16, 3, 224, 224), BF16), Shape((32,), I32))


def siglip_train() -> Program:
    """SigLIP base, every image with every text, 512 pairs; bfloat16 weights, Lion."""
    from transformers import SiglipConfig, SiglipModel

    run, weights, buffers = torch_model(lambda: SiglipModel(SiglipConfig()))

    def loss(weights: Tree, buffers: Tree, ids: Any, images: Any) -> Any:
        said = run(weights, buffers, ids, images, of=lambda a: a.logits_per_text).astype(F32)
        signs = 2 * jnp.eye(len(ids)) - 1
        return -jnp.sum(jnp.log(1 / (1 + jnp.exp(-signs * said)))) / len(ids)

    return training(
        loss, optax.lion(1e-4), cast(weights), buffers, Shape((512, 64), I32), Shape((512, 3, 224, 224), BF16)
    )


def patchtst_train() -> Program:
    """PatchTST, 256 windows of 512 steps of 64 series, 96 steps ahead; float32, Adam."""
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=64, context_length=512, patch_length=16, patch_stride=8, prediction_length=96,
        d_model=256, num_attention_heads=8, num_hidden_layers=6, ffn_dim=1024, loss="mse", scaling=None,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: PatchTSTForPrediction(config), False)

    def loss(weights: Tree, buffers: Tree, past: Any, future: Any) -> Any:
        said = run(weights, buffers, past, of=lambda a: a.prediction_outputs)
        return ((said - future) ** 2).mean()

    return training(
        loss, optax.adam(1e-3), weights, buffers, Shape((256, 512, 64), F32), Shape((256, 96, 64), F32)
    )


def granite_train() -> Program:
    """Granite 3.1 2B, 12 of its layers, each made again, 32 sequences of 2048 tokens; bfloat16 weights, Adafactor."""
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        vocab_size=49155, hidden_size=2048, intermediate_size=8192, num_hidden_layers=12, num_attention_heads=32,
        num_key_value_heads=8, tie_word_embeddings=True,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: GraniteForCausalLM(config))
    remat_layers(run.model.model.layers)
    ids = Shape((32, 2048), I32)
    return training(causal_lm(run), optax.adafactor(1e-3), cast(weights), buffers, ids, ids)


def nomic_train() -> Program:
    """BERT base as two equal towers, 512 queries of 64 and texts of 256 tokens, each with each; bfloat16 on float32, AdamW."""
    from transformers import BertConfig, BertModel

    run, weights, buffers = torch_model(lambda: BertModel(BertConfig(), add_pooling_layer=False))

    def loss(weights: Tree, buffers: Tree, queries: Any, texts: Any, masks: Any) -> Any:
        def told(ids: Any, mask: Any) -> Any:
            hidden = run(cast(weights), buffers, ids, mask, of=lambda a: a.last_hidden_state).astype(F32)
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)

        said = told(queries, masks[0]) @ told(texts, masks[1]).T * 20
        return cross_entropy(said, jnp.arange(len(queries)))

    queries, texts = Shape((512, 64), I32), Shape((512, 256), I32)
    return training(loss, ADAMW, weights, buffers, queries, texts, (queries, texts))


def pythia_train() -> Program:
    """Pythia 410M, 64 sequences of 1024 tokens; bfloat16 on float32, AdamW, gradients clipped."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=50304, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: GPTNeoXForCausalLM(config))
    ids = Shape((64, 1024), I32)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), ADAMW)
    return training(causal_lm(run, narrowed=True), optimizer, weights, buffers, ids, ids)


def resnetrs_train() -> Program:
    """timm's ResNet-RS 101 (squeeze and excite, pooled shortcuts), 256 images; bfloat16 on float32, momentum."""
    import timm

    run, weights, buffers = torch_model(lambda: timm.create_model("resnetrs101"))
    return images_train(run, weights, buffers, Shape((256, 3, 224, 224), F32), optax.sgd(0.1, 0.9))


def t5_large_fwd() -> Program:
    """T5 large encodes 64 texts of 512 tokens and tells the first word of each; bfloat16."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16)
    run, weights, buffers = torch_model(lambda: T5ForConditionalGeneration(config), False)

    def first(weights: Tree, buffers: Tree, ids: Any, begun: Any) -> Any:
        return run(weights, buffers, ids, decoder_input_ids=begun, use_cache=False, of=logits)

    return first, (cast(weights), buffers, Shape((64, 512), I32), Shape((64, 1), I32)), ()


PROGRAMS = (
    mobilevit_train,
    segformer_train,
    olmoe_train,
    albert_train,
    videomae_train,
    siglip_train,
    patchtst_train,
    granite_train,
    nomic_train,
    pythia_train,
    resnetrs_train,
    t5_large_fwd,
)

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
