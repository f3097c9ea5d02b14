"""Models of packages that no other file here imports: torch through torchax, and packages of jax.

Built and lowered as those of `zoo_packages.py` and `zoo_maxtext.py`, on abstract shapes; training steps donate their state.

    PYTHONPATH=FOLDER_OF_PACKAGES:experiments/fidelity python zoo_sixteenth.py FOLDER [NAME...]

What packages import for their hosts (images, sound, data) is replaced by modules without content.

Lowered with jax 0.10.2, flax 0.12.8, optax 0.2.8, torch 2.13.0, torchax 0.0.13, transformers 5.24.0 (Python 3.11, JAX_PLATFORMS=cpu),
and, all installed without their dependencies,

    torchtune 0.6.1, torchscale 0.3.0, perceiver-pytorch 0.11.0, performer-pytorch 1.1.4, nystrom-attention 0.0.14, fair-esm
    2.0.0, conformer 0.3.2, vocos 0.1.0, encodec 0.1.1, deepctr-torch 0.3.0, rtdl-revisiting-models 0.0.2, efficientnet-pytorch
    0.7.1, lightly 1.6.0, vector-quantize-pytorch 1.32.0, jax-resnet 0.0.4, netket 3.23.0, blackjax 1.7.1.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower
from torch import nn
from zoo_maxtext import KEY, hollow, with_statistics
from zoo_torch import ADAMW, cast, images_train, torch_model, training

CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=0.1))


def words(
    run: Any, narrowed: bool = True, of: Callable[[Any], Any] = lambda answer: answer
) -> Callable[..., Any]:
    """The loss of a word each; bfloat16 on float32 where narrowed."""

    def loss(weights: Tree, buffers: Tree, ids: Any, labels: Any) -> Any:
        if narrowed:
            weights, buffers = cast(weights), cast(buffers)
        return cross_entropy(run(weights, buffers, ids, of=of), labels)

    return loss


def torchtune() -> None:
    import transformers  # noqa: F401, which looks whether they are there

    hollow("datasets", "torchvision", "torchdata", "blobfile", "tiktoken", "torchao")


def qwen_torchtune_train() -> Program:
    """torchtune's Qwen 2.5 0.5B, 64 sequences of 1024 tokens; bfloat16 weights, AdamW."""
    torchtune()
    from torchtune.models.qwen2_5 import qwen2_5_0_5b

    run, weights, buffers = torch_model(qwen2_5_0_5b)
    ids = Shape((64, 1024), I32)
    return training(words(run, narrowed=False), ADAMW, cast(weights), cast(buffers), ids, ids)


def llama_lora_torchtune_train() -> Program:
    """torchtune's Llama 3.2 1B, adapters of rank 64 beside all products, 32 sequences of 1024 tokens; bfloat16 weights, AdamW."""
    torchtune()
    from torchtune.models.llama3_2 import lora_llama3_2_1b

    run, weights, buffers = torch_model(
        lambda: lora_llama3_2_1b(
            ["q_proj", "k_proj", "v_proj", "output_proj"],
            apply_lora_to_mlp=True,
            lora_rank=64,
            lora_alpha=128,
        )
    )
    weights = cast(weights)
    adapters = {name: w for name, w in weights.items() if "lora" in name}
    frozen = {name: w for name, w in weights.items() if "lora" not in name}

    def loss(adapters: Tree, others: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(run({**adapters, **others[0]}, others[1], ids), labels)

    ids = Shape((32, 1024), I32)
    return training(loss, ADAMW, adapters, (frozen, cast(buffers)), ids, ids)


def retnet_torchscale_train() -> Program:
    """torchscale's RetNet of 12 layers, 1024 wide, all pairs of words, 64 sequences of 1024; bfloat16 on float32, AdamW, clipped."""
    import transformers  # noqa: F401

    hollow("torchvision")
    from torchscale.architecture.config import RetNetConfig
    from torchscale.architecture.retnet import RetNetDecoder

    config = RetNetConfig(
        vocab_size=32000, decoder_embed_dim=1024, decoder_value_embed_dim=1792, decoder_ffn_embed_dim=1792, decoder_retention_heads=4,
        decoder_layers=12, dropout=0.0, activation_dropout=0.0, drop_path_rate=0.0,
    )  # fmt: skip
    run, weights, buffers = torch_model(lambda: RetNetDecoder(config, embed_tokens=nn.Embedding(32000, 1024)))
    ids = Shape((64, 1024), I32)
    return training(words(run, of=lambda a: a[0]), CLIPPED, weights, buffers, ids, ids)


def text_perceiver_train() -> Program:
    """perceiver-pytorch's PerceiverLM of 12 layers, 256 latents of 1280, 256 texts of 2048 bytes; bfloat16 on float32, AdamW."""
    from perceiver_pytorch import PerceiverLM

    run, weights, buffers = torch_model(
        lambda: PerceiverLM(
            num_tokens=262, dim=768, max_seq_len=2048, depth=12, num_latents=256, latent_dim=1280,
            cross_heads=8, latent_heads=8, cross_dim_head=32, latent_dim_head=64,
        )
    )  # fmt: skip

    ids = Shape((256, 2048), I32)
    return training(words(run), ADAMW, weights, buffers, ids, ids)


def performer_train() -> Program:
    """performer-pytorch's encoder of 12 layers, 768 wide, 32 texts of 4096 tokens, masked words; bfloat16 on float32, AdamW."""
    from performer_pytorch import PerformerLM

    run, weights, buffers = torch_model(
        lambda: PerformerLM(
            num_tokens=32000, max_seq_len=4096, dim=768, depth=12, heads=12, auto_check_redraw=False, tie_embed=True,
            generalized_attention=True,
        )
    )  # fmt: skip
    ids = Shape((32, 4096), I32)
    return training(words(run), ADAMW, weights, buffers, ids, ids)


def nystromformer_train() -> Program:
    """nystrom-attention's Nystromformer of 12 layers, 768 wide, 64 landmarks, 32 texts of 4096 tokens; float32, AdamW."""
    from nystrom_attention import Nystromformer

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(30522, 768), nn.Embedding(4096, 768)
            self.body = Nystromformer(dim=768, depth=12, heads=12, num_landmarks=64)
            self.norm, self.out = nn.LayerNorm(768), nn.Linear(768, 30522)

        def forward(self, ids: Any) -> Any:
            return self.out(self.norm(self.body(self.words(ids) + self.places.weight)))

    run, weights, buffers = torch_model(Words)
    ids = Shape((32, 4096), I32)
    return training(words(run, narrowed=False), ADAMW, weights, buffers, ids, ids)


def protein_esm_train() -> Program:
    """fair-esm's ESM-2 of 150 M, 30 layers, masked residues of 128 proteins of 512; bfloat16 on float32, AdamW."""
    import esm
    from esm.model import esm2

    text = Path(esm2.__file__).read_text()  # whether anything is padded is not known before
    exec(
        compile(text.replace("if not padding_mask.any():", "if False:"), esm2.__file__, "exec"), esm2.__dict__
    )
    run, weights, buffers = torch_model(
        lambda: esm2.ESM2(30, 640, 20, esm.data.Alphabet.from_architecture("ESM-1b"))
    )
    ids = Shape((128, 512), I32)
    return training(words(run, of=lambda a: a["logits"]), ADAMW, weights, buffers, ids, ids)


def conformer_train() -> Program:
    """conformer's 16 layers, 512 wide, 128 utterances of 512 frames of 80 bands, a sound each; bfloat16 on float32, AdamW."""
    from conformer import Conformer

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(80, 512), nn.Linear(512, 1024)
            self.body = Conformer(512, depth=16, dim_head=64, heads=8, conv_kernel_size=31)

        def forward(self, x: Any) -> Any:
            return self.out(self.body(self.into(x)))

    run, weights, buffers = torch_model(Speech)

    def loss(weights: Tree, buffers: Tree, frames: Any, labels: Any) -> Any:
        return cross_entropy(run(cast(weights), cast(buffers), frames.astype(BF16)), labels)

    return training(loss, ADAMW, weights, buffers, Shape((128, 512, 80), F32), Shape((128, 512), I32))


def spectrum(x: Any, size: int, hop: int) -> Any:
    """Magnitudes of frames of sounds: (sounds, time) to (sounds, frames, size / 2 + 1)."""
    count = (x.shape[-1] - size) // hop + 1
    frames = x[:, jnp.arange(count)[:, None] * hop + jnp.arange(size)]
    return jnp.abs(jnp.fft.rfft(frames * jnp.hanning(size)) + 1e-5)


def vocos_train() -> Program:
    """Vocos of 8 layers, 512 wide, with its inverse of Fourier's transform, 1024 sounds of 64 frames; float32, AdamW."""
    hollow("torchaudio")
    import importlib.util
    import sys
    import types

    found = importlib.util.find_spec("vocos")  # whose __init__ asks for more
    sys.modules["vocos"] = types.ModuleType("vocos")
    sys.modules["vocos"].__path__ = list(found.submodule_search_locations)
    from vocos import spectral_ops

    text = Path(spectral_ops.__file__).read_text()  # what is not known before
    text = text.replace("assert (window_envelope > 1e-11).all()", "")
    exec(compile(text, spectral_ops.__file__, "exec"), spectral_ops.__dict__)
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    class Vocoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = VocosBackbone(100, 512, 1536, 8), ISTFTHead(512, 1024, 256, "same")

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x))

    run, weights, buffers = torch_model(Vocoder)

    def loss(weights: Tree, buffers: Tree, bands: Any, sounds: Any, mel: Any) -> Any:
        made = run(weights, buffers, bands)
        a, b = (jnp.log(spectrum(s, 1024, 256) @ mel + 1e-5) for s in (made, sounds[:, : made.shape[-1]]))
        return jnp.abs(a - b).mean()

    return training(
        loss,
        ADAMW,
        weights,
        buffers,
        Shape((1024, 100, 64), F32),
        Shape((1024, 16384), F32),
        Shape((513, 100), F32),
    )


def encodec_train() -> Program:
    """EnCodec's 24 kHz encoder, 8 codebooks and decoder, 256 sounds of a second, in time and in spectra; float32, Adam."""
    hollow("torchaudio")
    from encodec import EncodecModel
    from encodec.quantization import core_vq

    core_vq.EuclideanCodebook.init_embed_ = lambda self, data: None  # as after the first step

    class Codec(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codec = EncodecModel._get_model([6.0], 24000, 1, causal=True, model_norm="weight_norm")
            self.codec.quantizer.eval()

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.codec.quantizer.eval()
            return self

        def forward(self, x: Any) -> Any:
            hidden = self.codec.encoder(x)
            coded = self.codec.quantizer.vq(hidden.detach(), n_q=8)[0]
            kept = hidden + (coded - hidden).detach()
            return self.codec.decoder(kept)[..., : x.shape[-1]], ((hidden - coded.detach()) ** 2).mean()

    run, weights, buffers = torch_model(Codec)

    def loss(weights: Tree, buffers: Tree, sounds: Any) -> Any:
        made, committed = run(weights, buffers, sounds)
        total = 0.1 * jnp.abs(made - sounds).mean() + committed
        for size in (512, 1024, 2048):
            a, b = (spectrum(s[:, 0], size, size // 4) for s in (made, sounds))
            total += jnp.abs(a - b).mean() + jnp.sqrt(((jnp.log(a) - jnp.log(b)) ** 2).mean())
        return total

    return training(loss, optax.adam(3e-4, b1=0.5, b2=0.9), weights, buffers, Shape((256, 1, 24000), F32))


def deepctr(model: str, **options: Any) -> Program:
    """26 fields of 200,000 values, embeddings of 32, and 13 numbers; 65536 rows, float32, Adam."""
    import deepctr_torch.models
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    fields = [SparseFeat(f"C{i}", 200_000, 32) for i in range(26)] + [
        DenseFeat(f"I{i}", 1) for i in range(13)
    ]
    run, weights, buffers = torch_model(
        lambda: getattr(deepctr_torch.models, model)(fields, fields, device="meta", **options)
    )

    def loss(weights: Tree, buffers: Tree, rows: Any, labels: Any) -> Any:
        p = jnp.clip(run(weights, buffers, rows)[:, 0], 1e-6, 1 - 1e-6)
        return -(labels * jnp.log(p) + (1 - labels) * jnp.log(1 - p)).mean()

    rows = 65536
    return training(loss, optax.adam(1e-3), weights, buffers, Shape((rows, 39), F32), Shape((rows,), F32))


def dcn_deepctr_train() -> Program:
    """deepctr-torch's DCN-Mix, 3 crossings by 4 experts, dense layers of 1024; as `deepctr` says."""
    return deepctr("DCNMix", cross_num=3, dnn_hidden_units=(1024, 1024, 512), low_rank=64)


def autoint_deepctr_train() -> Program:
    """deepctr-torch's AutoInt, 3 layers of attention between fields, dense layers of 512; as `deepctr` says."""
    return deepctr("AutoInt", att_layer_num=3, att_head_num=4, dnn_hidden_units=(512, 512))


def table_rtdl_train() -> Program:
    """rtdl's FT-Transformer of 6 blocks, 384 wide, 13 numbers and 26 kinds, 32768 rows; float32, AdamW."""
    from rtdl_revisiting_models import FTTransformer

    options = {**FTTransformer.get_default_kwargs(6), "attention_dropout": 0.0, "ffn_dropout": 0.0}
    run, weights, buffers = torch_model(
        lambda: FTTransformer(n_cont_features=13, cat_cardinalities=[10_000] * 26, d_out=1, **options)
    )

    def loss(weights: Tree, buffers: Tree, numbers: Any, kinds: Any, labels: Any) -> Any:
        return optax.sigmoid_binary_cross_entropy(run(weights, buffers, numbers, kinds)[:, 0], labels).mean()

    rows = 32768
    return training(
        loss, optax.adamw(1e-4, weight_decay=1e-5), weights, buffers,
        Shape((rows, 13), F32), Shape((rows, 26), I32), Shape((rows,), F32),
    )  # fmt: skip


def efficientnet_train() -> Program:
    """efficientnet-pytorch's B4, 256 images of 380 x 380; bfloat16 on float32, RMSProp with momentum."""
    from efficientnet_pytorch import EfficientNet

    def build() -> Any:
        model = EfficientNet.from_name("efficientnet-b4", dropout_rate=0.0, drop_connect_rate=0.0)
        model.set_swish(memory_efficient=False)
        return model

    run, weights, buffers = torch_model(build)
    return images_train(
        run, weights, buffers, Shape((256, 3, 380, 380), F32), optax.rmsprop(0.016, 0.9, 1e-3, momentum=0.9)
    )


def barlow_lightly_train() -> Program:
    """lightly's ResNet 18 for small images, its head and loss of Barlow Twins, 2048 pairs of 32 x 32; bfloat16 on float32, momentum."""
    import transformers  # noqa: F401

    hollow("torchvision")
    from lightly.loss import BarlowTwinsLoss
    from lightly.models import ResNetGenerator
    from lightly.models.modules.heads import BarlowTwinsProjectionHead

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *list(ResNetGenerator("resnet-18").children())[:-1], nn.AdaptiveAvgPool2d(1)
            )
            self.head, self.loss = BarlowTwinsProjectionHead(512, 2048, 2048), BarlowTwinsLoss()

        def forward(self, a: Any, b: Any) -> Any:
            a, b = (self.head(self.body(x).flatten(1)) for x in (a, b))
            return self.loss(a, b)

    run, weights, buffers = torch_model(Twins)

    def loss(weights: Tree, buffers: Tree, a: Any, b: Any) -> Any:
        return run(cast(weights), cast(buffers), a.astype(BF16), b.astype(BF16)).astype(F32)

    images = Shape((2048, 3, 32, 32), F32)
    return training(loss, optax.sgd(0.06, 0.9), weights, buffers, images, images)


def fsq_vectorquantize_train() -> Program:
    """A convolutional autoencoder with vector-quantize-pytorch's FSQ of 6 numbers, 128 images, 256 x 256; bfloat16 on float32, Adam."""
    from vector_quantize_pytorch import FSQ

    def block(a: int, b: int) -> Any:
        return nn.Sequential(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))

    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [128, 128, 256, 512]
            down, up = [nn.Conv2d(3, 128, 3, padding=1)], [nn.Conv2d(6, 512, 3, padding=1)]
            for a, b in itertools.pairwise(sizes):
                down += [block(a, b), block(b, b), nn.Conv2d(b, b, 3, 2, 1)]
            for b, a in zip(sizes[::-1], sizes[-2::-1], strict=False):
                up += [block(b, b), block(b, a), nn.Upsample(scale_factor=2), nn.Conv2d(a, a, 3, padding=1)]
            self.down = nn.Sequential(*down, block(512, 6))
            self.up = nn.Sequential(*up, block(128, 3))
            self.codes = FSQ(levels=[8, 8, 8, 5, 5, 5])

        def forward(self, x: Any) -> Any:
            codes, _ = self.codes(self.down(x))
            return self.up(codes)

    run, weights, buffers = torch_model(Coder)

    def loss(weights: Tree, buffers: Tree, images: Any) -> Any:
        made = run(cast(weights), buffers, images.astype(BF16))
        return jnp.abs(made.astype(F32) - images).mean()

    return training(loss, optax.adam(1e-4), weights, buffers, Shape((128, 3, 256, 256), F32))


def resnest_jaxresnet_train() -> Program:
    """jax-resnet's ResNeSt 50, 512 images; float32, SGD with momentum."""
    from jax_resnet import ResNeSt50

    model = ResNeSt50(n_classes=1000)
    images, labels = Shape((512, 224, 224, 3), F32), Shape((512,), I32)
    variables = jax.eval_shape(model.init, KEY, images)
    return with_statistics(model.apply, variables, optax.sgd(0.1, 0.9), images, labels)


def ising_netket_train() -> Program:
    """netket's RBM of 8 units a spin, 4096 samples of 16 x 16 spins, local energies of its Ising operator, a step of VMC; float32, SGD."""
    import netket as nk

    graph = nk.graph.Square(16)
    hilbert = nk.hilbert.Spin(0.5, 256)
    operator = nk.operator.IsingJax(hilbert, graph=graph, h=3.0, dtype=F32)
    model = nk.models.RBM(alpha=8, param_dtype=F32)
    spins = Shape((4096, 256), F32)
    weights = jax.eval_shape(model.init, KEY, spins)["params"]
    optimizer = optax.sgd(0.01)

    def step(weights: Tree, state: Tree, spins: Any) -> Any:
        def told(weights: Tree, spins: Any) -> Any:
            return model.apply({"params": weights}, spins)

        others, elements = operator.get_conn_padded(spins)
        here = told(weights, spins)
        local = (elements * jnp.exp(told(weights, others) - here[:, None])).sum(-1)
        mean = local.mean()
        _, back = jax.vjp(lambda w: told(w, spins), weights)
        (gradients,) = back(2 * (local - mean) / len(local))
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, mean, local.var()

    return step, (weights, jax.eval_shape(optimizer.init, weights), spins), (0, 1)


def sgld_blackjax_train() -> Program:
    """blackjax's stochastic gradients with friction (SGHMC, 4 leaps) of a network of 6 layers 4096 wide, 65536 rows; float32."""
    import blackjax

    sizes = [784, *[4096] * 6, 10]
    weights = [{"w": Shape((a, b), F32), "b": Shape((b,), F32)} for a, b in itertools.pairwise(sizes)]

    def of_posterior(weights: Tree, batch: Any) -> Any:
        x, labels = batch
        for mine in weights[:-1]:
            x = jax.nn.relu(x @ mine["w"] + mine["b"])
        x = x @ weights[-1]["w"] + weights[-1]["b"]
        prior = sum((w**2).sum() for w in jax.tree.leaves(weights))
        return -cross_entropy(x, labels) * 1e6 - prior / 2

    sampler = blackjax.sghmc(jax.grad(of_posterior), num_integration_steps=4)

    def step(key: Any, weights: Tree, batch: Any) -> Any:
        return sampler.step(key, weights, batch, 1e-6)

    rows = 65536
    return step, (KEY, weights, (Shape((rows, 784), F32), Shape((rows,), I32))), (1,)


PROGRAMS = (
    qwen_torchtune_train, llama_lora_torchtune_train, retnet_torchscale_train, text_perceiver_train, performer_train,
    nystromformer_train, protein_esm_train, conformer_train, vocos_train, encodec_train, dcn_deepctr_train, autoint_deepctr_train,
    table_rtdl_train, efficientnet_train, barlow_lightly_train, fsq_vectorquantize_train, resnest_jaxresnet_train, ising_netket_train,
    sgld_blackjax_train,
)  # fmt: skip

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
