"""Language models of transformers that came out lately, from their configurations alone: four layers of width 1024.

Training steps as those of `zoo_configs.py`, lowered for TPUs.

    python experiments/fidelity/zoo_modern.py FOLDER [NAME...]
"""

from functools import partial
from typing import Any

from programs import lower
from zoo_configs import CAUSAL, DECODER, named

PLAIN = {**DECODER, "num_hidden_layers": 4, "attn_implementation": "eager", "use_cache": False}
GROUPED = {**PLAIN, "intermediate_size": 2816, "num_key_value_heads": 4}
STATES = {"mamba_n_heads": 32, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_chunk_size": 128}
LATENT = {
    "kv_lora_rank": 256, "q_lora_rank": 512, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64,
}  # fmt: skip
DELTAS = {
    "linear_num_value_heads": 16, "linear_num_key_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus": ("Apertus", {**GROUPED, "intermediate_size": 4096}),
    "arcee": ("Arcee", {**GROUPED, "intermediate_size": 4096}),
    "bamba": ("Bamba", {**GROUPED, **STATES, "attn_layer_indices": [1]}),
    "biogpt": ("BioGpt", {**PLAIN, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "bitnet": ("BitNet", GROUPED),
    "cohere2": ("Cohere2", {**GROUPED, "sliding_window": 128}),
    "diffllama": ("DiffLlama", {**GROUPED, "num_key_value_heads": 8}),
    "doge": ("Doge", GROUPED),
    "ernie45": ("Ernie4_5", GROUPED),
    "exaone4": ("Exaone4", {**GROUPED, "sliding_window": 128, "sliding_window_pattern": 4}),
    "falconh1": ("FalconH1", {**GROUPED, **STATES, "mamba_d_ssm": 2048}),
    "gptneox_jp": ("GPTNeoXJapanese", {**PLAIN, "intermediate_multiple_size": 4}),
    "helium": ("Helium", {**GROUPED, "num_key_value_heads": 16, "head_dim": 64}),
    "hunyuan": ("HunYuanDenseV1", {**GROUPED, "head_dim": 64}),
    "lfm2": ("Lfm2", {**GROUPED, "full_attn_idxs": [1, 3]}),
    "nanochat": ("NanoChat", {**GROUPED, "intermediate_size": 4096}),
    "olmo3": ("Olmo3", {**GROUPED, "sliding_window": 128}),
    "persimmon": ("Persimmon", {**PLAIN, "intermediate_size": 4096}),
    "qwen3next": ("Qwen3Next", {**GROUPED, **DELTAS, "head_dim": 64, "num_experts": 0, "mlp_only_layers": [0, 1, 2, 3]}),
    "seed_oss": ("SeedOss", {**GROUPED, "head_dim": 64}),
    "smollm3": ("SmolLM3", GROUPED),
    "vaultgemma": (
        "VaultGemma",
        {**PLAIN, "intermediate_size": 4096, "num_key_value_heads": 16, "head_dim": 64, "sliding_window": 128},
    ),
    "youtu": ("Youtu", {**GROUPED, **LATENT, "num_key_value_heads": 16}),
    "zamba2": (
        "Zamba2",
        {
            **PLAIN, "mamba_d_state": 64, "n_mamba_heads": 8, "hybrid_layer_ids": [1],
            "layers_block_type": ["mamba", "hybrid", "mamba", "mamba"],
        },
    ),
}  # fmt: skip
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


PROGRAMS = [
    named(f"{name}_train", partial(CAUSAL, kind, **options, **ENDS))
    for name, (kind, options) in KINDS.items()
]

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, for_tpu=True)
