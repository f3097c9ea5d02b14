"""Models of transformers, from their configurations alone: six layers of width 1024, one kind of attention or mixer each.

Training steps with AdamW, bfloat16 on float32 weights, lowered on abstract shapes; state is donated. Texts are 64 of 512 words, all 32000
words are predicted; what images and sounds are turned into is squared.

    python experiments/fidelity/zoo_configs.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, transformers 5.23.0, optax 0.2.8 (Python 3.11, JAX_PLATFORMS=cpu). Plan each for
`--mesh x=4,y=4 --hardware tpu-v5e`.
"""

from functools import partial
from typing import Any

import transformers as hub
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower, named
from zoo_torch import ADAMW, cast, logits, torch_model, training

LAYERS, HEADS, WIDTH, WORDS, TEXTS, LENGTH = 6, 16, 1024, 32000, 64, 512
ENCODER = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "eager",
}  # fmt: skip
GPT = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
DECODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": WORDS,
}
UNDROPPED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
STAGES = {"embed_dim": 128, "depths": [2, 2, 8, 2]}


def head_train(kind: str, head: str, **options: Any) -> Program:
    """Of texts, with a head that says a word at each place."""
    config = getattr(hub, f"{kind}Config")(**options)
    run, weights, buffers = torch_model(lambda: getattr(hub, f"{kind}For{head}")(config))

    def loss(weights: Tree, buffers: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), buffers, ids, of=logits), labels)

    texts = Shape((TEXTS, LENGTH), I32)
    return training(loss, ADAMW, weights, buffers, texts, texts)


def features_train(kind: str, given: Any, name: str = "pixel_values", **options: Any) -> Program:
    """Of images or sounds, without a head."""
    config = getattr(hub, f"{kind}Config")(**options)
    run, weights, buffers = torch_model(lambda: getattr(hub, f"{kind}Model")(config))

    def loss(weights: Tree, buffers: Tree, given: Any) -> Any:
        made = run(cast(weights), buffers, **{name: given}, of=lambda answer: answer.last_hidden_state)
        return (made.astype(F32) ** 2).mean()

    return training(loss, ADAMW, weights, buffers, given)


def images(count: int) -> Any:
    return Shape((count, 3, 224, 224), BF16)


MASKED, CAUSAL = partial(head_train, head="MaskedLM"), partial(head_train, head="CausalLM")
TEXT = {**ENCODER, "vocab_size": WORDS}
PROGRAMS = (
    named("mpnet_train", partial(MASKED, "MPNet", **TEXT)),
    named("roformer_train", partial(MASKED, "RoFormer", **TEXT, embedding_size=WIDTH, max_position_embeddings=LENGTH)),
    named("ernie_train", partial(MASKED, "Ernie", **TEXT)),
    named("xlm_roberta_xl_train", partial(MASKED, "XLMRobertaXL", **TEXT, max_position_embeddings=LENGTH + 2)),
    named("codegen_train", partial(CAUSAL, "CodeGen", **GPT, **UNDROPPED, rotary_dim=32)),
    named("bigcode_train", partial(CAUSAL, "GPTBigCode", **GPT, **UNDROPPED, use_cache=False)),
    named("mpt_train", partial(CAUSAL, "Mpt", d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=LENGTH, vocab_size=WORDS)),
    named("olmo2_train", partial(CAUSAL, "Olmo2", **DECODER, intermediate_size=2816, attn_implementation="eager", use_cache=False)),
    named("nemotron_train", partial(CAUSAL, "Nemotron", **DECODER, num_key_value_heads=4, intermediate_size=4 * WIDTH, use_cache=False)),
    named(
        "gpt_neo_train",
        partial(
            CAUSAL, "GPTNeo", vocab_size=WORDS, hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS,
            attention_types=[[["global", "local"], LAYERS // 2]], max_position_embeddings=LENGTH, use_cache=False,
        ),
    ),
    named("focalnet_train", partial(features_train, "FocalNet", images(64), **STAGES)),
    named(
        "swin_train",
        partial(
            features_train, "Swin", images(128), **STAGES, num_heads=[4, 8, 16, 32], hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, drop_path_rate=0.0,
        ),
    ),
    named("yolos_train", partial(features_train, "Yolos", images(128), **ENCODER, image_size=[224, 224], num_detection_tokens=100)),
    named("cvt_train", partial(features_train, "Cvt", images(256), drop_rate=[0.0] * 3, drop_path_rate=[0.0] * 3)),
    named(
        "wavlm_train",
        partial(
            features_train, "WavLM", Shape((32, 80000), BF16), "input_values",
            **{**ENCODER, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0},
            feat_proj_dropout=0.0, apply_spec_augment=False,
        ),
    ),
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS)
