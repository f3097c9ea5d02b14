"""Sums of two buffers that XLA makes again in each reader: those behind a normalization, on the way to the next.

A residual branch that ends with a normalization (a layer's, a batch's statistics) is added when its product has been stored and summed, so
that the addition is no part of the product. XLA:TPU does not store that sum where one product, sums of it and the next addition read it:
what is added lives until then. The next one, which would be of three buffers, it stores (libtpu 0.0.52, v5e, v6e and v5p: forward passes of
six blocks of one product or two, matrices and images, with the statistics of layers and batches, rectified or not; on v5p it stores what
costs many instructions).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise, is_reduction
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import Compiler, Kernel
from autoshard.program.repeating import Readers, is_costly, read_times, readers_of

_OPERANDS = 2


def made_by_readers(
    kernels: Sequence[Kernel], listing: Listing, pinned: frozenset[int], compiler: Compiler
) -> tuple[tuple[Kernel, ...], frozenset[int]]:
    """The kernels, those sums without a buffer, and these.

    Args:
        pinned: values that keep a buffer of their own.
    """
    readers = readers_of(kernels)
    made = {value: kernel for kernel in kernels for value in kernel.results}
    anew, found = set[int](), list[Kernel]()
    for kernel in kernels:
        is_anew = (
            not kernel.is_alias
            and is_elementwise(listing.ops[kernel.time])
            and not (compiler.keeps_narrow_operands and is_costly(kernel.ops, listing))
            and pinned.isdisjoint(kernel.results)
            and _is_of_two(kernel, made, anew, readers, listing)
            and _is_added_on(kernel, readers, listing)
        )
        anew.update(kernel.results if is_anew else ())
        found.append(replace(kernel, is_alias=True) if is_anew else kernel)
    return tuple(found), frozenset(anew)


def _is_of_two(
    kernel: Kernel, made: Mapping[int, Kernel], anew: set[int], readers: Readers, listing: Listing
) -> bool:
    """Whether it is worked out of two buffers as large, one of them of a product that is summed too, and of none that others make again."""
    least, names = stored_bytes(listing, kernel.results[0]) / 2, set[int]()
    buffers, left = set[int](), [kernel]
    while left:
        for value in {use.value for use in left.pop().uses} - buffers - names:
            maker = made.get(value)
            if stored_bytes(listing, value) < least:
                continue
            if maker is None or not maker.is_alias:
                buffers.add(value)
            elif _is_read_by_others(value, kernel, readers, listing):
                return False
            else:
                names.add(value)
                left.append(maker)
    products = (made[one] for one in buffers if one in made and made[one].shape.is_matmul)
    is_behind_sum = any(reductions_of(product, readers, listing) for product in products)
    return len(buffers) == _OPERANDS and anew.isdisjoint(buffers) and is_behind_sum


def _is_read_by_others(value: int, kernel: Kernel, readers: Readers, listing: Listing) -> bool:
    """Whether more than that kernel, reductions, and what has no buffer itself."""
    others = (reader for reader in readers.get(value, ()) if reader.time != kernel.time)
    return not all(reader.is_alias or is_reduction(listing.ops[reader.time]) for reader in others)


def reductions_of(kernel: Kernel, readers: Readers, listing: Listing) -> list[int]:
    """When what it makes is reduced, as it is or by work on it that has no buffer."""
    times = (time for value in kernel.results for time in read_times(value, readers))
    return [time for time in times if is_reduction(listing.ops[time])]


def _is_added_on(kernel: Kernel, readers: Readers, listing: Listing) -> bool:
    """Whether one product, reductions and at most one elementwise kernel that is stored read it."""
    products = works = 0
    left, seen = list(kernel.results), set(kernel.results)
    while left:
        for reader in readers.get(left.pop(), ()):
            op = listing.ops[reader.time]
            if reader.repeat != kernel.repeat:
                return False
            if reader.shape.is_matmul:
                products += 1
            elif is_elementwise(op):
                works += 0 if reader.is_alias else 1
                new = set(reader.results) - seen if reader.is_alias else set[int]()
                seen |= new
                left.extend(new)
            elif not is_reduction(op):
                return False
    return products == 1 and works <= 1
