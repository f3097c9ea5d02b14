"""Models of packages for jax that no other file here imports (of keras-hub and tunix: other models), agents of brax and rlax, and what
tunix trains models with after they are.

Built and lowered as those of `zoo.py`, on abstract shapes; training steps donate their state.

    python experiments/fidelity/zoo_jax.py FOLDER [NAME...]

Lowered with jax 0.10.2, flax 0.12.8, optax 0.2.8, equinox 0.13.8 (Python 3.11, JAX_PLATFORMS=cpu), and

    mixtral_levanter_train, whisper_levanter_train    marin-levanter, marin-haliax, marin-fray, marin-rigging, marin-zephyr, marin-iris
                                                      0.2.20.dev202606180959 (without their dependencies: what importing them asks for)
    exaone4_train, qwen2_easydel_decode, gpt_oss_prefill    easydel 0.3.0, eformer 0.0.99.12, ejkernel 0.0.78 (without their
                                                      dependencies), transformers 5.5, in an environment of their own
    cappa_train              clip-jax 0.0.6, aqtp, einshape
    mmdit_flaxdiff_train     flaxdiff 0.2.11
    mace_train               mlip 0.2.5
    clicks_train             keras-rs 0.4.0, keras 3.15.1
    tarflow_train            transformer-flows 0.0.13
    e1_train                 e1jax 0.3.0
    qlora_tunix_train, and those that end in tunix_train and tunix_fwd    google-tunix 0.1.7, qwix 0.1.8
    humanoid_train           brax 0.14.2
    cnf_train                diffrax 0.7.2
    impala_train             dm-haiku 0.0.17, rlax 0.1.9
    retinanet_train          keras-hub 0.32.0, keras 3.15.1
"""

import os
from typing import Any
from unittest import mock

os.environ["EQX_ON_ERROR"] = "nan"  # read when equinox is imported; its errors are calls of python

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower, narrow
from zoo import ADAMW, keras_model, training

KEY = Shape((2,), jnp.uint32)


def equinox_train(model: Any, loss: Any, *batch: Any, optimizer: Any = ADAMW) -> Program:
    """A step of a module of equinox, its arrays in float32 and read in bfloat16; `loss(model, *batch)`."""
    import equinox as eqx

    weights, rest = eqx.partition(model, lambda a: isinstance(a, Shape))

    def of(weights: Tree, *batch: Any) -> Any:
        return loss(eqx.combine(narrow(weights), rest), *batch)

    return training(of, optimizer, weights, *batch)


def levanter_words(config: Any, words: int, count: int, optimizer: Any = ADAMW) -> Program:
    """A step of a language model of levanter on `count` sequences of its full length."""
    import equinox as eqx
    import haliax as hax
    from levanter.models.lm_model import LmExample

    model = eqx.filter_eval_shape(lambda key: config.build(hax.Axis("vocab", words), key=key), KEY)
    axes = hax.Axis("batch", count), config.max_Pos

    def loss(model: Any, ids: Any, key: Any) -> Any:
        example = LmExample(hax.named(ids, axes), hax.ones(axes))
        return model.compute_next_token_loss(example, key=key).scalar()

    return equinox_train(model, loss, Shape((count, config.max_Pos.size), I32), KEY, optimizer=optimizer)


def mixtral_levanter_train() -> Program:
    """levanter's Mixtral, 8 scanned layers, half as wide, made again, rows sorted to 8 experts, 32 x 2048; bfloat16 on float32, AdamW."""
    from levanter.layers.attention import AttentionBackend
    from levanter.models import mixtral

    config = mixtral.MixtralConfig(
        max_seq_len=2048, hidden_dim=2048, intermediate_dim=7168, num_layers=8, num_heads=32, num_kv_heads=8,
        attn_backend=AttentionBackend.VANILLA,
    )  # fmt: skip
    step, abstract, donated = levanter_words(config, 32000, 32)

    def plain(*given: Any) -> Any:
        with mock.patch.object(mixtral, "shard_map", lambda f, **_: f):  # over a mesh that is not there
            return step(*given)

    return plain, abstract, donated


def whisper_levanter_train() -> Program:
    """levanter's Whisper large v3, scanned layers, each made again, 64 clips of 30 s and 448 words; bfloat16 on float32, AdamW."""
    import equinox as eqx
    import haliax as hax
    from levanter.models.asr_model import AudioTextExample
    from levanter.models.whisper import WhisperConfig

    config = WhisperConfig(
        vocab_size=51866, num_mel_bins=128, encoder_layers=32, encoder_attention_heads=20, encoder_ffn_dim=5120,
        decoder_layers=32, decoder_attention_heads=20, decoder_ffn_dim=5120, d_model=1280,
    )  # fmt: skip
    words = hax.Axis("vocab", config.vocab_size)
    model = eqx.filter_eval_shape(lambda key: config.build_asr(words, key=key), KEY)
    count = hax.Axis("batch", 64)
    heard = count, hax.Axis("position", 3000), hax.Axis("n_mels", 128)

    def loss(model: Any, sound: Any, ids: Any, key: Any) -> Any:
        texts = count, config.max_Pos
        example = AudioTextExample(
            hax.named(sound.astype(BF16), heard), hax.named(ids, texts), hax.ones(texts)
        )
        return model.compute_loss(example, key=key).scalar()

    return equinox_train(model, loss, Shape((64, 3000, 128), F32), Shape((64, 448), I32), KEY)


def easydel() -> Any:
    """The package, without torch, and without the places on a mesh that it gives its arrays."""
    jax.devices()  # before it sets flags that no CPU knows
    import easydel
    import easydel.inference

    with mock.patch("transformers.utils.import_utils.requires_backends"):
        import easydel.modules
    from easydel.operations.kernels import vanilla_attention
    from eformer.escale.partition.manager import PartitionManager

    PartitionManager.shard = lambda self, x, *_, **__: x
    vanilla_attention.with_sharding_constraint = lambda arr, sharding: arr
    return easydel


def easydel_model(kind: str, to: Any, **options: Any) -> tuple[Any, Tree, Any]:
    """A causal model of easydel: how it is made of its weights, their shapes, and the model without values."""
    from flax import nnx

    config = getattr(easydel(), f"{kind}Config")(attn_mechanism="vanilla", **options)
    model = getattr(easydel(), f"{kind}ForCausalLM").lazy_init(
        config=config, dtype=BF16, param_dtype=to, rngs=nnx.Rngs(0)
    )
    graph, weights, rest = nnx.split(model, nnx.Param, ...)
    return (lambda weights: nnx.merge(graph, weights, rest)), weights, model


def easydel_train(kind: str, count: int, length: int, optimizer: Any = ADAMW, **options: Any) -> Program:
    """A step of a causal model of easydel; bfloat16 on float32."""
    made, weights, _ = easydel_model(kind, F32, **options)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        logits = made(weights)(input_ids=ids, attention_mask=jnp.ones_like(ids, bool)).logits
        return cross_entropy(logits, labels)

    ids = Shape((count, length), I32)
    return training(loss, optimizer, weights, ids, ids)


def exaone4_train() -> Program:
    """easydel's EXAONE 4 1.2B, windows in three of four layers, each made again, 64 sequences of 1024; bfloat16 on float32, AdamW."""
    return easydel_train(
        "Exaone4", 64, 1024, vocab_size=102400, hidden_size=2048, intermediate_size=4096, num_hidden_layers=30,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=4096, sliding_window=512,
        sliding_window_pattern=4, gradient_checkpointing="nothing_saveable", tie_word_embeddings=True,
    )  # fmt: skip


def qwen2_easydel_decode() -> Program:
    """easydel's Qwen 2.5 7B, 14 of its layers, a token for each of 64 sequences with caches of 4096 positions; bfloat16."""
    made, weights, model = easydel_model(
        "Qwen2", BF16, vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=14, num_attention_heads=28,
        num_key_value_heads=4, max_position_embeddings=4096,
    )  # fmt: skip
    count = 64
    cache = jax.eval_shape(lambda: model.init_cache(count, 4096))

    def decode(weights: Tree, cache: Any, ids: Any, places: Any, mask: Any) -> Any:
        answer = made(weights)(input_ids=ids, position_ids=places, attention_mask=mask, past_key_values=cache)
        return answer.logits[:, -1].argmax(-1), answer.past_key_values

    ids = Shape((count, 1), I32)
    return decode, (weights, cache, ids, ids, Shape((count, 4096), jnp.bool_)), (1,)


def gpt_oss_prefill() -> Program:
    """easydel's gpt-oss 20B, 6 of its layers, sinks, groups of rows for 32 experts, 32 prompts of 2048 tokens; bfloat16."""
    made, weights, _ = easydel_model(
        "GptOss", BF16, num_hidden_layers=6, num_local_experts=32, max_position_embeddings=4096, moe_method="standard_moe",
    )  # fmt: skip

    def first(weights: Tree, ids: Any) -> Any:
        model = made(weights)
        answer = model(input_ids=ids, attention_mask=jnp.ones_like(ids, bool), apply_lm_head=False)
        return model.apply_lm_head(answer.last_hidden_state[:, -1:])[:, 0].argmax(-1)

    return first, (weights, Shape((32, 2048), I32)), ()


def cappa_train() -> Program:
    """clip-jax's CapPa: 12 layers caption what a ViT-L sees, words hidden, scanned, made again, 512 pairs; bfloat16 on float32, AdamW."""
    from clip_jax import CLIPModel
    from flax.core import meta

    shared = {
        "hidden_size": 1024, "use_rmsnorm": True, "ln_type": "preln", "num_heads": 16, "mlp_dim": 4096, "activations": ("gelu",),
        "unroll": 1, "remat_policy": "full",
    }  # fmt: skip
    seen = {
        **shared,
        "image_size": 256,
        "patch_size": 16,
        "num_layers": 24,
        "use_causal_mask": False,
        "position_embedding_type": "learnt",
    }
    told = {
        **shared, "vocab_size": 64000, "max_length": 64, "position_embedding_type": "learnt", "num_layers": 12, "use_causal_mask": True,
        "is_decoder": True, "mask_token_id": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    model = CLIPModel(text_config=told, vision_config=seen, projection_dim=1024, dtype="bfloat16")
    ids, images = Shape((512, 64), I32), Shape((512, 256, 256, 3), F32)
    weights = meta.unbox(jax.eval_shape(model.init, KEY, ids, images, ids))

    def loss(weights: Tree, ids: Any, images: Any, mask: Any, labels: Any, key: Any) -> Any:
        made = model.apply(weights, ids, images, mask, deterministic=False, rngs={"dropout": key})
        return cross_entropy(made["text_model_output"]["last_hidden_state"], labels)

    return training(loss, ADAMW, weights, ids, images, ids, ids, KEY)


def mmdit_flaxdiff_train() -> Program:
    """flaxdiff's MM-DiT of 24 blocks, 1024 wide, 128 latents of 32 x 32 and 77 words, a moving average; bfloat16 on float32, AdamW."""
    from flaxdiff.models.simple_mmdit import SimpleMMDiT

    model = SimpleMMDiT(
        output_channels=4, patch_size=2, emb_features=1024, num_layers=24, num_heads=16, dtype=BF16
    )
    latents, words, times = Shape((128, 32, 32, 4), F32), Shape((128, 77, 768), F32), Shape((128,), F32)
    weights = jax.eval_shape(model.init, KEY, latents, times, words)

    def loss(weights: Tree, latents: Any, noise: Any, words: Any, times: Any) -> Any:
        part = times[:, None, None, None]
        mixed = jnp.sqrt(1 - part) * latents + jnp.sqrt(part) * noise
        made = model.apply(weights, mixed, 1000 * times, words)
        return ((made.astype(F32) - noise) ** 2).mean()

    inner, (weights, state, *batch), _ = training(loss, ADAMW, weights, latents, latents, words, times)

    def step(weights: Tree, state: Tree, slow: Tree, *batch: Any) -> tuple[Tree, Tree, Tree, Any]:
        weights, state, value = inner(weights, state, *batch)
        return weights, state, optax.incremental_update(weights, slow, 1e-3), value

    return step, (weights, state, weights, *batch), (0, 1, 2)


def mace_train() -> Program:
    """mlip's MACE of two layers with 128 channels, energies and forces of 8192 atoms with 131072 pairs in 256 molecules; float32, Adam."""
    from mlip.data import DatasetInfo
    from mlip.data.helpers.dummy_init_graph import get_dummy_graph_for_model_init
    from mlip.graph import EdgeOrdering, Graph, GraphEdges, GraphGlobals, GraphNodes
    from mlip.models import Mace
    from mlip.models.loss import MSELoss
    from mlip.models.predictors import ConservativePredictor
    from mlip.typing.properties import Properties

    count, atoms, pairs = 256, 8192, 131072
    info = DatasetInfo(
        atomic_energies_map=dict.fromkeys((1, 6, 7, 8, 9, 15, 16, 17, 35, 53), -1.0),
        graph_cutoff_angstrom=5.0, avg_num_neighbors=16.0, avg_r_min_angstrom=1.0,
    )  # fmt: skip
    network = Mace(Mace.Config(num_channels=128, l_max=3, node_symmetry=1, correlation=3), info)
    model = ConservativePredictor(mlip_network=network, required_properties=Properties())
    graph = Graph(
        nodes=GraphNodes(
            atomic_numbers=Shape((atoms,), I32), positions=Shape((atoms, 3), F32), forces=Shape((atoms, 3), F32)
        ),
        edges=GraphEdges(shifts=Shape((pairs, 3), F32)),
        globals=GraphGlobals(
            cell=Shape((count, 3, 3), F32), weight=Shape((count,), F32), energy=Shape((count,), F32),
            stress=Shape((count, 3, 3), F32),
        ),
        n_node=Shape((count,), I32), n_edge=Shape((count,), I32),
        senders=Shape((pairs,), I32), receivers=Shape((pairs,), I32), ordering=EdgeOrdering.SENDER,
    )  # fmt: skip
    weights = jax.eval_shape(lambda key: model.init(key, get_dummy_graph_for_model_init()), KEY)
    told = MSELoss()

    def loss(weights: Tree, graph: Any) -> Any:
        return told(model.apply(weights, graph), graph, 0)[0]

    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.amsgrad(1e-2))
    return training(loss, optimizer, weights, graph)


def clicks_train() -> Program:
    """DCN v2 by keras-rs: 26 tables of 22.8 million rows of 128, four of each asked, three crosses, 65536 clicks; float32, Adagrad."""
    import keras
    import keras_rs

    kinds = [4_000_000] * 4 + [1_000_000] * 6 + [100_000] * 8 + [1024] * 8

    def build() -> Any:
        keras.mixed_precision.set_global_policy("float32")
        numbers = keras.Input((13,))
        ids = [keras.Input((4,), dtype="int32") for _ in kinds]
        bottom, top = (
            keras.Sequential([keras.layers.Dense(n, "relu") for n in w])
            for w in ((512, 256, 128), (1024, 1024, 512))
        )
        rows = [
            keras_rs.layers.EmbedReduce(n, 128, combiner="sum")(i) for n, i in zip(kinds, ids, strict=True)
        ]
        first = x = keras.ops.concatenate([bottom(numbers), *rows], axis=1)
        for _ in range(3):
            x = keras_rs.layers.FeatureCross(projection_dim=512)(first, x)
        return keras.Model([numbers, *ids], keras.layers.Dense(1)(top(x)))

    run, weights, others = keras_model(build)

    def loss(weights: Tree, others: Tree, numbers: Any, ids: Any, clicked: Any) -> Any:
        made, _ = run(weights, others, [numbers, *jnp.moveaxis(ids, 1, 0)])
        return optax.sigmoid_binary_cross_entropy(made[:, 0], clicked).mean()

    count = 65536
    batch = Shape((count, 13), F32), Shape((count, len(kinds), 4), I32), Shape((count,), F32)
    return training(loss, optax.adagrad(1e-2), weights, others, *batch)


def tarflow_train() -> Program:
    """transformer-flows' TarFlow, 8 scanned blocks of 4 layers, 768 wide, 64 images of 256 patches; bfloat16 on float32, AdamW."""
    import equinox as eqx
    from transformer_flows.transformer_flow import TransformerFlow

    def build(key: Any) -> Any:
        return TransformerFlow(
            n_channels=3,
            img_size=64,
            patch_size=4,
            channels=768,
            n_blocks=8,
            layers_per_block=4,
            head_dim=64,
            key=key,
        )

    model = eqx.filter_eval_shape(build, KEY)
    weights, rest = eqx.partition(model, lambda a: isinstance(a, Shape) and a.dtype == F32)
    places, rest = eqx.partition(rest, lambda a: isinstance(a, Shape))

    def loss(weights: Tree, places: Tree, images: Any) -> Any:
        model = eqx.combine(narrow(weights), places, rest)

        def one(image: Any) -> Any:
            z, _, volume = model.forward(image, None)
            return model.get_loss(z.astype(F32), volume.astype(F32))

        return jax.vmap(one)(images.astype(BF16)).mean()

    return training(loss, ADAMW, weights, places, Shape((64, 3, 64, 64), F32))


def e1_train() -> Program:
    """e1jax's E1 600M of 30 layers, a third of which look at relatives, residues hidden, 32 rows of 512; bfloat16 on float32, AdamW."""
    import equinox as eqx
    from e1jax import E1

    model = eqx.filter_eval_shape(lambda key: E1(1280, 20, 3413, 30, key=key), KEY)

    def loss(
        model: Any, letters: Any, within: Any, places: Any, proteins: Any, mask: Any, labels: Any
    ) -> Any:
        return cross_entropy(jax.vmap(model)(letters, within, places, proteins, mask)[0], labels)

    ids = Shape((32, 512), I32)
    return equinox_train(model, loss, ids, ids, ids, ids, Shape((32, 512), jnp.bool_), ids)


def tunix_logits(model: Any, ids: Any) -> Any:
    """Of all positions, each of which sees those before it."""
    count, length = ids.shape
    places = jnp.broadcast_to(jnp.arange(length), ids.shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (count, length, length))
    return model(ids, places, None, mask)[0]


def qlora_tunix_train() -> Program:
    """tunix's Llama 3.1 8B in 4 bits by qwix, updates of rank 16 beside queries, keys and values, 16 sequences of 512; bfloat16, AdamW."""
    import qwix
    from flax import nnx
    from tunix.models.llama3 import model as llama3

    def build() -> Any:
        model = llama3.Llama3(llama3.ModelConfig.llama3p1_8b(), rngs=nnx.Rngs(0))
        bits = {"weight_qtype": "int4", "tile_size": 128}
        beside = qwix.LoraRule(module_path=".*[qkv]_proj", rank=16, alpha=32.0, **bits)
        rule = qwix.LoraProvider([beside, qwix.QuantizationRule(module_path=".*mlp.*", **bits)])
        return qwix.apply_lora_to_model(model, rule, **model.get_model_input(), rngs=nnx.Rngs(1))

    graph, beside, kept = nnx.split(nnx.eval_shape(build), nnx.LoRAParam, ...)
    beside, kept = (
        jax.tree.map(lambda a: Shape(a.shape, BF16 if a.dtype == F32 else a.dtype), t) for t in (beside, kept)
    )

    def loss(beside: Tree, kept: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(tunix_logits(nnx.merge(graph, beside, kept), ids), labels)

    ids = Shape((16, 512), I32)
    return training(loss, ADAMW, beside, kept, ids, ids)


def humanoid_train() -> Program:
    """brax's PPO: 65536 humanoids walk 20 steps by a policy 1024 wide, which 8 minibatches then teach; float32, Adam."""
    from brax import envs
    from brax.training import acting
    from brax.training.acme import running_statistics, specs
    from brax.training.agents.ppo import losses, networks

    count, length, parts = 65536, 20, 8
    world = envs.training.wrap(envs.get_environment("humanoid", backend="spring"), 1000, 1)
    agent = networks.make_ppo_networks(
        world.observation_size, world.action_size, running_statistics.normalize,
        policy_hidden_layer_sizes=(1024,) * 4, value_hidden_layer_sizes=(1024,) * 5,
    )  # fmt: skip
    optimizer = optax.adam(3e-4)
    keys = Shape((count, 2), jnp.uint32)

    def start(key: Any, keys: Any) -> Any:
        weights = losses.PPONetworkParams(agent.policy_network.init(key), agent.value_network.init(key))
        seen = running_statistics.init_state(specs.Array((world.observation_size,), F32))
        return weights, optimizer.init(weights), seen, world.reset(keys)

    def loss(weights: Any, seen: Any, part: Any, key: Any) -> Any:
        return losses.compute_ppo_loss(
            weights, seen, part, key, agent, discounting=0.97, normalize_advantage=True
        )[0]

    def step(weights: Any, state: Any, seen: Any, humans: Any, key: Any) -> Any:
        act = networks.make_inference_fn(agent)((seen, weights.policy, weights.value))
        humans, steps = acting.generate_unroll(world, humans, act, key, length, extra_fields=("truncation",))
        steps = jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), steps)
        seen = running_statistics.update(seen, steps.observation)

        def taught(carried: Any, part: Any) -> Any:
            weights, state = carried
            value, gradients = jax.value_and_grad(loss)(weights, seen, part, key)
            updates, state = optimizer.update(gradients, state, weights)
            return (optax.apply_updates(weights, updates), state), value

        split = jax.tree.map(lambda a: a.reshape(parts, -1, *a.shape[1:]), steps)
        (weights, state), values = jax.lax.scan(taught, (weights, state), split)
        return weights, state, seen, humans, values.mean()

    return step, (*jax.eval_shape(start, KEY, keys), KEY), (0, 1, 2, 3)


def cnf_train() -> Program:
    """A continuous flow by diffrax (FFJORD): 262144 points of 64 numbers, 16 steps of Tsitouras', a field 1024 wide; float32, AdamW."""
    import diffrax
    import equinox as eqx

    def build(key: Any) -> Any:
        return eqx.nn.MLP(65, 64, 1024, 4, jax.nn.tanh, key=key)

    weights, rest = eqx.partition(eqx.filter_eval_shape(build, KEY), lambda a: isinstance(a, Shape))

    def loss(weights: Tree, points: Any, probes: Any) -> Any:
        field = eqx.combine(weights, rest)

        def moved(t: Any, y: Any, probes: Any) -> Any:
            speed, back = jax.vjp(jax.vmap(lambda point: field(jnp.append(point, t))), y[0])
            return speed, (back(probes)[0] * probes).sum(-1)

        made = diffrax.diffeqsolve(
            diffrax.ODETerm(moved), diffrax.Tsit5(), 0.0, 1.0, 1 / 16, (points, jnp.zeros(len(points))), args=probes,
            adjoint=diffrax.RecursiveCheckpointAdjoint(), max_steps=16,
        )  # fmt: skip
        ends, volumes = (a[-1] for a in made.ys)
        return (0.5 * (ends**2).sum(-1) - volumes).mean()

    points = Shape((262144, 64), F32)
    return training(loss, ADAMW, weights, points, points)


def impala_train() -> Program:
    """IMPALA's learner in haiku and rlax: a deep residual net and an LSTM over 512 games of 80 frames; bfloat16 on float32, RMSProp."""
    import haiku as hk
    import rlax

    count, length, moves = 512, 80, 18

    def seen(frames: Any) -> Any:
        x = frames.astype(BF16) / 255
        for width in (16, 32, 32):
            x = hk.max_pool(hk.Conv2D(width, 3)(x), (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            for _ in range(2):
                y = hk.Conv2D(width, 3)(jax.nn.relu(hk.Conv2D(width, 3)(jax.nn.relu(x))))
                x = x + y
        return jax.nn.relu(hk.Linear(256)(hk.Flatten()(jax.nn.relu(x))))

    def forward(frames: Any, actions: Any, rewards: Any, state: Any) -> Any:
        x = hk.BatchApply(seen)(frames)
        beside = jax.nn.one_hot(actions, moves, dtype=BF16), jnp.clip(rewards, -1, 1)[..., None].astype(BF16)
        x, _ = hk.dynamic_unroll(hk.LSTM(256), jnp.concatenate([x, *beside], -1), state)
        return hk.Linear(moves)(x).astype(F32), hk.Linear(1)(x)[..., 0].astype(F32)

    model = hk.without_apply_rng(hk.transform(forward))
    frames = Shape((length + 1, count, 72, 96, 3), jnp.uint8)
    ids, numbers = Shape((length + 1, count), I32), Shape((length + 1, count), F32)
    memory = Shape((count, 256), BF16)
    state = hk.LSTMState(memory, memory)
    weights = jax.eval_shape(model.init, KEY, frames, ids, numbers, state)
    weights = jax.tree.map(lambda a: Shape(a.shape, F32), weights)

    def loss(
        weights: Tree, frames: Any, actions: Any, rewards: Any, going: Any, said: Any, state: Any
    ) -> Any:
        logits, values = model.apply(narrow(weights), frames, actions, rewards, state)
        taken, rates = actions[1:], 0.99 * going[1:]
        ratios = rlax.categorical_importance_sampling_ratios(logits[:-1], said[:-1], taken)
        traced = jax.vmap(rlax.vtrace_td_error_and_advantage, 1, 1)
        told = traced(values[:-1], values[1:], rewards[1:], rates, ratios)
        ones = jnp.ones_like(ratios)
        policy = jax.vmap(rlax.policy_gradient_loss, 1)(logits[:-1], taken, told.pg_advantage, ones)
        spread = jax.vmap(rlax.entropy_loss, 1)(logits[:-1], ones)
        return policy.mean() + 0.25 * (told.errors**2).mean() + 0.01 * spread.mean()

    optimizer = optax.chain(optax.clip_by_global_norm(40.0), optax.rmsprop(6e-4, 0.99, 0.1))
    said = Shape((length + 1, count, moves), F32)
    return training(loss, optimizer, weights, frames, ids, numbers, numbers, said, state)


def retinanet_train() -> Program:
    """keras-hub's RetinaNet on ResNet-50, a pyramid of five levels, 80 classes, 128 images of 640 x 640; bfloat16 on float32, momentum."""
    from keras_hub.models import ResNetBackbone, RetinaNetBackbone, RetinaNetObjectDetector
    from keras_hub.src.layers.modeling.anchor_generator import AnchorGenerator
    from keras_hub.src.models.retinanet.retinanet_label_encoder import RetinaNetLabelEncoder

    images = Shape((128, 640, 640, 3), F32)
    kept: list[Any] = []

    def build() -> Any:
        policy = "mixed_bfloat16"
        seen = ResNetBackbone(
            input_conv_filters=[64], input_conv_kernel_sizes=[7], stackwise_num_filters=[64, 128, 256, 512],
            stackwise_num_blocks=[3, 4, 6, 3], stackwise_num_strides=[1, 2, 2, 2], block_type="bottleneck_block",
            image_shape=(640, 640, 3), dtype=policy,
        )  # fmt: skip
        body = RetinaNetBackbone(seen, 3, 7, use_p5=True, image_shape=(640, 640, 3), dtype=policy)
        anchors = AnchorGenerator("yxyx", 3, 7, 3, [0.5, 1.0, 2.0], 4.0)
        labels = RetinaNetLabelEncoder(anchors, "yxyx")
        kept.append(
            RetinaNetObjectDetector(body, 80, anchor_generator=anchors, label_encoder=labels, dtype=policy)
        )
        kept[0].compile("sgd")
        return kept[0]

    run, weights, others = keras_model(build)

    def loss(weights: Tree, others: Tree, images: Any, boxes: Any, classes: Any) -> tuple[Any, Tree]:
        made, others = run(weights, others, images)
        return kept[0].compute_loss(images, {"boxes": boxes, "labels": classes}, made, None), others

    optimizer = optax.sgd(1e-2, 0.9)

    def step(weights: Tree, state: Tree, others: Tree, *batch: Any) -> tuple[Tree, Tree, Tree, Any]:
        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(weights, others, *batch)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, others, value

    batch = images, Shape((128, 64, 4), F32), Shape((128, 64), I32)
    return step, (weights, jax.eval_shape(optimizer.init, weights), others, *batch), (0, 1, 2)


def tunix_split(build: Any, narrows: bool = False) -> tuple[Any, Tree, Tree]:
    """A model's graph, its weights, in bfloat16 where asked, and the rest of its state."""
    from flax import nnx

    graph, weights, rest = nnx.split(nnx.eval_shape(build), nnx.Param, ...)
    return graph, jax.tree.map(lambda a: Shape(a.shape, BF16), weights) if narrows else weights, rest


def qwen3_tunix(size: str) -> Any:
    """What builds it: float32 weights that layers take as bfloat16."""
    import dataclasses

    from flax import nnx
    from tunix.models.qwen3 import model as qwen3

    config = dataclasses.replace(getattr(qwen3.ModelConfig, f"qwen3_{size}")(), dtype=BF16)
    return lambda: qwen3.Qwen3(config, rngs=nnx.Rngs(0))


def grpo_tunix_train() -> Program:
    """tunix's GRPO of Qwen3 0.6B, on 32 completions of 768 to prompts of 256, AdamW."""
    from flax import nnx
    from tunix.rl import algo_core, common
    from tunix.rl.grpo.grpo_learner import GRPOConfig

    graph, weights, rest = tunix_split(qwen3_tunix("0p6b"))
    config, count, asked, told = GRPOConfig(beta=0.04), 32, 256, 768
    config.temperature = 1.0

    def loss(weights: Tree, rest: Tree, *batch: Any) -> Any:
        model, example = nnx.merge(graph, weights, rest), common.TrainExample(*batch)
        return algo_core.grpo_loss_fn(model, example, config, 0, 1)[0]

    prompts = Shape((count, asked), I32), Shape((count, asked), jnp.bool_)
    answers = Shape((count, told), I32), Shape((count, told), jnp.bool_)
    before = Shape((count, told), F32)
    return training(loss, ADAMW, weights, rest, *prompts, *answers, Shape((count,), F32), before, before)


def entropy_tunix_train() -> Program:
    """A clipped policy gradient of Qwen3 0.6B with a bonus for the entropy of all logits, as tunix' PPO has it; 64 completions, AdamW."""
    from flax import nnx
    from tunix.rl import algo_core, common

    graph, weights, rest = tunix_split(qwen3_tunix("0p6b"))
    count, asked, told = 64, 256, 768

    def loss(weights: Tree, rest: Tree, prompts: Any, answers: Any, gains: Any, mask: Any, old: Any) -> Any:
        parts = nnx.split(nnx.merge(graph, weights, rest))
        chances, logits = common.compute_per_token_logps(
            *parts, prompts, answers, 0, 1, stop_gradient=False, return_logits=True
        )
        ratio = jnp.exp(chances.astype(F32) - old)
        gained = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains)
        return algo_core.masked_mean(-gained - 0.01 * algo_core.compute_entropy_from_logits(logits), mask)

    answers = Shape((count, told), F32)
    words = Shape((count, asked), I32), Shape((count, told), I32)
    return training(loss, ADAMW, weights, rest, *words, answers, Shape((count, told), jnp.bool_), answers)


def distill_tunix_train() -> Program:
    """tunix's distillation of the logits of Qwen3 1.7B, in bfloat16, into Qwen3 0.6B; 32 sequences of 1024, AdamW."""
    from flax import nnx
    from tunix.distillation.strategies.logit import LogitStrategy

    graph, weights, rest = tunix_split(qwen3_tunix("0p6b"))
    taught, of_teacher, others = tunix_split(qwen3_tunix("1p7b"), narrows=True)
    strategy = LogitStrategy(*[lambda *_, **__: None] * 3)

    def loss(weights: Tree, rest: Tree, of_teacher: Tree, others: Tree, ids: Any, labels: Any) -> Any:
        told = jax.lax.stop_gradient(tunix_logits(nnx.merge(taught, of_teacher, others), ids))
        said = tunix_logits(nnx.merge(graph, weights, rest), ids)
        return strategy.compute_loss(said, told, jax.nn.one_hot(labels, said.shape[-1]))[0]

    ids = Shape((32, 1024), I32)
    return training(loss, ADAMW, weights, rest, of_teacher, others, ids, ids)


def gemma4_tunix(size: str) -> tuple[Any, Tree, Tree]:
    from flax import nnx
    from tunix.models.gemma4 import model as gemma4

    config = getattr(gemma4.ModelConfig, f"gemma4_{size}")()
    return tunix_split(lambda: gemma4.Gemma4(config, rngs=nnx.Rngs(0)), narrows=True)


def gemma4_tunix_train() -> Program:
    """tunix's Gemma 4 E2B, weights in bfloat16 and work in float32, 16 sequences of 1024, Adafactor."""
    from flax import nnx

    graph, weights, rest = gemma4_tunix("e2b")

    def loss(weights: Tree, rest: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(tunix_logits(nnx.merge(graph, weights, rest), ids), labels)

    ids = Shape((16, 1024), I32)
    return training(loss, optax.adafactor(1e-3), weights, rest, ids, ids)


def gemma4_moe_tunix_fwd() -> Program:
    """tunix's Gemma 4 26B, 8 of 128 experts for each word by ragged products, the next words of 16 sequences of 512; as E2B."""
    from flax import nnx

    graph, weights, rest = gemma4_tunix("26b_a4b")

    def step(weights: Tree, rest: Tree, ids: Any) -> Any:
        return tunix_logits(nnx.merge(graph, weights, rest), ids)[:, -1]

    return step, (weights, rest, Shape((16, 512), I32)), ()


PROGRAMS = (
    mixtral_levanter_train, whisper_levanter_train, exaone4_train, qwen2_easydel_decode, gpt_oss_prefill, cappa_train,
    mmdit_flaxdiff_train, mace_train, clicks_train, tarflow_train, e1_train, qlora_tunix_train, humanoid_train,
    cnf_train, impala_train, retinanet_train, grpo_tunix_train, entropy_tunix_train, distill_tunix_train, gemma4_tunix_train,
    gemma4_moe_tunix_fwd,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
