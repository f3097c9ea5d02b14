"""Models of packages that no other file here imports: Google's and others' in jax, and torch packages for words, sound, images, equations.

Built and lowered as those of `zoo.py` and `zoo_torch.py`, on abstract shapes; training steps donate their state.

    python experiments/fidelity/zoo_frameworks.py FOLDER [NAME...]

Lowered with jax 0.10.2, optax 0.2.8, torch 2.13.0, torchax 0.0.13, accelerate 1.15.0 (Python 3.11, JAX_PLATFORMS=cpu), and

    gemma_train, gemma_decode    gemma 3.3.0, kauldron 1.4.2 (without its dependencies: what gemma imports of them), flax 0.12.8
    griffin_train                recurrentgemma 1.0.1, flax 0.12.8
    penzai_train                 penzai 0.2.5
    evoformer_train              alphafold-colabfold 2.3.17 (without its dependencies; 2.3.27 wants kernels for GPUs), dm-haiku 0.0.17
    flow_train                   flowjax 19.1.2, paramax 0.0.5, equinox 0.13.8
    atoms_train                  e3nn-jax 0.21.0, dm-haiku 0.0.17
    timesfm_decode               timesfm 3.0.2, einshape 1.0, flax 0.12.8
    transport                    ott-jax 0.6.0
    weather                      dinosaur 1.5.1 (with pint, dask, scikit-learn, xarray)
    fluid                        jax-cfd 0.2.1, tree_math
    lora_train                   litgpt 0.5.13, lightning 2.6.6
    mamba_train                  mambapy 1.2.0
    xlstm_train                  xlstm 2.0.6
    separation_train             torchaudio 2.11.0 (without lib/_torchaudio*.so and lib/libtorchaudio*.so, which want CUDA)
    restoration_train, upscale_fwd    spandrel 0.4.2
    operator_train               neuraloperator 2.0.0, tensorly 0.10.0
    yolo_train                   ultralytics 8.4.190
    sam_fwd                      segment-anything 1.0
"""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from zoo import training
from zoo_packages import forward
from zoo_torch import ADAMW, cast, torch_model
from zoo_torch import training as torch_training

KEY = Shape((2,), jnp.uint32)


def gemma3() -> Any:
    """Gemma 3 4B without its eyes."""
    import kauldron.checkpoints

    kauldron.checkpoints.AbstractPartialLoader = object  # gemma 3.3 looks for it, kauldron 1.4 has none
    from gemma.gm import nn

    return nn.Gemma3_4B(text_only=True, dtype=BF16)


def gemma_train() -> Program:
    """Google's gemma: Gemma 3 4B without its eyes, 32 sequences of 512 tokens; bfloat16 weights, Adafactor."""
    model = gemma3()
    ids = Shape((32, 512), I32)
    weights = jax.eval_shape(model.init, KEY, ids)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(model.apply(weights, ids).logits, labels)

    return training(loss, optax.adafactor(1e-3), weights, ids, ids)


def griffin_train() -> Program:
    """Google's recurrentgemma: RecurrentGemma 2B, 12 of its 26 blocks, made again, 16 sequences of 2048; bfloat16 on float32, AdamW."""
    with mock.patch("jaxtyping.jaxtyped", lambda function, **_: function):  # typeguard cannot read its shapes
        from recurrentgemma.jax import Griffin
    from recurrentgemma import common

    config = common.GriffinConfig.from_preset(common.Preset.RECURRENT_GEMMA_2B_V1)
    config = config._replace(
        block_types=config.block_types[:12], scan_type=common.ScanType.ASSOCIATIVE_NATIVE
    )
    model = Griffin(config, dtype=BF16)
    ids = Shape((16, 2048), I32)
    weights = jax.eval_shape(model.init, KEY, ids, ids)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        places = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        return cross_entropy(model.apply(weights, ids, places, return_cache=False)[0], labels)

    return training(loss, ADAMW, weights, ids, ids)


def penzai_train() -> Program:
    """penzai's Llama of 16 stacked blocks, 2048 wide, 8 of 32 heads for keys, axes by name, 64 x 512; bfloat16, AdamW."""
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common as llama

    config = llama.LlamalikeTransformerConfig(
        num_kv_heads=8, query_head_multiplier=4, embedding_dim=2048, projection_dim=64, mlp_hidden_dim=8192,
        num_decoder_blocks=16, vocab_size=128256, mlp_variant="swiglu", tie_embedder_and_logits=True,
        rope_wavelength=500_000, parameter_dtype=BF16, activation_dtype=BF16, use_layer_stack=True,
    )  # fmt: skip
    slots = llama.build_llamalike_transformer(config)

    def parameters(key: Any) -> Tree:
        return pz.unbind_params(llama.build_llamalike_transformer(config, key), freeze=True)[1]

    ids = Shape((64, 512), I32)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        model = pz.bind_variables(slots, weights)
        logits = model(pz.nx.wrap(ids, "batch", "seq")).unwrap("batch", "seq", "vocabulary")
        return cross_entropy(logits, labels)

    return training(loss, ADAMW, jax.eval_shape(parameters, KEY), ids, ids)


def evoformer_train() -> Program:
    """AlphaFold 2's trunk, 48 scanned blocks, made again, 16 crops of 256 residues, 128 and 1024 relatives; bfloat16 on float32, Adam."""
    import haiku as hk
    from alphafold.model import config as configs
    from alphafold.model import modules

    config = configs.model_config("model_3").model
    config.global_config.use_remat = True
    trunk = config.embeddings_and_evoformer
    trunk.template.enabled = False

    def forward(batch: Tree) -> Any:
        made = modules.EmbeddingsAndEvoformer(trunk, config.global_config)(batch, is_training=True)
        heads = config.heads
        letters = modules.MaskedMsaHead(heads.masked_msa, config.global_config)
        distances = modules.DistogramHead(heads.distogram, config.global_config)
        return letters(made, batch, True)["logits"], distances(made, batch, True)["logits"]

    model = hk.transform(forward)
    count, residues, relatives, others = 16, 256, 128, 1024
    one = {
        "target_feat": Shape((residues, 22), F32), "msa_feat": Shape((relatives, residues, 49), F32),
        "msa_mask": Shape((relatives, residues), F32), "seq_mask": Shape((residues,), F32),
        "aatype": Shape((residues,), I32), "residue_index": Shape((residues,), I32),
        "prev_pos": Shape((residues, 37, 3), F32), "prev_msa_first_row": Shape((residues, 256), F32),
        "prev_pair": Shape((residues, residues, 128), F32), "extra_msa": Shape((others, residues), I32),
        "extra_has_deletion": Shape((others, residues), F32), "extra_deletion_value": Shape((others, residues), F32),
        "extra_msa_mask": Shape((others, residues), F32),
    }  # fmt: skip
    weights = jax.eval_shape(model.init, KEY, one)

    def loss(weights: Tree, batch: Tree, letters: Any, distances: Any, key: Any) -> Any:
        keys = jax.random.split(key, count)
        said, told = jax.vmap(model.apply, (None, 0, 0))(weights, keys, batch)
        return 2 * cross_entropy(said, letters) + 0.3 * cross_entropy(told, distances)

    batch = jax.tree.map(lambda a: Shape((count, *a.shape), a.dtype), one)
    letters = Shape((count, relatives, residues), I32)
    distances = Shape((count, residues, residues), I32)
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-3))
    return training(loss, optimizer, weights, batch, letters, distances, KEY)


def flow_train() -> Program:
    """flowjax's masked autoregressive flow by splines, 8 layers 1024 wide, 262144 points of 64 numbers; float32, Adam."""
    import equinox as eqx
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow
    from paramax import unwrap

    def build(key: Any) -> Any:
        return masked_autoregressive_flow(
            key, base_dist=Normal(jnp.zeros(64)), nn_width=1024, nn_depth=2,
            transformer=RationalQuadraticSpline(knots=8, interval=4),
        )  # fmt: skip

    arrays, rest = eqx.partition(eqx.filter_eval_shape(build, KEY), lambda a: isinstance(a, Shape))
    weights, masks = eqx.partition(arrays, lambda a: jnp.issubdtype(a.dtype, jnp.floating))

    def loss(weights: Tree, masks: Tree, points: Any) -> Any:
        return -unwrap(eqx.combine(weights, masks, rest)).log_prob(points).mean()

    return training(loss, optax.adam(5e-4), weights, masks, Shape((262144, 64), F32))


def transport() -> Program:
    """ott's Sinkhorn divergence between two clouds of 65536 points of 64 numbers, and its gradient by the points; float32."""
    from ott.geometry.pointcloud import PointCloud
    from ott.tools import sinkhorn_divergence

    def distance(x: Any, y: Any) -> Any:
        return sinkhorn_divergence.sinkhorn_divergence(PointCloud, x, y, epsilon=0.1)[0]

    points = Shape((65536, 64), F32)
    return jax.value_and_grad(distance), (points, points), ()


def gemma_decode() -> Program:
    """Google's gemma: a token of Gemma 3 4B for each of 128 sequences with up to 4096 positions behind it; bfloat16."""
    model = gemma3()
    count, length = 128, 4096
    cache = jax.eval_shape(lambda: model.init_cache(batch_size=count, dtype=BF16, cache_length=length))
    ids, mask = Shape((count, 1), I32), Shape((count, 1, length), jnp.bool_)
    weights = jax.eval_shape(model.init, KEY, ids)

    def decode(weights: Tree, cache: Tree, ids: Any, positions: Any, mask: Any) -> Any:
        made = model.apply(
            weights, ids, cache=cache, positions=positions, attention_mask=mask, return_last_only=True
        )
        return made.logits.argmax(-1), made.cache

    return decode, (weights, cache, ids, ids, mask), (1,)


def timesfm_decode() -> Program:
    """Google's timesfm: TimesFM 2.5 200M tells 512 steps of 1024 series of 4096, 128 at a time, with keys and values kept; float32."""
    from flax import nnx
    from timesfm.timesfm_2p5.timesfm_2p5_flax import TimesFM_2p5_200M_flax_module

    graph, weights = nnx.split(
        TimesFM_2p5_200M_flax_module()
    )  # its layers draw from one key, which eval_shape cannot
    weights = jax.tree.map(lambda w: Shape(w.shape, w.dtype), weights)

    def decode(weights: Tree, series: Any, absent: Any) -> Any:
        return nnx.merge(graph, weights).decode(512, series, absent)

    return decode, (weights, Shape((1024, 4096), F32), Shape((1024, 4096), jnp.bool_)), ()


def atoms_train() -> Program:
    """e3nn's equivariant transformer, 3 layers, energies and forces of 65536 atoms with 524288 pairs in 1024 molecules; float32, Adam."""
    import e3nn_jax as e3nn
    import haiku as hk
    from e3nn_jax.experimental.transformer import Transformer

    count, atoms, pairs = 1024, 65536, 524288

    def forward(places: Any, kinds: Any, ends: Any, molecules: Any) -> Any:
        start, end = ends
        apart = e3nn.IrrepsArray("1o", places[start] - places[end])
        length = e3nn.norm(apart).array[:, 0]
        directions = e3nn.spherical_harmonics("0e + 1o + 2e", apart, True)
        radial = e3nn.soft_one_hot_linspace(
            length, start=0.0, end=5.0, number=8, basis="smooth_finite", cutoff=True
        )
        cutoff = e3nn.soft_envelope(length, 5.0)
        x = e3nn.IrrepsArray("32x0e", hk.Embed(100, 32)(kinds))
        edges = e3nn.concatenate([e3nn.IrrepsArray("8x0e", radial), directions])
        for hidden in ("32x0e + 16x1o + 8x2e", "32x0e + 16x1o + 8x2e", "32x0e"):
            x = Transformer(e3nn.Irreps(hidden), [64], jax.nn.silu, 4)(start, end, cutoff, edges, x)
        energies = e3nn.haiku.Linear("0e")(x).array[:, 0]
        return jax.ops.segment_sum(energies, molecules, count)

    model = hk.without_apply_rng(hk.transform(forward))
    places, kinds = Shape((atoms, 3), F32), Shape((atoms,), I32)
    ends = Shape((2, pairs), I32)

    def loss(
        weights: Tree, places: Any, kinds: Any, ends: Any, molecules: Any, energies: Any, forces: Any
    ) -> Any:
        def energy(places: Any) -> Any:
            made = model.apply(weights, places, kinds, ends, molecules)
            return made.sum(), made

        slopes, made = jax.grad(energy, has_aux=True)(places)
        return ((made - energies) ** 2).mean() + 100 * ((slopes + forces) ** 2).mean()

    weights = jax.eval_shape(model.init, KEY, places, kinds, ends, kinds)
    batch = places, kinds, ends, kinds, Shape((count,), F32), places
    return training(loss, optax.adam(1e-3), weights, *batch)


def weather() -> Program:
    """dinosaur's primitive equations at 62 wave numbers and 24 levels, moist, ten steps of 512 members; float32."""
    import numpy as np
    from dinosaur import (
        coordinate_systems,
        primitive_equations,
        scales,
        sigma_coordinates,
        spherical_harmonic,
        time_integration,
        units,
    )

    specs = units.SimUnits.from_si()
    sphere = spherical_harmonic.Grid.with_wavenumbers(
        63, spherical_harmonics_impl=spherical_harmonic.FastSphericalHarmonics
    )
    coords = coordinate_systems.CoordinateSystem(sphere, sigma_coordinates.SigmaCoordinates.equidistant(24))
    flat = np.zeros(sphere.modal_shape, np.float32)
    equations = primitive_equations.PrimitiveEquationsSigma(
        np.full(24, 288.0, np.float32), flat, coords, specs, humidity_key="specific_humidity"
    )
    moment = specs.nondimensionalize(10 * scales.units.minute)
    steps = time_integration.repeated(time_integration.imex_rk_sil3(equations, moment), 10)
    field, surface = (Shape((512, levels, *sphere.modal_shape), F32) for levels in (24, 1))
    state = primitive_equations.State(field, field, field, surface, {"specific_humidity": field})
    return jax.vmap(steps), (state,), (0,)


def fluid() -> Program:
    """jax-cfd's turbulence in a box of 1024 x 1024 x 512, ten steps, pressure by conjugate gradients; float32."""
    from functools import partial

    from jax_cfd.base import boundaries, equations, funcutils, grids, pressure

    sides = 1024, 1024, 512
    grid = grids.Grid(sides, domain=((0.0, 6.28), (0.0, 6.28), (0.0, 3.14)))
    around = boundaries.periodic_boundary_conditions(3)
    step = equations.semi_implicit_navier_stokes(
        density=1.0, viscosity=1e-3, dt=1e-3, grid=grid,
        pressure_solve=partial(pressure.solve_cg, rtol=1e-5, atol=1e-5, maxiter=64),
    )  # fmt: skip
    steps = funcutils.repeated(step, 10)

    def run(speeds: Any) -> Any:
        offsets = grid.cell_faces
        fields = [
            grids.GridVariable(grids.GridArray(v, offset, grid), around)
            for v, offset in zip(speeds, offsets, strict=True)
        ]
        return tuple(v.data for v in steps(tuple(fields)))

    return run, ((Shape(sides, F32),) * 3,), (0,)


def lora_train() -> Program:
    """litgpt's Llama 3.2 3B, updates of rank 16 beside queries, values and perceptrons, 16 sequences of 1024; bfloat16, AdamW."""
    from litgpt.lora import GPT, Config

    config = Config.from_name(
        "Llama-3.2-3B", lora_r=16, lora_alpha=32, lora_dropout=0.0, lora_query=True, lora_value=True, lora_mlp=True,
        padded_vocab_size=128256,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: GPT(config))
    weights = cast(weights)
    beside = {name: w for name, w in weights.items() if "lora_" in name}
    kept = {name: w for name, w in weights.items() if "lora_" not in name}

    def loss(beside: Tree, kept: Tree, buffers: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(run({**kept, **beside}, buffers, ids), labels)

    ids = Shape((16, 1024), I32)
    return training(loss, ADAMW, beside, kept, buffers, ids, ids)


def mamba_train() -> Program:
    """mambapy's Mamba of 8 layers, 768 wide, its scan by jax's `associative_scan`, 16 sequences of 512; float32, AdamW."""
    import mambapy.mamba
    import torch
    from mambapy.mamba import Mamba, MambaConfig
    from torchax import interop

    def pair(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def scan(rates: Any, given: Any) -> Any:  # its own writes into views of views, which torchax loses
        return interop.torch_view(jax.lax.associative_scan(pair, interop.jax_view((rates, given)), axis=1)[1])

    mambapy.mamba.pscan = scan

    def build() -> Any:
        words = torch.nn.Embedding(50280, 768)
        return torch.nn.Sequential(words, Mamba(MambaConfig(768, 8)), torch.nn.Linear(768, 50280, bias=False))

    run, weights, buffers = torch_model(build)

    def loss(weights: Tree, buffers: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(run(weights, buffers, ids), labels)

    ids = Shape((16, 512), I32)
    return torch_training(loss, ADAMW, weights, buffers, ids, ids)


def xlstm_train() -> Program:
    """xlstm's 24 blocks with memories that are matrices, 768 wide, 32 sequences of 1024 tokens; bfloat16 on float32, AdamW, clipped."""
    from xlstm import mLSTMBlockConfig, mLSTMLayerConfig, xLSTMLMModel, xLSTMLMModelConfig

    layer = mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=4)
    config = xLSTMLMModelConfig(
        vocab_size=50304, mlstm_block=mLSTMBlockConfig(mlstm=layer), context_length=1024, num_blocks=24, embedding_dim=768
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: xLSTMLMModel(config))

    def loss(weights: Tree, buffers: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), buffers, ids), labels)

    ids = Shape((32, 1024), I32)
    return torch_training(
        loss, optax.chain(optax.clip_by_global_norm(1.0), ADAMW), weights, buffers, ids, ids
    )


def separation_train() -> Program:
    """torchaudio's Conv-TasNet tells two voices apart, 64 mixtures of 4 s; float32, Adam, gradients clipped."""
    from torchaudio.models import conv_tasnet_base

    run, weights, buffers = torch_model(conv_tasnet_base)

    def loss(weights: Tree, buffers: Tree, mixed: Any, voices: Any) -> Any:
        made = run(weights, buffers, mixed)
        made, voices = (v - v.mean(-1, keepdims=True) for v in (made, voices))
        share = (made * voices).sum(-1, keepdims=True) / (voices**2).sum(-1, keepdims=True)
        wanted = share * voices
        ratio = (wanted**2).sum(-1) / (((made - wanted) ** 2).sum(-1) + 1e-8)
        return -10 * jnp.log10(ratio + 1e-8).mean()

    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(1e-3))
    return torch_training(
        loss, optimizer, weights, buffers, Shape((64, 1, 32000), F32), Shape((64, 2, 32000), F32)
    )


def restoration_train() -> Program:
    """spandrel's NAFNet, 64 wide, 36 blocks, 64 crops of 256 x 256; bfloat16 on float32, AdamW."""
    from spandrel.architectures.NAFNet import NAFNet

    run, weights, buffers = torch_model(
        lambda: NAFNet(width=64, middle_blk_num=12, enc_blk_nums=[2, 2, 4, 8], dec_blk_nums=[2, 2, 2, 2])
    )

    def loss(weights: Tree, buffers: Tree, poor: Any, good: Any) -> Any:
        made = run(cast(weights), cast(buffers), poor.astype(BF16)).astype(F32)
        return 10 * jnp.log10(((made - good) ** 2).mean((1, 2, 3)) + 1e-8).mean()

    crops = Shape((64, 3, 256, 256), F32)
    return torch_training(loss, ADAMW, weights, buffers, crops, crops)


def upscale_fwd() -> Program:
    """spandrel's HAT makes 256 images of 64 x 64 four times as wide and high; bfloat16."""
    from spandrel.architectures.HAT import HAT

    run, weights, buffers = torch_model(
        lambda: HAT(
            img_size=64, embed_dim=180, depths=(6,) * 6, num_heads=(6,) * 6, window_size=16, mlp_ratio=2.0, upscale=4,
        ),
        training=False,
    )  # fmt: skip
    return forward(run, weights, buffers, Shape((256, 3, 64, 64), BF16))


def operator_train() -> Program:
    """neuralop's Fourier operator, four layers 128 wide with 64 x 64 modes, 64 fields of 256 x 256; float32, AdamW."""
    import torch
    from neuralop.layers import spectral_convolution
    from neuralop.models import FNO

    spectral_convolution.tl.einsum = torch.einsum  # opt_einsum takes torchax's tensors for numpy's
    run, weights, buffers = torch_model(
        lambda: FNO(n_modes=(64, 64), in_channels=1, out_channels=1, hidden_channels=128)
    )

    def loss(weights: Tree, buffers: Tree, given: Any, wanted: Any) -> Any:
        made = run(weights, buffers, given)
        apart = jnp.sqrt(((made - wanted) ** 2).sum((1, 2, 3)))
        return (apart / jnp.sqrt((wanted**2).sum((1, 2, 3)))).mean()

    fields = Shape((64, 1, 256, 256), F32)
    return torch_training(loss, ADAMW, weights, buffers, fields, fields)


def yolo_train() -> Program:
    """ultralytics' YOLO 11 m, boxes and 80 classes of 8400 places, 128 images of 640 x 640; bfloat16 on float32, SGD with momentum."""
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolo11m.yaml", verbose=False)  # asks itself for its strides, so it has values
    run, weights, buffers = torch_model(lambda: model)

    def loss(weights: Tree, buffers: Tree, images: Any, sides: Any, classes: Any) -> Any:
        made, moved = run(
            cast(weights), buffers, images.astype(BF16), of=lambda a: (a["boxes"], a["scores"]), moved=True
        )
        boxes, scores = made
        boxes = jnp.moveaxis(boxes.reshape(len(images), 4, 16, -1), 2, -1)
        told = optax.sigmoid_binary_cross_entropy(scores.astype(F32), classes)
        return 1.5 * cross_entropy(boxes, sides) + 0.5 * told.mean(), moved

    optimizer = optax.sgd(1e-2, 0.937, True)

    def step(
        weights: Tree, state: Tree, buffers: Tree, images: Any, sides: Any, classes: Any
    ) -> tuple[Tree, Tree, Tree, Any]:
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(
            weights, buffers, images, sides, classes
        )
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, buffers, value

    batch = Shape((128, 3, 640, 640), F32), Shape((128, 4, 8400), I32), Shape((128, 80, 8400), F32)
    return step, (weights, jax.eval_shape(optimizer.init, weights), buffers, *batch), (0, 1, 2)


def sam_fwd() -> Program:
    """segment-anything's ViT-L and its decoder of masks, 32 images of 1024 x 1024 with a box each; bfloat16."""
    import torch
    from segment_anything import sam_model_registry

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sam = sam_model_registry["vit_l"]()

        def forward(self, image: Any, box: Any) -> Any:
            sam = self.sam
            with torch.device("jax"):  # places are counted there
                seen = sam.image_encoder(image[None])
                sparse, dense = sam.prompt_encoder(points=None, boxes=box[None], masks=None)
                places = sam.prompt_encoder.get_dense_pe()
                given = [a.to(seen.dtype) for a in (places, sparse, dense)]
                return sam.mask_decoder(seen, *given, multimask_output=True)

    run, weights, buffers = torch_model(Whole, training=False)

    def masks(weights: Tree, buffers: Tree, images: Any, boxes: Any) -> Any:
        return jax.vmap(lambda *one: run(weights, buffers, *one))(images, boxes)

    batch = Shape((32, 3, 1024, 1024), BF16), Shape((32, 4), F32)
    return masks, (cast(weights), cast(buffers), *batch), ()


PROGRAMS = (  # gemma's last: with the tensorflow that it imports litgpt's ends the process
    lora_train, mamba_train, xlstm_train, separation_train, restoration_train, operator_train, yolo_train, upscale_fwd, sam_fwd,
    griffin_train, penzai_train, evoformer_train, flow_train, atoms_train, timesfm_decode, transport, weather, fluid, gemma_train,
    gemma_decode,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
