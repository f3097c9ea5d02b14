"""The kernels of a compiler with memory to spare: it stores what costs many instructions to repeat and what two buffers would be read for.

A compiler short of memory repeats elementwise work instead (XLA's rematerialisation pass, which runs where a program would not fit);
`lifetimes` of the kernels as `build` makes them are those. Both are needed: the one says what a plan takes, the other whether it fits.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import COSTLY, is_elementwise, is_recomputed, is_reduction, stored_operands
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import Kernel


def keep_costly(kernels: Sequence[Kernel], listing: Listing, permanent: frozenset[int]) -> list[Kernel]:
    """The same kernels, fewer of them without a buffer: some costly results have one, and so has what needs two.

    A costly result that several kernels read is stored where one of them cannot repeat the work inside, such as a matrix product, or where
    it takes the place of what it is made of: that is no smaller and dies before. So XLA:TPU keeps in the training steps of ViT and of
    llama3-8B what activation functions make for products, but no error functions inside them, and the exponentials of a softmax instead
    of the scores, but the bfloat16 logits of a loss instead of float32 exponentials.
    """
    readers = Counter(use.value for kernel in kernels for use in kernel.uses)
    as_stored, last = _read_as_stored(kernels, listing), _last_reads(kernels)
    roots: dict[int, frozenset[int]] = {}
    costly: set[int] = set()  # values that each reader would repeat costly work for
    found: list[Kernel] = []
    for kernel in kernels:
        if not kernel.is_alias:
            found.append(kernel)
            continue
        root, reads = listing.ops[kernel.time], [use.value for use in kernel.uses]
        (value,) = root.results
        stored = stored_operands(root, reads, listing, roots, permanent)
        is_stored = False
        if is_elementwise(root):
            is_costly = not costly.isdisjoint(reads) or any(
                listing.ops[op].name in COSTLY for op in kernel.ops
            )
            is_kept = (
                is_costly
                and readers[value] > 1
                and (value in as_stored or _replaces(value, stored, last, listing))
            )
            is_stored = is_kept or not is_recomputed(root, stored, listing)
            if is_costly and not is_stored:
                costly.add(value)
        if not is_stored:
            roots[value] = stored
        found.append(replace(kernel, is_alias=not is_stored))
    return found


def _read_as_stored(kernels: Sequence[Kernel], listing: Listing) -> frozenset[int]:
    """Values that a kernel reads which evaluates none of its operands, also under another name."""
    found: set[int] = set()
    for kernel in reversed(kernels):
        root = listing.ops[kernel.time]
        is_fusing = is_elementwise(root) or is_reduction(root)
        is_name = kernel.is_alias and not is_fusing
        if (not is_fusing and not is_name) or (is_name and not found.isdisjoint(kernel.results)):
            found.update(use.value for use in kernel.uses)
    return frozenset(found)


_LastReads = dict[int, tuple[tuple[int, int], ...]]
"""Of each value its readers, as (value made or -1 where that is stored, last time that the reader or those who repeat it run)."""


def _last_reads(kernels: Sequence[Kernel]) -> _LastReads:
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for kernel in reversed(kernels):
        made = kernel.results[0] if kernel.is_alias else -1
        time = max((time for _, time in found.get(made, ())), default=kernel.time)
        for use in kernel.uses:
            found[use.value] = (*found.get(use.value, ()), (made, time))
    return found


def _replaces(value: int, stored: Collection[int], last: _LastReads, listing: Listing) -> bool:
    """Whether storing a value that is made of one buffer takes no more than keeping that for those who would repeat it."""
    if len(stored) != 1:
        return not stored
    (buffer,) = stored
    end = max((time for _, time in last.get(value, ())), default=0)
    others = (time for made, time in last.get(buffer, ()) if made != value)
    return stored_bytes(listing, value) <= stored_bytes(listing, buffer) and max(others, default=0) < end
