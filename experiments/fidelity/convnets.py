"""One convolutional network in many ways: blocks, norms, types, layouts and what it is trained for.

    JAX_PLATFORMS=cpu python experiments/fidelity/convnets.py FOLDER [NAME...]

1024 images of 224x224 in four stages of two blocks, 64 to 512 channels, bfloat16 on float32 weights, momentum, state donated; audio, video,
decoders and pairs beside it. Lowered with jax 0.10.2 and optax 0.2.8 on abstract shapes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Reader, Tree, lower, named

MOMENTUM = optax.sgd(0.1, momentum=0.9)
WIDTHS, DEPTH, CLASSES = (64, 128, 256, 512), 2, 1000
LETTERS = "DHW"


@dataclass(frozen=True)
class Net:
    """`block`: see `BLOCKS`; `norm`: see `normed`; `first`: of the channels in the text of shapes; `stem`, `down`: how images shrink."""

    block: str = "basic"
    norm: str = "batch"
    act: Callable[[Any], Any] = jax.nn.relu
    stem: str = "pooled"
    down: str = "strided"
    dtype: Any = BF16
    first: bool = False
    made_again: bool = False
    batch: int = 1024
    size: tuple[int, ...] = (224, 224)
    widths: tuple[int, ...] = WIDTHS
    is_training: bool = True

    @property
    def axis(self) -> int:
        return 1 if self.first else len(self.size) + 1

    @property
    def spatial(self) -> tuple[int, ...]:
        return tuple(range(2, len(self.size) + 2) if self.first else range(1, len(self.size) + 1))

    def shape(self, size: tuple[int, ...], channels: int) -> tuple[int, ...]:
        return (self.batch, channels, *size) if self.first else (self.batch, *size, channels)


class Maker(Reader):
    """Of weights by the order in which they are read; notes the means and variances of batches that it meets."""

    def __init__(self, weights: Tree | None = None, count: int = 0) -> None:
        super().__init__(weights)
        self.count, self.seen = count, dict[str, Any]()

    def next(self, *shape: int) -> Any:
        self.count += 1
        return self(f"w{self.count - 1:03d}", *shape)


def conv(
    net: Net,
    w: Maker,
    x: Any,
    channels: int,
    size: int = 3,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
) -> Any:
    many = len(net.size)
    letters = LETTERS[-many:]
    text = ("NC" + letters, "OI" + letters) if net.first else ("N" + letters + "C", letters + "IO")
    window = (size,) * many
    inner = x.shape[net.axis] // groups
    kernel = w.next(channels, inner, *window) if net.first else w.next(*window, inner, channels)
    return lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        (stride,) * many,
        "SAME",
        rhs_dilation=(dilation,) * many,
        dimension_numbers=(text[0], text[1], text[0]),
        feature_group_count=groups,
    )


def grown(net: Net, w: Maker, x: Any, channels: int) -> Any:
    """Twice as large by a transposed convolution."""
    many = len(net.size)
    letters = LETTERS[-many:]
    text = "N" + letters + "C"
    kernel = w.next(*(4,) * many, x.shape[-1], channels)
    return lax.conv_transpose(
        x, kernel.astype(x.dtype), (2,) * many, "SAME", dimension_numbers=(text, letters + "IO", text)
    )


def channelwise(net: Net, vector: Any, x: Any) -> Any:
    return vector.reshape([-1 if axis == net.axis else 1 for axis in range(x.ndim)])


def normed(net: Net, w: Maker, x: Any) -> Any:
    if net.norm == "none":
        return x + channelwise(net, w.next(x.shape[net.axis]), x).astype(x.dtype)
    channels, wide = x.shape[net.axis], x.astype(F32)
    scale, bias = (channelwise(net, w.next(channels), x) for _ in range(2))
    if net.norm == "batch":
        axes = (0, *net.spatial)
        if net.is_training:
            mean = wide.mean(axes)
            variance = (wide * wide).mean(axes) - mean * mean
            w.seen[f"n{len(w.seen):03d}"] = (mean, variance)
        else:
            mean, variance = w.next(channels), w.next(channels)
        mean, variance = channelwise(net, mean, x), channelwise(net, variance, x)
    elif net.norm == "group":
        groups = 32
        shape = list(x.shape)
        shape[net.axis : net.axis + 1] = [groups, channels // groups]
        split = wide.reshape(shape)
        axes = tuple(axis for axis in range(1, len(shape)) if axis != net.axis)
        mean, variance = split.mean(axes, keepdims=True), split.var(axes, keepdims=True)
        found = ((split - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        return (found * scale + bias).astype(x.dtype)
    else:
        axes = net.axis if net.norm == "layer" else net.spatial
        mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    return ((wide - mean) * (lax.rsqrt(variance + 1e-5) * scale) + bias).astype(x.dtype)


def pooled(net: Net, x: Any, size: int, kind: str) -> Any:
    window = [size if axis in net.spatial else 1 for axis in range(x.ndim)]
    strides = [2 if axis in net.spatial else 1 for axis in range(x.ndim)]
    if kind == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")
    return lax.reduce_window(x, 0.0, lax.add, window, strides, "SAME") / size ** len(net.size)


def squeezed(net: Net, w: Maker, x: Any) -> Any:
    channels = x.shape[net.axis]
    found = x.astype(F32).mean(net.spatial).astype(x.dtype)
    found = jax.nn.relu(found @ w.next(channels, channels // 4).astype(x.dtype))
    found = jax.nn.sigmoid(found @ w.next(channels // 4, channels).astype(x.dtype))
    return x * found.reshape([size if axis in (0, net.axis) else 1 for axis, size in enumerate(x.shape)])


def shortcut(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    if stride == 1 and x.shape[net.axis] == channels:
        return x
    if stride > 1 and net.down == "pooled":
        x, stride = pooled(net, x, 2, "mean"), 1
    return normed(net, w, conv(net, w, x, channels, 1, stride))


def basic(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    h = net.act(normed(net, w, conv(net, w, x, channels, 3, stride)))
    h = normed(net, w, conv(net, w, h, channels))
    return net.act(h + shortcut(net, w, x, channels, stride))


def before(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    h = net.act(normed(net, w, x))
    straight = x if stride == 1 and x.shape[net.axis] == channels else conv(net, w, h, channels, 1, stride)
    h = net.act(normed(net, w, conv(net, w, h, channels, 3, stride)))
    return conv(net, w, h, channels) + straight


def bottleneck(
    net: Net, w: Maker, x: Any, channels: int, stride: int, groups: int = 1, squeezes: bool = False
) -> Any:
    h = net.act(normed(net, w, conv(net, w, x, channels, 1)))
    h = net.act(normed(net, w, conv(net, w, h, channels, 3, stride, groups)))
    h = normed(net, w, conv(net, w, h, 4 * channels, 1))
    h = squeezed(net, w, h) if squeezes else h
    return net.act(h + shortcut(net, w, x, 4 * channels, stride))


def grouped(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    return bottleneck(net, w, x, channels, stride, 32)


def excited(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    return bottleneck(net, w, x, channels, stride, squeezes=True)


def inverted(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    inner = 4 * x.shape[net.axis]
    h = net.act(normed(net, w, conv(net, w, x, inner, 1)))
    h = net.act(normed(net, w, conv(net, w, h, inner, 3, stride, inner)))
    h = normed(net, w, conv(net, w, squeezed(net, w, h), channels, 1))
    return h + x if h.shape == x.shape else h


def fused(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    h = net.act(normed(net, w, conv(net, w, x, 4 * x.shape[net.axis], 3, stride)))
    h = normed(net, w, conv(net, w, h, channels, 1))
    return h + x if h.shape == x.shape else h


def next_block(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    if stride > 1 or x.shape[net.axis] != channels:
        x = conv(net, w, normed(net, w, x), channels, 2, stride)
    h = normed(net, w, conv(net, w, x, channels, 7, 1, channels))
    h = net.act(conv(net, w, h, 4 * channels, 1))
    return x + conv(net, w, h, channels, 1) * channelwise(net, w.next(channels), x).astype(x.dtype)


def dense(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    if stride > 1:
        x = pooled(net, conv(net, w, net.act(normed(net, w, x)), channels, 1), 2, "mean")
    for _ in range(3):
        h = conv(net, w, net.act(normed(net, w, x)), 128, 1)
        x = jnp.concatenate([x, conv(net, w, net.act(normed(net, w, h)), 32)], net.axis)
    return x


def plain(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    x = net.act(normed(net, w, conv(net, w, x, channels)))
    return pooled(net, x, 2, "max") if stride > 1 else x


BLOCKS = {
    each.__name__: each
    for each in (basic, before, bottleneck, grouped, excited, inverted, fused, next_block, dense, plain)
}


def run(net: Net, w: Maker, x: Any, channels: int, stride: int) -> Any:
    block = BLOCKS[net.block]
    if not net.made_again or w.weights is None:
        return block(net, w, x, channels, stride)
    first = w.count
    probe = Maker(count=first)
    jax.eval_shape(lambda x: block(net, probe, x, channels, stride), x)
    w.count = probe.count

    @jax.checkpoint
    def again(weights: Tree, x: Any) -> Any:
        mine = Maker(weights, first)
        mine.seen = dict.fromkeys(w.seen)
        out = block(net, mine, x, channels, stride)
        return out, {name: one for name, one in mine.seen.items() if one is not None}

    x, seen = again({name: w.weights[name] for name in probe.shapes}, x)
    w.seen.update(seen)
    return x


def stem(net: Net, w: Maker, x: Any) -> Any:
    if net.stem == "patches":
        return normed(net, w, conv(net, w, x, net.widths[0], 4, 4))
    if net.stem == "small":
        return net.act(normed(net, w, conv(net, w, x, net.widths[0], 3, 2)))
    return pooled(net, net.act(normed(net, w, conv(net, w, x, net.widths[0], 7, 2))), 3, "max")


def pyramid(net: Net, w: Maker, x: Any) -> list[Any]:
    """What each stage makes."""
    x, found = stem(net, w, x), []
    for stage, channels in enumerate(net.widths):
        for number in range(DEPTH):
            x = run(net, w, x, channels, 2 if stage and not number else 1)
        found.append(x)
    return found


def classified(net: Net, w: Maker, x: Any, *, flat: bool = False) -> Any:
    x = pyramid(net, w, x)[-1]
    x = x.reshape(len(x), -1) if flat else x.astype(F32).mean(net.spatial).astype(x.dtype)
    return x @ w.next(x.shape[1], CLASSES).astype(x.dtype)


def labelled(z: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(z.astype(F32), labels).mean()


def squares(found: Any, target: Any) -> Any:
    return jnp.mean((found.astype(F32) - target.astype(F32)) ** 2)


def upsampled(net: Net, x: Any, how: str) -> Any:
    return jax.image.resize(
        x, net.shape(tuple(2 * x.shape[axis] for axis in net.spatial), x.shape[net.axis]), how
    )


def attended(net: Net, w: Maker, x: Any) -> Any:
    """Self-attention over all places, one head."""
    channels = x.shape[-1]
    h = normed(net, w, x).reshape(len(x), -1, channels)
    q, k, v = (h @ w.next(channels, channels).astype(x.dtype) for _ in range(3))
    p = jax.nn.softmax((jnp.einsum("bqc,bkc->bqk", q, k) / channels**0.5).astype(F32), -1)
    mixed = jnp.einsum("bqk,bkc->bqc", p.astype(x.dtype), v) @ w.next(channels, channels).astype(x.dtype)
    return x + mixed.reshape(x.shape)


def decoded(net: Net, w: Maker, levels: list[Any], how: str) -> Any:
    """Back to a quarter of the image, each level joined with what went down."""
    x = levels[-1]
    for level in levels[-2::-1]:
        channels = level.shape[net.axis]
        x = grown(net, w, x, channels) if how == "grown" else conv(net, w, upsampled(net, x, how), channels)
        x = basic(net, w, jnp.concatenate([x, level], net.axis), channels, 1)
    return x


def segmented(net: Net, w: Maker, x: Any, labels: Any, *, how: str) -> Any:
    z = conv(net, w, decoded(net, w, pyramid(net, w, x), how), 32, 1)
    z = upsampled(net, upsampled(net, z, "bilinear"), "bilinear")
    return labelled(jnp.moveaxis(z, net.axis, -1), labels)


def denoised(net: Net, w: Maker, x: Any, times: Any) -> Any:
    """A U-Net on noised images, times in every block."""
    angles = times[:, None] * jnp.exp(-jnp.arange(128) / 14)
    t = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).astype(x.dtype)
    t = jax.nn.silu(t @ w.next(256, 512).astype(x.dtype))

    def block(x: Any, channels: int) -> Any:
        h = conv(net, w, jax.nn.silu(normed(net, w, x)), channels)
        h = h + (t @ w.next(512, channels).astype(x.dtype))[:, None, None]
        h = conv(net, w, jax.nn.silu(normed(net, w, h)), channels)
        return h + (x if x.shape == h.shape else conv(net, w, x, channels, 1))

    noise = x
    x = conv(net, w, x, net.widths[0])
    levels = []
    for stage, channels in enumerate(net.widths):
        x = conv(net, w, x, channels, 3, 2) if stage else x
        for _ in range(DEPTH):
            x = block(x, channels)
            levels.append(x)
    x = attended(net, w, x)
    for stage, channels in reversed(list(enumerate(net.widths))):
        for _ in range(DEPTH):
            x = block(jnp.concatenate([x, levels.pop()], net.axis), channels)
        x = conv(net, w, upsampled(net, x, "nearest"), channels) if stage else x
    return squares(conv(net, w, jax.nn.silu(normed(net, w, x)), 3), noise)


def rebuilt(net: Net, w: Maker, x: Any) -> Any:
    """An autoencoder by transposed convolutions."""
    image = x
    x = conv(net, w, pyramid(net, w, x)[-1], 8, 1)
    for channels in net.widths[::-1]:
        x = net.act(normed(net, w, grown(net, w, x, channels)))
    return squares(grown(net, w, x, 3), image)


def enlarged(net: Net, w: Maker, x: Any, target: Any) -> Any:
    """Super-resolution by a depth-to-space of plain residual blocks."""
    x = conv(net, w, x, 64)
    start = x
    for _ in range(8):
        x = x + conv(net, w, net.act(conv(net, w, x, 64)), 64)
    x = conv(net, w, x + start, 3 * 16)
    count, height, width, _ = x.shape
    x = x.reshape(count, height, width, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5)
    return squares(x.reshape(count, 4 * height, 4 * width, 3), target)


def detected(net: Net, w: Maker, x: Any, labels: Any) -> Any:
    """A feature pyramid with one head over all levels, focal loss."""
    levels = [conv(net, w, level, 256, 1) for level in pyramid(net, w, x)]
    for one in range(len(levels) - 2, -1, -1):
        levels[one] = levels[one] + upsampled(net, levels[one + 1], "nearest")
    first, found = w.count, []
    for level in levels:
        w.count = first
        for _ in range(2):
            level = net.act(conv(net, w, level, 256))
        found.append(conv(net, w, level, 80).reshape(len(x), -1, 80))
    z = jnp.concatenate(found, 1).astype(F32)
    return optax.sigmoid_focal_loss(z, jax.nn.one_hot(labels, 80)).mean()


def contrasted(net: Net, w: Maker, x: Any, y: Any) -> Any:
    """Two views of each image against all others."""
    first, z = w.count, []
    for view in (x, y):
        w.count = first
        z.append(classified(net, w, view).astype(F32))
    both = jnp.concatenate([one / jnp.linalg.norm(one, axis=-1, keepdims=True) for one in z])
    scores = both @ both.T / 0.1 - 1e9 * jnp.eye(len(both))
    return labelled(scores, jnp.roll(jnp.arange(len(both)), len(x)))


def waved(net: Net, w: Maker, x: Any, labels: Any) -> Any:
    """Dilated gated convolutions over time, skips added up."""
    x = conv(net, w, x, 128, 1)
    total = 0
    for number in range(8):
        h = conv(net, w, x, 256, 3, dilation=2**number)
        h = jnp.tanh(h[..., :128]) * jax.nn.sigmoid(h[..., 128:])
        total, x = total + conv(net, w, h, 128, 1), x + conv(net, w, h, 128, 1)
    z = conv(net, w, net.act(conv(net, w, net.act(total), 256, 1)), 256, 1)
    return labelled(z, labels)


def noted(net: Net, loss: Callable[..., Any], *inputs: Any) -> Maker:
    """What the loss reads, and the means and variances that it meets."""
    maker = Maker()

    def told(*inputs: Any) -> Any:
        return loss(net, maker, *inputs), maker.seen

    jax.eval_shape(told, *inputs)
    return maker


def image(net: Net, channels: int = 3) -> Shape:
    return Shape(net.shape(net.size, channels), net.dtype)


def trained(
    net: Net, loss: Callable[..., Any], *inputs: Any, optimizer: optax.GradientTransformation = MOMENTUM
) -> Program:
    """Running means beside the weights where the batch is normed."""
    maker = noted(net, loss, *inputs)
    running = {name: (Shape(mean.shape, F32),) * 2 for name, (mean, _) in maker.seen.items()}

    def step(state: Any, *inputs: Any) -> Any:
        w, moments, means = state

        def told(w: Tree) -> Any:
            mine = Maker(w)
            return loss(net, mine, *inputs), mine.seen

        (found, seen), gradients = jax.value_and_grad(told, has_aux=True)(w)
        updates, moments = optimizer.update(gradients, moments, w)
        means = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, means, seen)
        return (optax.apply_updates(w, updates), moments, means), found

    made = maker.shapes
    return step, ((made, jax.eval_shape(optimizer.init, made), running), *inputs), (0,)


def classifier(net: Net, *, flat: bool = False, **others: Any) -> Program:
    def loss(net: Net, w: Maker, x: Any, labels: Any) -> Any:
        return labelled(classified(net, w, x, flat=flat), labels)

    return trained(net, loss, image(net), Shape((net.batch,), I32), **others)


def inference(net: Net) -> Program:
    net = replace(net, is_training=False)

    def shares(w: Tree, x: Any) -> Any:
        return jax.nn.softmax(classified(net, Maker(w), x).astype(F32))

    return shares, (noted(net, classified, image(net)).shapes, image(net)), ()


def segmenter(net: Net, how: str) -> Program:
    return trained(net, partial(segmented, how=how), image(net), Shape((net.batch, *net.size), I32))


NET = Net()
NORMS = ("none", "group", "layer", "instance")
NETS: dict[str, Net] = {
    **{block: Net(block) for block in ("basic", "before", "bottleneck", "grouped", "excited", "plain")},
    "inverted": Net("inverted", act=jax.nn.hard_swish, stem="small"),
    "fused": Net("fused", act=jax.nn.silu, stem="small"),
    "next": Net("next_block", norm="layer", act=jax.nn.gelu, stem="patches"),
    "next_batch": Net("next_block", act=jax.nn.gelu, stem="patches"),
    "dense": Net("dense"),
    "dense_few": Net("dense", batch=128),
    "dense_many": Net("dense", batch=4096, size=(96, 96)),
    **{f"{norm}_normed": Net(norm=norm) for norm in NORMS},
    "pooled_down": Net(down="pooled"),
    "silu": Net(act=jax.nn.silu),
    "wide": Net(dtype=F32),
    "wide_bottleneck": Net("bottleneck", dtype=F32),
    "first": Net(first=True),
    "first_group": Net("before", norm="group", first=True),
    "again": Net("bottleneck", made_again=True),
    "few": Net(batch=128),
    "one": Net(batch=16, size=(512, 512)),
    "odd": Net("bottleneck", batch=512, size=(200, 200), widths=(48, 96, 200, 400)),
    "video": Net("bottleneck", batch=64, size=(16, 112, 112)),
}


FEW = ("basic", "before", "bottleneck", "inverted", "next", "dense", "plain", "group_normed", "wide", "silu")


def programs() -> Iterator[Callable[[], Program]]:
    for name, net in NETS.items():
        yield named(name, classifier, net=net)
    yield named("flat", classifier, net=Net("plain"), flat=True)
    yield named("adamw", classifier, net=Net("bottleneck"), optimizer=optax.adamw(1e-3))
    for name in (
        "basic",
        "bottleneck",
        "inverted",
        "next",
        "dense",
        "dense_few",
        "dense_many",
        "wide",
        "first",
    ):
        yield named(f"{name}_forward", inference, net=NETS[name])
    for how in ("grown", "nearest", "bilinear"):
        yield named(f"segment_{how}", segmenter, net=NET, how=how)
    for name in FEW:
        for images, batch in (("one", 16), ("two", 32), ("four", 64)):
            yield named(f"{name}_{images}", classifier, net=replace(NETS[name], batch=batch))
    for images, batch in (("one", 16), ("two", 32), ("four", 64)):
        yield named(f"segment_{images}", segmenter, net=replace(NET, batch=batch), how="grown")
    few = Net(norm="group", act=jax.nn.silu, batch=256, size=(64, 64))
    yield named("denoise", trained, few, denoised, image(few), Shape((few.batch,), F32))
    yield named("rebuild", trained, NET, rebuilt, image(NET))
    small = Net(norm="none", batch=256, size=(64, 64))
    large = Shape((small.batch, 256, 256, 3), BF16)
    yield named("enlarge", trained, small, enlarged, image(small), large)
    half = Net(batch=256, size=(256, 256))
    places = sum((half.size[0] // 2**level) ** 2 for level in range(2, 6))
    yield named("detect", trained, half, detected, image(half), Shape((half.batch, places), I32))
    yield named("contrast", trained, NET, contrasted, image(NET), image(NET))
    sound = Net(norm="none", batch=256, size=(16384,))
    yield named("waves", trained, sound, waved, image(sound, 1), Shape((sound.batch, *sound.size), I32))


if __name__ == "__main__":
    lower(__doc__, [*programs()], compressed=True, for_tpu=True)
