"""What training steps of convolutional networks take besides where XLA for TPUs cuts few images into strips (`program.strips`)."""

from collections.abc import Iterator, Mapping

from autoshard.cost.graph import Graph, Node
from autoshard.cost.sizes import Item, Sizes
from autoshard.program import FilterGradient, Lifetime
from autoshard.sharding import TensorType

NO_OVERLAP = 1
_SHARED_OF = 3
"""Columns, of which the images as they are serve one where gradients are made in turn (filters of 2, 3, 5 and 7 columns, libtpu 0.0.52)."""


def strip_items(graph: Graph, node: Node, sizes: Sizes, lives: Mapping[int, Lifetime]) -> Iterator[Item]:
    """Bytes are of every choice of the node, 0 for those that leave a device more images.

    Of a filter's gradient a copy of the images for each of its columns, from when the first of such gradients could be made until this or
    the last is, and what went back to it from when it is there; of a normalization what is summed again, and statistics that are spread;
    what is read as images again.
    """
    if node.space is None:
        return
    kernel, strips = graph.program.kernels[node.kernel], graph.program.strips
    if (gradient := strips.filters.get(kernel.time)) is not None:
        images, back = (
            sizes.strips(type_, layouts, dims, gradient.taps)
            for type_, layouts, dims in zip(
                kernel.shape.travels, node.choices.demands, gradient.operands, strict=True
            )
        )
        begin, end, copies = _copies(gradient, kernel.time, is_last=sizes.filters_last)
        yield Item(begin, end, images * copies, note="images in strips, one for each column of the filter")
        yield Item(kernel.time, end, back, note="gradients in strips")
    for value, type_, layouts in zip(
        kernel.results, kernel.shape.results, node.choices.supplies, strict=False
    ):
        for one in strips.spread.get(value, ()):
            spread = sizes.strips(TensorType(type_.shape, one.dtype), layouts, one.images, one.taps)
            note = "statistics of groups, as large as what they are of"
            yield Item(one.begin, one.end, spread, note=note, value=one.value)
        for one in strips.crossing.get(value, ()):
            stored = sizes.strips(TensorType(type_.shape, one.dtype), layouts, one.images, one.taps)
            yield Item(one.begin, one.end, stored, note="read as images again", value=one.value)
        life = lives.get(value)
        if value in strips.kept and life is not None and not life.is_own_buffer:
            held = sizes.held(value, type_)
            kept = sizes.strips(held, layouts, strips.kept[value], NO_OVERLAP)
            yield Item(life.begin, life.end, kept, note="in strips")


def _copies(gradient: FilterGradient, time: int, *, is_last: bool) -> tuple[int, int, int]:
    """From when to when there are how many copies of the images."""
    if is_last:
        return gradient.first, gradient.end, gradient.taps
    if gradient.pads_strides:
        return time, time + 1, gradient.taps
    return gradient.first, time + 1, gradient.taps - (gradient.taps == _SHARED_OF)
