"""More models of transformers from their configurations alone, six layers of width 1024: families that no other study here has.

Training steps with AdamW, bfloat16 on float32 weights, lowered on abstract shapes; state is donated. Texts are 64 of 512 words, all 32000
words are predicted; what images and sounds are turned into is squared.

    python experiments/fidelity/zoo_families.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, transformers 5.24.0, optax 0.2.8 (Python 3.11, JAX_PLATFORMS=cpu).
"""

from functools import partial

from jax import ShapeDtypeStruct as Shape
from programs import BF16, lower, named
from zoo_configs import (
    CAUSAL,
    DECODER,
    ENCODER,
    GPT,
    HEADS,
    LAYERS,
    LENGTH,
    MASKED,
    STAGES,
    TEXT,
    UNDROPPED,
    WIDTH,
    features_train,
    images,
)

LLAMA = {
    **DECODER, "num_key_value_heads": 4, "intermediate_size": 2816, "use_cache": False, "attn_implementation": "eager", "head_dim": 64,
    "pad_token_id": 0,
}  # fmt: skip
SPOKEN = {
    **ENCODER, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0, "feat_proj_dropout": 0.0,
    "apply_spec_augment": False,
}  # fmt: skip
SOUND = Shape((32, 80000), BF16)


def clips(count: int) -> Shape:
    return Shape((count, 16, 3, 224, 224), BF16)


PROGRAMS = (
    named("gptj_train", partial(CAUSAL, "GPTJ", **GPT, **UNDROPPED, rotary_dim=64, use_cache=False)),
    named("persimmon_train", partial(CAUSAL, "Persimmon", **DECODER, intermediate_size=4 * WIDTH, use_cache=False)),
    named("biogpt_train", partial(CAUSAL, "BioGpt", **TEXT, hidden_act="gelu", activation_dropout=0.0, layerdrop=0.0, use_cache=False)),
    named("smollm3_train", partial(CAUSAL, "SmolLM3", **LLAMA)),
    named("cohere2_train", partial(CAUSAL, "Cohere2", **LLAMA)),
    named("arcee_train", partial(CAUSAL, "Arcee", **LLAMA)),
    named("apertus_train", partial(CAUSAL, "Apertus", **LLAMA)),
    named("diffllama_train", partial(CAUSAL, "DiffLlama", **LLAMA)),
    named("ernie45_train", partial(CAUSAL, "Ernie4_5", **LLAMA)),
    named("exaone4_train", partial(CAUSAL, "Exaone4", **LLAMA)),
    named("lfm2_train", partial(CAUSAL, "Lfm2", **{**LLAMA, "layer_types": ["conv", "conv", "full_attention"] * 2})),
    named(
        "deepseek_v2_train",
        partial(
            CAUSAL, "DeepseekV2", **{**LLAMA, "num_key_value_heads": HEADS}, first_k_dense_replace=LAYERS,
            q_lora_rank=512, kv_lora_rank=256,
        ),
    ),
    named("electra_train", partial(MASKED, "Electra", **TEXT, embedding_size=WIDTH)),
    named("data2vec_text_train", partial(MASKED, "Data2VecText", **TEXT, max_position_embeddings=LENGTH + 2)),
    named("nystromformer_train", partial(MASKED, "Nystromformer", **TEXT, max_position_embeddings=LENGTH)),
    named("squeezebert_train", partial(MASKED, "SqueezeBert", **TEXT, embedding_size=WIDTH)),
    named("vit_mae_train", partial(features_train, "ViTMAE", images(256), **ENCODER)),
    named("deit_train", partial(features_train, "DeiT", images(256), **ENCODER)),
    named("vivit_train", partial(features_train, "Vivit", clips(16), **ENCODER, video_size=[16, 224, 224], num_frames=16)),
    named(
        "swinv2_hub_train",
        partial(
            features_train, "Swinv2", images(128), **STAGES, num_heads=[4, 8, 16, 32], hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, drop_path_rate=0.0, window_size=7,
        ),
    ),
    named("poolformer_hub_train", partial(features_train, "PoolFormer", images(256), drop_path_rate=0.0)),
    named("convnextv2_hub_train", partial(features_train, "ConvNextV2", images(256), drop_path_rate=0.0)),
    named("pvt_v2_hub_train", partial(features_train, "PvtV2", images(128), drop_path_rate=0.0)),
    named("hiera_train", partial(features_train, "Hiera", images(128), drop_path_rate=0.0)),
    named("regnet_hub_train", partial(features_train, "RegNet", images(256))),
    named("bit_train", partial(features_train, "Bit", images(256))),
    named("unispeech_sat_train", partial(features_train, "UniSpeechSat", SOUND, "input_values", **SPOKEN)),
    named("sew_train", partial(features_train, "SEW", SOUND, "input_values", **SPOKEN)),
    named("data2vec_audio_train", partial(features_train, "Data2VecAudio", SOUND, "input_values", **SPOKEN)),
    named(
        "patchtsmixer_train",
        partial(
            features_train, "PatchTSMixer", Shape((256, 512, 32), BF16), "past_values", context_length=512,
            num_input_channels=32, d_model=256, num_layers=8,
        ),
    ),
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS)
