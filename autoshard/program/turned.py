"""Hidden values that are stored beside what they are made of, as what goes back to them lies otherwise; and sums that are there twice.

The gradient of a product's weights reads what the product read and what goes back to what it made, and repeats elementwise work on what it
reads only where both lie alike. Beside the lanes XLA:TPU has, of what a product makes, that of the two other dimensions which takes less to
be padded to full lanes (of 104 to 128 images of 196 patches the images; of 8 to 96, of 136 and of images of 256 patches these). What goes
back lies as residual sums do, and where some of their branches are transposed (an MLP-Mixer's, which mixes patches) patches are there in
sums whatever a product would have. Where the two differ each hidden value of the branches that are not transposed is stored for the
backward pass, whatever function it is, beside its operand and an error function (libtpu 0.0.52, v5e 8x8, v5p 4x4x4, some thirty mixers of 4
to 32 blocks: 1.27 to 1.80 of what is said otherwise). Such sums are kept in both orders. From sixteen transposed branches on, if
normalizations read the sums narrow and widened, as torch's do, sums lie with the least padding instead (15 and 16 blocks of 196 patches, 64
images, 1.09 and 1.45; those that read them widened alone, jax's own, up to 32 blocks as the others).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Beside, Kernel, Lifetime, Whole
from autoshard.program.repeating import read_times, readers_of
from autoshard.program.resummed import ResidualSum, behind_work, residual_sums

MANY = 16
"""Transposed branches from which on sums that are read narrow and widened lie with the least padding."""

_RANK = 3
_ADD, _CONVERT, _TRANSPOSE = "stablehlo.add", "stablehlo.convert", "stablehlo.transpose"


class Hidden(NamedTuple):
    """A value without a buffer that is stored besides."""

    value: int
    stored: Whole

    @property
    def begin(self) -> int:
        return self.stored.begin

    @property
    def is_of_few(self) -> bool:
        """Whether it is stored where a device has few of the batch."""
        beside = self.stored.beside
        return beside is not None and beside.is_padded_least and beside.pads_rows(self.stored.type.shape)


def stored_besides(
    listing: Listing, kernels: Sequence[Kernel], lives: Mapping[int, Lifetime]
) -> tuple[tuple[Hidden, ...], list[tuple[int, Whole]]]:
    """Hidden values of programs with transposed branches of residual sums, and these sums in the other order."""
    behind = behind_work(listing)
    sums = residual_sums(listing, behind)
    made = {value: kernel for kernel in kernels for value in kernel.results}
    transposes = {op.results[0]: op.operands[0] for op in listing.ops if op.name == _TRANSPOSE}
    turned: dict[int, int] = {}
    for one in sums.values():
        branch = transposes.get(one.branch, -1)
        maker = made.get(behind.get(branch, branch))
        turned[one.start] = turned.get(one.start, 0) + (maker is not None and maker.shape.is_matmul)
    chains = {start for start, count in turned.items() if count}
    if not chains:
        return (), []
    narrow = _read_narrow(listing, sums)
    many = frozenset(start for start, count in turned.items() if count >= 2 * MANY)  # backward ones, too
    inside = {value: one for value, one in sums.items() if one.start in chains}
    hidden = tuple(_hidden(listing, kernels, lives, inside.values(), behind, narrow & many))
    return hidden, list(_in_both_orders(listing, lives, inside, {one.begin for one in hidden}))


def _hidden(
    listing: Listing,
    kernels: Sequence[Kernel],
    lives: Mapping[int, Lifetime],
    sums: Collection[ResidualSum],
    behind: Mapping[int, int],
    padded_least: Collection[int],
) -> Iterator[Hidden]:
    readers = readers_of(kernels)
    made = {value: kernel for kernel in kernels for value in kernel.results}
    for one in sums:
        product = made.get(one.branch)
        if product is None or not product.shape.is_matmul:
            continue
        for use in product.uses:
            maker, source = made.get(use.value), behind.get(use.value, use.value)
            type_, first = listing.values[use.value].type, made.get(source)
            if maker is None or first is None or type_ is None or type_.rank != _RANK:
                continue
            is_stored = use.value in lives and lives[use.value].is_own_buffer
            is_hidden = not is_stored and is_elementwise(listing.ops[maker.time]) and first.shape.is_matmul
            later = [time for time in read_times(use.value, readers) if time > product.time]
            if is_hidden and later and source in lives:
                beside = Beside(0, 1, is_padded_least=one.start in padded_least)
                yield Hidden(use.value, Whole(first.time, max(later) + 1, type_, beside=beside))


def _in_both_orders(
    listing: Listing, lives: Mapping[int, Lifetime], sums: Mapping[int, ResidualSum], hidden: Collection[int]
) -> Iterator[tuple[int, Whole]]:
    """Of sums that live until after the last hidden value is made, for the backward pass."""
    for value in sums:
        life, type_ = lives.get(value), listing.values[value].type
        if life is None or type_ is None or not life.is_own_buffer or not hidden:
            continue
        if life.begin < max(hidden) < life.end:
            yield value, Whole(life.begin, life.end, type_)


def _read_narrow(listing: Listing, sums: Mapping[int, ResidualSum]) -> frozenset[int]:
    """What chains of sums begin with of which some are read by elementwise work other than a sum or a cast."""
    return frozenset(
        sums[value].start
        for op in listing.ops
        if is_elementwise(op) and op.name not in (_CONVERT, _ADD)
        for value in op.operands
        if value in sums
    )
