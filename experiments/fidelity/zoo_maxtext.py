"""Programs of MaxText (as the package kithara carries it), and of other packages for jax that no other file here imports.

Built and lowered as those of `zoo.py`, on abstract shapes; training steps donate their state. MaxText's are its own `train_step` with
its own configurations (base.yml, and the model's), of a mesh of one device, so nothing in them says where an array lies.

    MAXTEXT=FOLDER_OF_MAXTEXT python zoo_maxtext.py FOLDER [NAME...]

FOLDER_OF_MAXTEXT is kithara/model/maxtext/maxtext/MaxText of the unpacked wheel of kithara 0.0.10. What MaxText imports for its host
(storage, logs, data, kernels written by hand) is replaced by modules without content.

Lowered with jax 0.10.2, flax 0.12.8, optax 0.2.8 (Python 3.11, JAX_PLATFORMS=cpu), and

    those with maxtext in their names    kithara 0.0.10 (unpacked, not installed), aqtp 0.9.0, omegaconf 2.4.0
    those with flaxmodels                flaxmodels 0.1.3 (without its dependencies), h5py, tqdm, requests
    ppo_vision_brax_train                brax 0.14.2 (without its dependencies), mujoco, mujoco-mjx
    nequip_e3nn_train                    e3nn-jax 0.21.0, dm-haiku 0.0.17
    wide_resnet_objax_train              objax 1.8.0, six
    llama_penzai_train                   penzai 0.2.5
    blockwise_ringattention_train        ringattention 0.1.2, einops
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo import ADAMW, training

KEY = Shape((2,), jnp.uint32)


class Hollow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports these modules, and what is in them, as ones without content."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == n or name.startswith(n + ".") for n in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        class Module(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return mock.MagicMock(name=name)

        return Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def hollow(*names: str) -> None:
    sys.meta_path.insert(0, Hollow(*names))


@functools.cache
def maxtext() -> Any:
    """MaxText's modules of configuration, training and optimizers."""
    folder = os.environ["MAXTEXT"]
    sys.path.insert(0, folder)
    hollow(
        "tensorflow", "tensorflow_datasets", "grain", "datasets", "google.cloud", "jetstream", "pathwaysutils", "cloud_tpu_diagnostics",
        "ml_goodput_measurement", "checkpointing", "profiler", "metric_logger", "utils", "vertex_tensorboard", "input_pipeline",
        "gcp_workload_monitor", "kernels", "tensorboardX", "psutil", "inference.paged_attention", "inference.paged_attention_kernel_v2",
        "jax.experimental.pallas.ops.gpu", "jax.experimental.pallas.ops.tpu",
        "orbax.checkpoint", "jax.experimental.compilation_cache",
    )  # fmt: skip
    for name in (
        "layers",
        "inference",
    ):  # folders without __init__.py, which modules of these names would hide
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [f"{folder}/{name}"]
    plain = types.ModuleType("jax.experimental.shard_map")
    plain.shard_map = lambda f, **_: f  # over a mesh of one device
    sys.modules[plain.__name__] = jax.experimental.shard_map = plain
    jax.tree_map = jax.tree.map
    jax.devices()
    from flax import linen

    linen.with_logical_constraint = jax.lax.with_sharding_constraint = lambda x, *_, **__: x
    import max_utils

    text = Path(folder, "optimizers.py").read_text()  # as the jax of these days wants types given
    text = text.replace(".astype(update)", ".astype(update.dtype)")
    optimizers = sys.modules["optimizers"] = types.ModuleType("optimizers")
    exec(compile(text, optimizers.__name__, "exec"), optimizers.__dict__)
    import pyconfig
    import train

    sys.modules.pop("tensorflow")  # einops looks whether it is there
    return types.SimpleNamespace(
        max_utils=max_utils, optimizers=optimizers, pyconfig=pyconfig, train=train, models=train.models,
        base=f"{folder}/configs/base.yml",
    )  # fmt: skip


def maxtext_config(count: int, length: int, model: str = "", **options: Any) -> Any:
    """base.yml, over it the file of a model of MaxText's, and over both these options."""
    import yaml

    of_model = {}
    if model:
        of_model = yaml.safe_load(Path(maxtext().base.replace("base", f"models/{model}")).read_text())
        of_model.pop("logical_axis_rules", None)
    options = {
        "run_name": "r", "enable_checkpointing": False, "attention": "dot_product", "dataset_type": "synthetic", "steps": 1000,
        "per_device_batch_size": float(count), "max_target_length": length, "max_prefill_predict_length": length // 2,
        "enable_goodput_recording": False, "monitor_goodput": False, "log_config": False, "jax_cache_dir": "",
        "skip_jax_distributed_system": True, **of_model, **options,
    }  # fmt: skip
    config = maxtext().pyconfig.initialize(["train.py", maxtext().base], **options)
    config.get_keys()["model_name"] = model or "default"
    return config


def maxtext_model(config: Any) -> Any:
    import numpy as np

    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:1]).reshape((1,) * len(config.mesh_axes)), config.mesh_axes
    )
    quant = sys.modules["layers.quantizations"].configure_quantization(config)
    return maxtext().models.Transformer(config, mesh, quant=quant)


def maxtext_train(count: int, length: int, **options: Any) -> Program:
    """MaxText's own step of training, with the configuration that base.yml and these options make."""
    m = maxtext()
    config = maxtext_config(count, length, **options)
    model = maxtext_model(config)
    rate = m.max_utils.create_learning_rate_schedule(config)
    optimizer = m.optimizers.get_optimizer(config, rate)

    def first(key: Any) -> Any:
        return m.max_utils.unbox_logicallypartioned(
            m.max_utils.init_initial_state(model, optimizer, config, True, key)
        )

    state = jax.eval_shape(first, KEY)
    names = (
        "inputs",
        "inputs_position",
        "inputs_segmentation",
        "targets",
        "targets_position",
        "targets_segmentation",
    )
    if config.use_dpo:
        params = {"params": {**state.params["params"]}, "reference_params": state.params["params"]}
        state = state.replace(params=params)
        names = [
            f"{which}{what}"
            for which in ("chosen", "rejected")
            for what in ("", "_position", "_segmentation")
        ]
    data = dict.fromkeys(names, Shape((config.global_batch_size_to_train_on, length), I32))

    def step(state: Any, data: Any, key: Any) -> Any:
        return m.train.train_step(model, config, state, state, dict(data), key)

    return step, (state, data, KEY), (0,)


def llama_maxtext_train() -> Program:
    """MaxText's decoder of base.yml (1 B, llama2), 16 scanned layers, each made again, 64 sequences of 2048; bfloat16 on float32, AdamW."""
    return maxtext_train(64, 2048)


def llama_unrolled_maxtext_train() -> Program:
    """The same of 16 layers one after another, products with weights kept, 64 sequences of 1024."""
    return maxtext_train(64, 1024, scan_layers=False, remat_policy="minimal")


def llama_accumulated_maxtext_train() -> Program:
    """The same, scanned, its gradient over 4 parts of 128 sequences of 1024; some products kept by their names."""
    return maxtext_train(32, 1024, gradient_accumulation_steps=4, remat_policy="save_qkv_proj")


def gemma2_maxtext_train() -> Program:
    """MaxText's Gemma 2 2B, 6 of its 13 scanned pairs of layers (of a window and of all words), 32 sequences of 2048; as before."""
    return maxtext_train(32, 2048, model="gemma2-2b", base_num_decoder_layers=6, sliding_window_size=1024)


def gemma3_maxtext_train() -> Program:
    """MaxText's Gemma 3 4B, 12 of its layers one after another, 32 sequences of 2048, products with weights kept; as before."""
    return maxtext_train(
        32, 2048, model="gemma3-4b", base_num_decoder_layers=12, scan_layers=False, remat_policy="minimal"
    )


def mixtral_maxtext_train() -> Program:
    """MaxText's Mixtral, 12 scanned layers of 1536, 8 experts that drop words over 1.25 of their share, 64 x 1024; as before."""
    return maxtext_train(
        64, 1024, model="mixtral-8x7b", base_emb_dim=1536, base_num_query_heads=16, base_num_kv_heads=8, base_mlp_dim=4096,
        base_num_decoder_layers=12, megablox=False, sparse_matmul=False, capacity_factor=1.25, head_dim=96,
    )  # fmt: skip


def mixtral_ragged_maxtext_train() -> Program:
    """The same without dropping: words sorted to their experts, and ragged products."""
    return maxtext_train(
        64, 1024, model="mixtral-8x7b", base_emb_dim=1536, base_num_query_heads=16, base_num_kv_heads=8, base_mlp_dim=4096,
        base_num_decoder_layers=12, megablox=False, sparse_matmul=True, head_dim=96,
    )  # fmt: skip


def deepseek_maxtext_train() -> Program:
    """MaxText's DeepSeek V2 Lite, 1 dense layer and 5 of 32 experts, 6 a word, and 2 shared; latent attention, 32 x 2048."""
    return maxtext_train(
        32, 2048, model="deepseek2-16b", base_num_decoder_layers=6, num_experts=32, megablox=False, sparse_matmul=False,
        capacity_factor=1.25,
    )  # fmt: skip


def gpt3_maxtext_train() -> Program:
    """MaxText's GPT-3 of 1.3 B, 24 scanned layers, fused q, k and v, embeddings by products, clipped, 64 x 2048; Adam as in pax."""
    return maxtext_train(
        64, 2048, model="gpt3-52k", base_emb_dim=2048, base_num_query_heads=16, base_num_kv_heads=16, base_mlp_dim=8192,
        base_num_decoder_layers=24, head_dim=128, vocab_size=50304,
    )  # fmt: skip


def maxtext_decode(count: int, length: int, **options: Any) -> Program:
    """A word for each of these sequences, as MaxText's engine makes it, caches donated; weights in bfloat16."""
    from flax.core import meta

    m = maxtext()
    import common_types

    config = maxtext_config(count, length, weight_dtype="bfloat16", **options)
    model = maxtext_model(config)
    ids = Shape((count, 1), I32)

    def first(key: Any) -> Any:
        ids = jnp.ones((count, 1), I32)
        rngs = {"params": key, "dropout": key, "aqt": key}
        return model.init(rngs, ids, ids, None, False, model_mode=common_types.MODEL_MODE_AUTOREGRESSIVE)

    variables = m.max_utils.unbox_logicallypartioned(jax.eval_shape(first, KEY))
    variables = meta.unbox(variables)

    def step(weights: Tree, cache: Tree, ids: Any, places: Any) -> Any:
        logits, new = model.apply(
            {"params": weights, "cache": cache}, ids, places, enable_dropout=False, rngs={"params": jax.random.PRNGKey(0)},
            model_mode=common_types.MODEL_MODE_AUTOREGRESSIVE, mutable=["cache"],
        )  # fmt: skip
        return jnp.argmax(logits, -1), new["cache"], places + 1

    return step, (variables["params"], variables["cache"], ids, ids), (1,)


def llama_maxtext_decode() -> Program:
    """MaxText's Llama 2 7B, 16 of its scanned layers, a word for each of 64 sequences, caches of prompts and of answers, 2048 in all."""
    return maxtext_decode(64, 2048, model="llama2-7b", base_num_decoder_layers=16)


def llama_pipelined_maxtext_train() -> Program:
    """MaxText's decoder of base.yml as 4 stages of 4 layers that 8 parts of the batch go through, 64 sequences of 1024; as before."""
    return maxtext_train(
        64, 1024, ici_pipeline_parallelism=4, num_layers_per_pipeline_stage=4, num_pipeline_microbatches=8, scan_layers=False,
        set_remat_policy_on_layers_per_stage=True,
    )  # fmt: skip


def llama_int8_maxtext_train() -> Program:
    """MaxText's decoder of base.yml whose products are of numbers of 8 bits, by AQT, 64 sequences of 1024; as before."""
    return maxtext_train(64, 1024, quantization="int8")


def mistral_dpo_maxtext_train() -> Program:
    """MaxText's Mistral, 16 layers half as wide, preferred and other answers (DPO) beside weights that stay, 32 pairs of 1024."""
    return maxtext_train(
        32, 1024, model="mistral-7b", base_emb_dim=2048, base_num_query_heads=16, base_num_kv_heads=4, base_mlp_dim=7168,
        base_num_decoder_layers=16, use_dpo=True, packing=False,
    )  # fmt: skip


def llama_maxtext_prefill() -> Program:
    """MaxText's Llama 2 7B, 16 of its scanned layers, caches of 32 prompts of 2048 words, and the words after them; bfloat16."""
    m = maxtext()
    import common_types

    count, length = 32, 2048
    config = maxtext_config(
        count,
        2 * length,
        model="llama2-7b",
        base_num_decoder_layers=16,
        weight_dtype="bfloat16",
        max_prefill_predict_length=length,
    )
    model, ids = maxtext_model(config), Shape((count, length), I32)
    weights = m.max_utils.unbox_logicallypartioned(
        jax.eval_shape(model.init, {"params": KEY, "dropout": KEY}, ids, ids)
    )["params"]

    def step(weights: Tree, ids: Any, places: Any, owners: Any, lengths: Any) -> Any:
        logits, new = model.apply(
            {"params": weights}, ids, places, decoder_segment_ids=owners, enable_dropout=False,
            model_mode=common_types.MODEL_MODE_PREFILL, rngs={"params": jax.random.PRNGKey(0)}, mutable=["cache"],
        )  # fmt: skip
        last = jnp.take_along_axis(logits, lengths[:, None, None] - 1, axis=1)[:, 0]
        return last.argmax(-1), m.max_utils.unbox_logicallypartioned(new["cache"])

    return step, (weights, ids, ids, ids, Shape((count,), I32)), ()


def mixtral_maxtext_decode() -> Program:
    """MaxText's Mixtral, 4 of its layers one after another, every expert works on 64 words, caches of numbers of 8 bits; bfloat16."""
    return maxtext_decode(
        64, 4096, model="mixtral-8x7b", base_num_decoder_layers=4, scan_layers=False, megablox=False, sparse_matmul=False,
        quantize_kvcache=True, kv_quant_axis="heads_and_dkv",
    )  # fmt: skip


def flaxmodels() -> Any:
    """The package, without those of its models that ask for more, as the jax of these days reads it."""
    hollow("flaxmodels.gpt2", "flaxmodels.few_shot_gan_adaption")
    import flaxmodels

    reshape = jnp.reshape
    jnp.reshape = lambda x, shape=None, newshape=None: reshape(x, shape if newshape is None else newshape)
    return flaxmodels


def vgg_flaxmodels_train() -> Program:
    """flaxmodels' VGG 16 with its dense layers and dropout, 256 images of 224 x 224; bfloat16 on float32, Adam."""
    model = flaxmodels().VGG16(output="logits", pretrained=None, dtype="bfloat16")
    images, labels = Shape((256, 224, 224, 3), F32), Shape((256,), I32)
    weights = jax.eval_shape(functools.partial(model.init, train=False), KEY, images)

    def loss(weights: Tree, images: Any, labels: Any, key: Any) -> Any:
        return cross_entropy(model.apply(weights, images, rngs={"dropout": key}), labels)

    return training(loss, optax.adam(1e-3), weights, images, labels, KEY)


def with_statistics(apply: Any, variables: Tree, optimizer: Any, images: Shape, labels: Shape) -> Program:
    """A step of a flax module that classifies images by statistics of the whole batch, which it keeps."""
    weights, seen = variables["params"], variables["batch_stats"]

    def loss(weights: Tree, seen: Tree, images: Any, labels: Any) -> Any:
        logits, new = apply({"params": weights, "batch_stats": seen}, images, mutable=["batch_stats"])
        return cross_entropy(logits, labels), new["batch_stats"]

    def step(weights: Tree, state: Tree, seen: Tree, images: Any, labels: Any) -> Any:
        (value, seen), gradients = jax.value_and_grad(loss, has_aux=True)(weights, seen, images, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, seen, value

    return step, (weights, jax.eval_shape(optimizer.init, weights), seen, images, labels), (0, 1, 2)


def resnet_flaxmodels_train() -> Program:
    """flaxmodels' ResNet 50 with statistics of the whole batch, 256 images of 224 x 224; bfloat16 on float32, Adam."""
    model = flaxmodels().ResNet50(output="logits", pretrained=None, dtype="bfloat16")
    images, labels = Shape((256, 224, 224, 3), F32), Shape((256,), I32)
    variables = jax.eval_shape(functools.partial(model.init, train=False), KEY, images)
    return with_statistics(model.apply, variables, optax.adam(1e-3), images, labels)


def stylegan2_flaxmodels_train() -> Program:
    """flaxmodels' StyleGAN 2, both sides taught, with R1 and moving averages, 64 images of 256 x 256; bfloat16 where large, Adam."""
    flaxmodels()
    import numpy as np
    from flaxmodels import stylegan2

    known = {n: getattr(np, n) for n in ("clip", "log2")}  # numpy knows no bfloat16
    root = types.SimpleNamespace(sqrt=lambda x, dtype: jnp.asarray(x**0.5, dtype), **known)
    sys.modules["flaxmodels.stylegan2.discriminator"].np = root
    halves = {"resolution": 256, "num_fp16_res": 4, "dtype": "bfloat16", "clip_conv": 256.0}
    maker, judge = (
        stylegan2.Generator(num_ws=14, **halves),
        stylegan2.Discriminator(mbstd_group_size=4, **halves),
    )
    images, dots = Shape((64, 256, 256, 3), F32), Shape((64, 512), F32)
    of_maker, of_judge = jax.eval_shape(maker.init, KEY, dots), jax.eval_shape(judge.init, KEY, images)
    weights, seen, noise = of_maker["params"], of_maker["moving_stats"], of_maker["noise_consts"]
    optimizer = optax.adam(2e-3, b1=0.0, b2=0.99)

    def made(weights: Tree, seen: Tree, noise: Tree, dots: Any, key: Any) -> Any:
        variables = {"params": weights, "moving_stats": seen, "noise_consts": noise}
        images, new = maker.apply(variables, dots, rng=key, mutable=["moving_stats"])
        return images.astype(F32), new["moving_stats"]

    def of_making(weights: Tree, seen: Tree, noise: Tree, judging: Tree, dots: Any, key: Any) -> Any:
        images, seen = made(weights, seen, noise, dots, key)
        return jax.nn.softplus(-judge.apply(judging, images)).mean(), (images, seen)

    def of_judging(judging: Tree, images: Any, fakes: Any) -> Any:
        def judged(images: Any) -> Any:
            answers = judge.apply(judging, images)
            return answers.sum(), answers

        slopes, answers = jax.grad(judged, has_aux=True)(images)
        penalty = (slopes**2).sum((1, 2, 3)).mean()
        return (
            jax.nn.softplus(-answers).mean()
            + jax.nn.softplus(judge.apply(judging, fakes)).mean()
            + 5 * penalty
        )

    def taught(weights: Tree, state: Tree, gradients: Tree) -> Any:
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    def step(
        weights: Tree, state: Tree, slow: Tree, seen: Tree, judging: Tree, of_judge: Tree, noise: Tree, images: Any, dots: Any, key: Any
    ) -> Any:  # fmt: skip
        grad = jax.value_and_grad(of_making, has_aux=True)
        (one, (fakes, seen)), gradients = grad(weights, seen, noise, judging, dots, key)
        other, slopes = jax.value_and_grad(of_judging)(judging, images, jax.lax.stop_gradient(fakes))
        weights, state = taught(weights, state, gradients)
        judging, of_judge = taught(judging, of_judge, slopes)
        return (
            weights,
            state,
            optax.incremental_update(weights, slow, 1e-3),
            seen,
            judging,
            of_judge,
            one,
            other,
        )

    states = [jax.eval_shape(optimizer.init, w) for w in (weights, of_judge)]
    return (
        step,
        (weights, states[0], weights, seen, of_judge, states[1], noise, images, dots, KEY),
        (0, 1, 2, 3, 4, 5),
    )


def ppo_vision_brax_train() -> Program:
    """brax's PPO for what a camera sees: 4 minibatches of 512 runs of 16 steps, frames of 64 x 64; float32, Adam."""
    from brax.training import types as of_brax
    from brax.training.agents.ppo import losses, networks_vision

    runs, length, parts, size = 512, 16, 4, 8
    agent = networks_vision.make_ppo_networks_vision(
        {"pixels/view_0": (64, 64, 9)},
        size,
        policy_hidden_layer_sizes=(512, 512),
        value_hidden_layer_sizes=(512, 512),
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-4))

    def start(key: Any) -> Any:
        weights = losses.PPONetworkParams(agent.policy_network.init(key), agent.value_network.init(key))
        return weights, optimizer.init(weights)

    def each(*shape: int) -> Any:
        return Shape((parts, runs, length, *shape), F32)

    seen = {"pixels/view_0": each(64, 64, 9)}
    steps = of_brax.Transition(
        observation=seen, action=each(size), reward=each(), discount=each(), next_observation=seen,
        extras={
            "policy_extras": {"raw_action": each(size), "log_prob": each(), "distribution_params": each(2 * size)},
            "state_extras": {"truncation": each()},
        },
    )  # fmt: skip

    def step(weights: Any, state: Any, steps: Any, key: Any) -> Any:
        def taught(carried: Any, part: Any) -> Any:
            weights, state = carried

            def loss(weights: Any) -> Any:
                return losses.compute_ppo_loss(weights, None, part, key, agent, discounting=0.97)[0]

            value, gradients = jax.value_and_grad(loss)(weights)
            updates, state = optimizer.update(gradients, state, weights)
            return (optax.apply_updates(weights, updates), state), value

        (weights, state), values = jax.lax.scan(taught, (weights, state), steps)
        return weights, state, values.mean()

    return step, (*jax.eval_shape(start, KEY), steps, KEY), (0, 1)


def nequip_e3nn_train() -> Program:
    """Three message passings of e3nn-jax, up to l = 2, energies and forces of 8192 atoms with 131072 pairs in 256 molecules; Adam."""
    import e3nn_jax as e3nn
    from e3nn_jax.experimental import point_convolution
    from flax import linen as nn

    atoms, pairs, molecules = 8192, 131072, 256
    between = e3nn.Irreps("128x0e + 64x1o + 32x2e")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, places: Any, kinds: Any, senders: Any, receivers: Any) -> Any:
            x = e3nn.IrrepsArray("128x0e", nn.Embed(64, 128)(kinds))
            for _ in range(3):
                mixed = point_convolution.MessagePassingConvolutionFlax(
                    e3nn.Irreps(f"{between} + 96x0e"), lambda r: point_convolution.radial_basis(r, 5.0, 8), 16.0, sh_lmax=2,
                )(e3nn.IrrepsArray("1o", places), x, senders, receivers)  # fmt: skip
                x = e3nn.gate(mixed + e3nn.flax.Linear(mixed.irreps, force_irreps_out=True)(x))
            return e3nn.flax.Linear("1x0e")(
                e3nn.flax.MultiLayerPerceptron((64,), jax.nn.silu)(x.filter("0e"))
            ).array[:, 0]

    model = Network()
    places, kinds, ends = Shape((atoms, 3), F32), Shape((atoms,), I32), Shape((pairs,), I32)
    weights = jax.eval_shape(model.init, KEY, places, kinds, ends, ends)

    def loss(
        weights: Tree,
        places: Any,
        kinds: Any,
        senders: Any,
        receivers: Any,
        owners: Any,
        energies: Any,
        forces: Any,
    ) -> Any:
        def of_all(places: Any) -> Any:
            energy = jax.ops.segment_sum(
                model.apply(weights, places, kinds, senders, receivers), owners, molecules
            )
            return energy.sum(), energy

        slopes, energy = jax.grad(of_all, has_aux=True)(places)
        return ((energy - energies) ** 2).mean() + 10 * ((slopes + forces) ** 2).mean()

    return training(
        loss, optax.adam(1e-3), weights, places, kinds, ends, ends, kinds, Shape((molecules,), F32), places
    )


def wide_resnet_objax_train() -> Program:
    """objax's WideResNet 28-10, 2048 images of 32 x 32, channels first; float32, Adam."""
    import objax
    from objax.zoo import wide_resnet
    from zoo import abstract

    def tensors(model: Any) -> Tree:
        return [[v.value for v in model.vars().subset(kind)] for kind in (objax.TrainVar, objax.BaseState)]

    model, (weights, seen) = abstract(lambda: wide_resnet.WideResNet(3, 100, 28, 10), tensors)
    variables = model.vars()
    optimizer = optax.adam(1e-3)

    def loss(weights: Tree, seen: Tree, images: Any, labels: Any) -> Any:
        variables.subset(objax.TrainVar).assign(weights)
        variables.subset(objax.BaseState).assign(seen)
        logits = model(images, training=True)
        return cross_entropy(logits, labels), [v.value for v in variables.subset(objax.BaseState)]

    def step(weights: Tree, state: Tree, seen: Tree, images: Any, labels: Any) -> Any:
        (value, seen), gradients = jax.value_and_grad(loss, has_aux=True)(weights, seen, images, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, seen, value

    images, labels = Shape((2048, 3, 32, 32), F32), Shape((2048,), I32)
    return step, (weights, jax.eval_shape(optimizer.init, weights), seen, images, labels), (0, 1, 2)


def llama_penzai_train() -> Program:
    """penzai's Llama-like decoder of 16 layers, 2048 wide, axes by names, 32 sequences of 1024; bfloat16 on float32, AdamW."""
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common
    from programs import narrow

    config = llamalike_common.LlamalikeTransformerConfig(
        num_kv_heads=8, query_head_multiplier=2, embedding_dim=2048, projection_dim=128, mlp_hidden_dim=5632, num_decoder_blocks=16,
        vocab_size=32000, mlp_variant="swiglu", tie_embedder_and_logits=False,
    )  # fmt: skip
    held: list[Any] = []

    def built(key: Any) -> Tree:
        model = llamalike_common.build_llamalike_transformer(config, key)
        rest, weights = pz.unbind_params(model, freeze=True)
        held.append(rest)
        return weights

    weights = jax.eval_shape(built, jax.random.key(0))

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        model = pz.bind_variables(held[0], narrow(weights))
        logits = model(pz.nx.wrap(ids).tag("batch", "seq")).unwrap("batch", "seq", "vocabulary")
        return cross_entropy(logits, labels)

    ids = Shape((32, 1024), I32)
    return training(loss, ADAMW, weights, ids, ids)


def blockwise_ringattention_train() -> Program:
    """ringattention's blocks of attention and of dense layers in 8 layers 2048 wide, 16 sequences of 8192; bfloat16 on float32, AdamW."""
    import importlib.util

    found = importlib.util.find_spec("ringattention")  # whose __init__ asks for kernels
    sys.modules["ringattention"] = types.ModuleType("ringattention")
    sys.modules["ringattention"].__path__ = list(found.submodule_search_locations)
    from flax import linen as nn
    from ringattention import ringattention_jax
    from ringattention.ringattention_jax import blockwise_feedforward, ring_attention

    of_one = {n: getattr(jax.lax, n) for n in dir(jax.lax) if not n.startswith("_")}  # a ring of one place
    of_one |= {"psum": lambda x, _: x, "axis_index": lambda _: 0, "ppermute": lambda x, _, perm: x}
    ringattention_jax.lax = types.SimpleNamespace(**of_one)

    options = {
        "causal_block_size": 1, "deterministic": True, "dropout_rng": None, "attn_pdrop": 0.0, "query_chunk_size": 1024,
        "key_chunk_size": 1024, "dtype": BF16, "policy": jax.checkpoint_policies.nothing_saveable, "precision": None,
        "prevent_cse": False,
    }  # fmt: skip

    def mixed(q: Any, k: Any, v: Any) -> Any:
        return ring_attention(q, k, v, None, None, None, "ring", True, options)

    class Dense(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            up = nn.Dense(5632, use_bias=False, dtype=BF16, name="up")(x)
            gate = nn.Dense(5632, use_bias=False, dtype=BF16, name="gate")(x)
            return nn.Dense(2048, use_bias=False, dtype=BF16, name="down")(nn.silu(gate) * up)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.RMSNorm(dtype=BF16)(x)
            q, k, v = (nn.DenseGeneral((16, 128), use_bias=False, dtype=BF16, name=n)(y) for n in "qkv")
            x = x + nn.DenseGeneral(2048, axis=(-2, -1), use_bias=False, dtype=BF16, name="o")(mixed(q, k, v))
            y = nn.RMSNorm(dtype=BF16)(x)
            return x + blockwise_feedforward(nn.remat(Dense)(), y, 8)

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            x = nn.Embed(32000, 2048, dtype=BF16)(ids)
            for _ in range(8):
                x = nn.remat(Layer)()(x)
            return nn.Dense(32000, use_bias=False, dtype=BF16)(nn.RMSNorm(dtype=BF16)(x))

    model = Decoder()
    ids = Shape((16, 8192), I32)
    weights = jax.eval_shape(model.init, KEY, ids)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(model.apply(weights, ids), labels)

    return training(loss, ADAMW, weights, ids, ids)


PROGRAMS = (
    llama_maxtext_train, llama_unrolled_maxtext_train, gemma2_maxtext_train, mixtral_maxtext_train, deepseek_maxtext_train,
    gpt3_maxtext_train, llama_maxtext_decode, mixtral_ragged_maxtext_train, llama_accumulated_maxtext_train, gemma3_maxtext_train,
    llama_maxtext_prefill, mixtral_maxtext_decode, llama_pipelined_maxtext_train, llama_int8_maxtext_train, mistral_dpo_maxtext_train,
    vgg_flaxmodels_train, resnet_flaxmodels_train, stylegan2_flaxmodels_train, ppo_vision_brax_train, nequip_e3nn_train,
    wide_resnet_objax_train, llama_penzai_train, blockwise_ringattention_train,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
