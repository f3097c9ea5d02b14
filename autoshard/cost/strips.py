"""What training steps of convolutional networks take besides where XLA for TPUs cuts few images into strips (`program.strips`)."""

from collections.abc import Iterator, Mapping

from autoshard.cost.graph import Graph, Node
from autoshard.cost.sizes import Item, Sizes
from autoshard.program import Lifetime
from autoshard.sharding import TensorType

NO_OVERLAP = 1


def strip_items(graph: Graph, node: Node, sizes: Sizes, lives: Mapping[int, Lifetime]) -> Iterator[Item]:
    """Bytes are of every choice of the node, 0 for those that leave a device more images.

    Of a filter's gradient a copy of the images for each of its columns, from when the first of such gradients could be made until the last
    is, and what went back to it from when it is there; of a normalization what is summed again, and statistics that are spread.
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
        shifted = images * gradient.taps
        yield Item(
            gradient.first, gradient.end, shifted, note="images in strips, one for each column of the filter"
        )
        yield Item(kernel.time, gradient.end, back, note="gradients in strips")
    for value, type_, layouts in zip(
        kernel.results, kernel.shape.results, node.choices.supplies, strict=False
    ):
        for one in strips.spread.get(value, ()):
            spread = sizes.strips(TensorType(type_.shape, one.dtype), layouts, one.images, one.taps)
            note = "statistics of groups, as large as what they are of"
            yield Item(one.begin, one.end, spread, note=note, value=one.value)
        life = lives.get(value)
        if value in strips.kept and life is not None and not life.is_own_buffer:
            held = sizes.held(value, type_)
            kept = sizes.strips(held, layouts, strips.kept[value], NO_OVERLAP)
            yield Item(life.begin, life.end, kept, note="in strips")
