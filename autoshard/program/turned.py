"""Hidden values that are stored beside what they are made of, as what goes back to them lies otherwise; and sums that are there twice.

The gradient of a product's weights reads what the product read and what goes back to what it made, and repeats elementwise work on what it
reads only where both lie alike. Beside the lanes XLA:TPU has, of what a product makes, that of the two other dimensions which takes less to
be padded to full lanes (of 104 to 128 images of 196 patches the images; of 8 to 96, of 136 and of images of 256 patches these). What goes
back lies as residual sums do, and where some of their branches are transposed (an MLP-Mixer's, which mixes patches) patches are there in
sums whatever a product would have. Where the two differ each hidden value of the branches that are not transposed is stored for the
backward pass, whatever function it is, beside its operand and an error function (libtpu 0.0.52, v5e 8x8, v5p 4x4x4, some thirty mixers of 4
to 32 blocks: 1.27 to 1.80 of what is said otherwise). Such sums are kept in both orders. From sixteen transposed branches on, if
normalizations read the sums narrow and widened, as torch's do, sums lie with the least padding instead (15 and 16 blocks of 196 patches, 64
images, 1.09 and 1.45; one of two written in jax; those that read them widened alone, jax's own, up to 32 blocks as the others).
"""

from collections.abc import Collection, Mapping, Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.beside import Beside
from autoshard.program.fusion import DOTS, is_elementwise
from autoshard.program.lifetime import has_buffer
from autoshard.program.records import Kernel, Lifetime, Whole
from autoshard.program.repeating import Readers, read_times, readers_of, unshaped
from autoshard.program.resummed import TRANSPOSE, ResidualSum, ResidualSums, order_of

MANY = 16
"""Transposed branches from which on sums that are read narrow and widened lie with the least padding."""

_RANK = 3  # batch, rows, columns
_ADD, _CONVERT = "stablehlo.add", "stablehlo.convert"


def stored_besides(
    listing: Listing, kernels: Sequence[Kernel], lives: Mapping[int, Lifetime], added: ResidualSums
) -> dict[int, Whole]:
    """By hidden values of programs with transposed branches of residual sums, and by these sums: those in the other order."""
    found: dict[int, Whole] = {}
    sums, made = added.sums, {value: kernel for kernel in kernels for value in kernel.results}
    turned = _turned(listing, made, added)
    if not turned:
        return found
    narrow = _read_narrow(listing, sums)
    times = {value: time for time, op in enumerate(listing.ops) for value in op.results}
    readers, chains = readers_of(kernels), dict[int, dict[int, ResidualSum]]()
    for value, one in sums.items():
        chains.setdefault(one.start, {})[value] = one
    for start in dict.fromkeys(sums[value].start for value in turned):
        chain = chains[start]
        hidden = _hidden(listing, readers, lives, made, chain.values(), added.behind)
        if not hidden:
            continue
        last = max(whole.begin for whole in hidden.values())
        are_many = sum(value in turned and times[value] < last for value in chain) >= MANY
        beside = Beside(0, 1, is_padded_least=are_many and start in narrow)
        found |= {value: whole._replace(beside=beside) for value, whole in hidden.items()}
        for value in chain:
            life, type_ = lives.get(value), listing.values[value].type
            if life is not None and type_ is not None and life.is_own_buffer and life.begin < last < life.end:
                found[value] = Whole(life.begin, life.end, type_)
    return found


def hidden_of_few(besides: Mapping[int, Whole]) -> frozenset[int]:
    """Of `stored_besides` the hidden values that are stored where a device has few of the batch."""
    return frozenset(
        value
        for value, one in besides.items()
        if one.beside is not None and one.beside.is_of_few(one.type.shape)
    )


def _turned(listing: Listing, made: Mapping[int, Kernel], added: ResidualSums) -> frozenset[int]:
    """Sums whose branch is what a product makes, its last dimension moved."""
    moved = {
        op.results[0]: op.operands[0]
        for op in listing.ops
        if op.name == TRANSPOSE and (order := order_of(op)) and order[-1] != len(order) - 1
    }
    found: set[int] = set()
    for value, one in added.sums.items():
        branch = moved.get(one.branch, -1)
        maker = made.get(added.behind.get(branch, branch))
        if maker is not None and maker.shape.name in DOTS:
            found.add(value)
    return frozenset(found)


def _hidden(
    listing: Listing,
    readers: Readers,
    lives: Mapping[int, Lifetime],
    made: Mapping[int, Kernel],
    sums: Collection[ResidualSum],
    behind: Mapping[int, int],
) -> dict[int, Whole]:
    """Work on what a product makes that a branch's product reads, reshaped or not, and another later, without a buffer of its own."""
    found: dict[int, Whole] = {}
    for one in sums:
        product = made.get(one.branch)
        if product is None or product.shape.name not in DOTS:
            continue
        for value in (unshaped(use.value, made) for use in product.uses):
            maker, source = made.get(value), behind.get(value, value)
            type_, first = listing.values[value].type, made.get(source)
            if maker is None or first is None or type_ is None or type_.rank != _RANK:
                continue
            is_work = is_elementwise(listing.ops[maker.time]) and first.shape.is_matmul
            is_hidden = is_work and not has_buffer(value, lives)
            end = max(read_times(value, readers), default=0) + 1
            if is_hidden and end > product.time + 1:
                found[value] = Whole(first.time, end, type_)
    return found


def _read_narrow(listing: Listing, sums: Mapping[int, ResidualSum]) -> frozenset[int]:
    """What chains of sums begin with of which some are read by elementwise work other than a sum or a cast."""
    return frozenset(
        sums[value].start
        for op in listing.ops
        if is_elementwise(op) and op.name not in (_CONVERT, _ADD)
        for value in op.operands
        if value in sums
    )
