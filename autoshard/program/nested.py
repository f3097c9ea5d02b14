"""Products that leave no buffer: convolutions that run inside the convolution that reads them, and what is finished before it is stored.

XLA:TPU fuses a convolution, with the elementwise work on its result, into a depthwise one that alone reads it, as no element is needed for
several blocks of channels; and a depthwise one into what reads it, where that makes float32 and the depthwise one reads no argument. One of
neither kind runs inside another where that saves time (`nested_gain`). What reads images of few channels runs inside others on some chips
only, and what is padded in between the outer one pads. Each takes part in one such pair, those with a depthwise one first, in program
order, then those that save most; a convolution of fewer than eight channels, images, runs inside a depthwise one last of all (libtpu
0.0.52, v6e: MobileNet forward, which runs the depthwise one inside the next). Seen in what libtpu 0.0.51 compiles for v5e of 40 small
chains (the first kind in 15 of 16, the second in 7 of 7; none in bfloat16, between two depthwise ones, or where groups have several
channels) and in all blocks of Xception, NASNet and EfficientNet, forward.

What enters such a pair as a sum of two buffers, as at the end of a residual stage, is added up inside, unless others read the sum too
(libtpu 0.0.52, v6e, v5p and v4: EfficientNet V2 and MobileNet V3, forward); on v5e the convolution before it adds it up.

Elementwise work on a product is repeated by its one reader, but done once and stored as narrow as it is read where several products read
it and nothing else reads the product: what enters a block with a projection of its input (Xception, float32). What is projected to less
is projected first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import has_batch, is_elementwise
from autoshard.program.lifetime import has_buffer, keep_until, stored_bytes
from autoshard.program.nested_gain import channels_of, saved_bytes
from autoshard.program.records import Compiler, Kernel, Lifetime
from autoshard.program.repeating import Readers, read_behind, read_times, readers_of
from autoshard.program.summed import reductions_of
from autoshard.program.widths import Widths
from autoshard.sharding import dtype_bits

_WIDE_BITS = 32
_LEAST_GAIN = 1
_FEW_CHANNELS = 8
_PAD = "stablehlo.pad"


def without_nested(
    kernels: Sequence[Kernel],
    listing: Listing,
    pinned: frozenset[int],
    lives: Mapping[int, Lifetime],
    compiler: Compiler,
) -> dict[int, Lifetime]:
    """Take the buffers from what convolutions make that run inside others, which then read what those read.

    Args:
        pinned: values that are returned or handed on.
    """
    made = {value: kernel for kernel in kernels for value in kernel.results}
    names = _names(made, lives)
    readers, found = readers_of(kernels), dict(lives)
    for chain in _chains(kernels, listing, pinned, made, compiler):
        end, times = chain[-1].time + 1, {kernel.time for kernel in chain}
        ahead = [
            made[value]
            for value in sorted(read_behind(chain[0], names) & made.keys() - pinned)
            if compiler.ends_products_in_place
            and is_elementwise(listing.ops[made[value].time])
            and has_buffer(value, found)
            and read_times(value, readers) <= times
        ]
        for kernel, reader in pairwise(chain):
            for use in (*kernel.uses, *reader.uses):
                keep_until(use.value, end, names, found)
        for kernel in (*ahead, *chain[:-1]):
            (value,) = kernel.results
            found[value] = replace(found[value], is_own_buffer=False, within=None)
            for use in kernel.uses:
                keep_until(use.value, end, names, found)
    return found


def _names(made: Mapping[int, Kernel], lives: Mapping[int, Lifetime]) -> dict[int, Kernel]:
    """What makes values that have no buffer but their operands'."""
    return {
        value: kernel for value, kernel in made.items() if kernel.is_alias and not has_buffer(value, lives)
    }


def ended_in_place(
    kernels: Sequence[Kernel],
    listing: Listing,
    pinned: frozenset[int],
    stored: Widths,
    lives: Mapping[int, Lifetime],
    *,
    convolutions_alone: bool,
) -> dict[int, Lifetime]:
    """Take the buffers from products whose one reader is worked out as they leave the matrix unit: they run when it does.

    What dies there it may write over: the operand of an activation function, over which what goes back is written. Where gathers run
    inside products XLA:TPU hands several values on from each and writes over none (libtpu 0.0.51: six layers of perceptrons in
    bfloat16 take seven of their largest values on v5e, six on v5p and v6e). Of several products that one reader adds up the last does.
    Nothing is written over by what is reduced there too, as a residual sum is whose layer is normalized next (libtpu 0.0.52, v5p and
    v6e, forward passes of matrices and images). Convolutions do on v5e too (`convolutions_alone`): at the end of a block a residual
    stack of theirs has one of its values there, one of matrices has two.
    """
    readers, found = readers_of(kernels), dict(lives)
    made = {value: kernel for kernel in kernels for value in kernel.results}
    names = _names(made, lives)
    at = {kernel.time: kernel for kernel in kernels}
    ending: dict[int, Kernel] = {}  # the last product of each reader, by the time of that
    for kernel in kernels:
        if (
            not kernel.shape.is_matmul
            or (convolutions_alone and not is_convolution(kernel))
            or kernel.results[0] in pinned
            or not found[kernel.results[0]].is_own_buffer
        ):
            continue
        reader, *later = [at[time] for time in read_times(kernel.results[0], readers)] or [kernel]
        if not later and reader.is_in_place and reader.repeat == kernel.repeat:
            ending[reader.time] = kernel
    for time, kernel in sorted(ending.items(), key=lambda item: item[1].time):
        reader = at[time]
        if _is_reduced_apart(reader, readers, listing, at, made):
            continue
        room = stored.of_value(reader.results[0]).num_bytes
        behind = (read_behind(reader, names) & made.keys()) - set(kernel.results)
        dying = (one for one in behind if _dies_at(reader.time, found[one]))
        if all(stored.of_value(one).num_bytes != room for one in dying):
            continue
        for use in kernel.uses:
            keep_until(use.value, reader.time + 1, names, found)
        found[kernel.results[0]] = replace(found[kernel.results[0]], is_own_buffer=False, within=None)
    return found


def _is_reduced_apart(
    kernel: Kernel,
    readers: Readers,
    listing: Listing,
    at: Mapping[int, Kernel],
    made: Mapping[int, Kernel],
) -> bool:
    """Whether what it makes is reduced, but as another product leaves the matrix unit."""
    reading = (
        [made[use.value] for use in at[time].uses if use.value in made]
        for time in reductions_of(kernel, readers, listing)
    )
    return any(not any(one.shape.is_matmul for one in makers) for makers in reading)


def _dies_at(time: int, life: Lifetime) -> bool:
    return life.is_own_buffer and life.end == time


def finished(
    kernels: Sequence[Kernel],
    listing: Listing,
    pinned: frozenset[int],
    stored: Widths,
    lives: Mapping[int, Lifetime],
) -> dict[int, Lifetime]:
    """Store what several products read narrower than the product that it is made of in that one's place."""
    readers, found = readers_of(kernels), dict(lives)
    made_at = {value: kernel.time for kernel in kernels for value in kernel.results}
    for kernel in kernels:
        if not kernel.shape.is_matmul:
            continue
        *_, last = chain = _chain(kernel, listing, pinned, readers)
        if len(chain) == 1 or not is_elementwise(listing.ops[last.time]) or not last.is_alias:
            continue
        (product,), (value,) = kernel.results, last.results
        is_narrower = dtype_bits(stored.of_value(value).dtype) < dtype_bits(kernel.shape.results[0].dtype)
        reading = readers.get(value, [])
        if len(reading) > 1 and all(r.shape.is_matmul for r in reading) and is_narrower:
            found[value] = Lifetime(found[product].begin, found[value].end, True)
            found[product] = replace(found[product], is_own_buffer=False, within=None)
            _read_first(value, reading, made_at, listing, found)
    return found


def _read_first(
    value: int,
    reading: Sequence[Kernel],
    made_at: Mapping[int, int],
    listing: Listing,
    lives: dict[int, Lifetime],
) -> None:
    """Of what is ready, what takes least runs first: a projection that makes less than the first reader does not wait for its turn.

    Products of the backward pass, which read what goes back too, are not ready.
    """
    first, *others = reading
    most, end = stored_bytes(listing, first.results[0]), first.time + 1
    for kernel in others:
        (made,) = kernel.results
        is_ready = all(made_at.get(use.value, 0) < first.time for use in kernel.uses)
        if is_ready and stored_bytes(listing, made) < most and kernel.repeat == first.repeat:
            lives[made] = replace(lives[made], begin=first.time)
        else:
            end = kernel.time + 1
    lives[value] = replace(lives[value], end=end)


def _chains(
    kernels: Sequence[Kernel],
    listing: Listing,
    pinned: frozenset[int],
    made: Mapping[int, Kernel],
    compiler: Compiler,
) -> Iterator[list[Kernel]]:
    """From a convolution over elementwise work to the one that it runs inside of, those that save most first."""
    readers = readers_of(kernels)
    arguments = {argument.value for argument in listing.arguments}
    found: list[tuple[float, list[Kernel]]] = []
    for kernel in kernels:
        if is_convolution(kernel) and kernel.uses:  # not of constants alone
            chain = _chain(kernel, listing, pinned, readers, is_padded=True)
            if len(chain) > 1 and is_convolution(chain[-1]):
                is_of_argument = _source(kernel, made, listing) in arguments
                found.append((_gain(kernel, chain[-1], listing, compiler, is_of_argument), chain))
    taken: set[int] = set()
    for gain, chain in sorted(found, key=lambda one: -one[0]):
        pair = {chain[0].time, chain[-1].time}
        if gain > 0 and taken.isdisjoint(pair):
            taken |= pair
            yield chain


def _gain(kernel: Kernel, outer: Kernel, listing: Listing, compiler: Compiler, is_of_argument: bool) -> float:
    """Above 0 where it runs inside."""
    is_first = not is_depthwise(kernel) and channels_of(kernel)[0] < compiler.nested_from_channels
    if is_depthwise(outer) and not is_depthwise(kernel):
        reads_images = channels_of(kernel)[0] < _FEW_CHANNELS
        return 0 if is_first else (_LEAST_GAIN if reads_images else inf)
    if is_depthwise(kernel) and not is_depthwise(outer):
        is_wide = dtype_bits(outer.shape.results[0].dtype) >= _WIDE_BITS
        return inf if is_wide and not is_of_argument else 0
    if is_first or compiler.nested_flop_per_byte is None or _is_grouped(kernel) or _is_grouped(outer):
        return 0
    return saved_bytes(kernel, outer, listing, compiler.nested_flop_per_byte, compiler.devices)


def _chain(
    kernel: Kernel, listing: Listing, pinned: frozenset[int], readers: Readers, *, is_padded: bool = False
) -> list[Kernel]:
    """Over elementwise work, and what pads for the next where `is_padded`, to what reads that."""
    chain = [kernel]
    while len(chain) == 1 or _is_passed(listing.ops[chain[-1].time], is_padded=is_padded):
        (value,) = chain[-1].results
        reading = readers.get(value, [])
        if len(reading) != 1 or value in pinned or reading[0].repeat != kernel.repeat:
            break
        chain.append(reading[0])
    return chain


def _is_passed(op: Op, *, is_padded: bool) -> bool:
    return is_elementwise(op) or (is_padded and op.name == _PAD)


def _source(kernel: Kernel, made: Mapping[int, Kernel], listing: Listing) -> int:
    """What the first operand is elementwise work on, the largest where there are several, or a name for."""
    value = kernel.uses[0].value
    while value in made and made[value].is_alias and made[value].uses:
        value = max((use.value for use in made[value].uses), key=lambda one: stored_bytes(listing, one))
    return value


def is_convolution(kernel: Kernel) -> bool:
    """That a matrix unit makes."""
    return kernel.shape.name == "stablehlo.convolution" and kernel.shape.is_matmul


def is_depthwise(kernel: Kernel) -> bool:
    """Of as many groups as channels."""
    return _is_grouped(kernel) and channels_of(kernel)[0] == 1


def _is_grouped(kernel: Kernel) -> bool:
    return has_batch(kernel.shape.rule, kernel.shape.matmul_roles)
