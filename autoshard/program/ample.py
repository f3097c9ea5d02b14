"""The kernels of a compiler with memory to spare: it stores what costs many instructions to repeat and what two buffers would be read for.

A compiler short of memory repeats elementwise work instead (XLA's rematerialisation pass, which runs where a program would not fit);
`lifetimes` of the kernels as `build` makes them are those. Both are needed: the one says what a plan takes, the other whether it fits.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import COSTLY, is_elementwise, is_recomputed, stored_operands
from autoshard.program.records import Kernel


def keep_costly(kernels: Sequence[Kernel], listing: Listing, permanent: frozenset[int]) -> list[Kernel]:
    """The same kernels, fewer of them without a buffer: a costly result that several kernels read has one, and so what needs two."""
    readers = Counter(use.value for kernel in kernels for use in kernel.uses)
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
            is_stored = (is_costly and readers[value] > 1) or not is_recomputed(root, stored, listing)
            if is_costly and not is_stored:
                costly.add(value)
        if not is_stored:
            roots[value] = stored
        found.append(replace(kernel, is_alias=not is_stored))
    return found
