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
from autoshard.program.repeating import Readers, is_costly, readers_of

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
    """Whether it is worked out of two buffers as large, one of them of a product that is summed too."""
    least = stored_bytes(listing, kernel.results[0])
    large = {_buffer(use.value, made) for use in kernel.uses if 2 * stored_bytes(listing, use.value) >= least}
    makers = [made[one] for one in large if one in made]
    are_stored = anew.isdisjoint(large) and not any(maker.is_alias for maker in makers)
    products = (maker for maker in makers if maker.shape.is_matmul)
    is_behind_sum = any(is_reduced(product, readers, listing) for product in products)
    return len(large) == _OPERANDS and are_stored and is_behind_sum


def _buffer(value: int, made: Mapping[int, Kernel]) -> int:
    while value in made and made[value].is_alias and len(made[value].uses) == 1:
        value = made[value].uses[0].value
    return value


def is_reduced(kernel: Kernel, readers: Readers, listing: Listing) -> bool:
    """Whether what it makes is reduced, as it is or by work on it that has no buffer."""
    left, seen = list(kernel.results), set[int]()
    while left:
        for reader in readers.get(left.pop(), ()):
            if is_reduction(listing.ops[reader.time]):
                return True
            if reader.is_alias and reader.results[0] not in seen:
                seen.add(reader.results[0])
                left.append(reader.results[0])
    return False


def _is_added_on(kernel: Kernel, readers: Readers, listing: Listing) -> bool:
    """Whether one product, reductions and one elementwise kernel read it."""
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
