"""Slices that XLA cuts where they are read, and stores nowhere."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import RESHAPING, is_elementwise, is_reduction
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import Kernel
from autoshard.program.repeating import readers_of

_SLICE = "stablehlo.slice"


def cut_where_read(kernels: Sequence[Kernel], listing: Listing, pinned: frozenset[int]) -> tuple[Kernel, ...]:
    """The kernels, without buffers for slices that only fusions and products read: what they are cut from lives as long instead.

    XLA:TPU fuses such slices into their readers (the halves of a gated product's result, of queries and keys that are rotated). Seen where
    they are all of what they are cut from, each element in one of them and none skipped; those of shifts and of running sums it stores.
    `pinned` are values that keep a buffer of their own.
    """
    readers, divided = readers_of(kernels), _divided(listing)
    fusing = set[int]()  # values that are read by fusions and products alone
    found: list[Kernel] = []
    for kernel in reversed(kernels):
        read_by = [reader for value in kernel.results for reader in readers.get(value, ())]
        is_fusing = pinned.isdisjoint(kernel.results) and all(_fuses(one, listing, fusing) for one in read_by)
        is_cut = (
            is_fusing
            and bool(kernel.results)
            and listing.ops[kernel.time].name == _SLICE
            and [use.value in divided for use in kernel.uses] == [True]
        )
        if is_cut or (is_fusing and kernel.is_alias):
            fusing.update(kernel.results)
        found.append(replace(kernel, is_alias=True) if is_cut else kernel)
    return tuple(reversed(found))


def _divided(listing: Listing) -> frozenset[int]:
    """Values that slices without strides have all elements of, as many as there are."""
    taken: Counter[int] = Counter()
    for op in listing.ops:
        if op.name == _SLICE and all(window.stride == 1 for window in op.windows):
            taken[op.operands[0]] += stored_bytes(listing, op.results[0])
    return frozenset(value for value, bytes_ in taken.items() if bytes_ == stored_bytes(listing, value))


def _fuses(reader: Kernel, listing: Listing, fusing: Collection[int]) -> bool:
    op = listing.ops[reader.time]
    if op.collective is not None:
        return False
    if reader.is_alias and not is_elementwise(op):
        return all(value in fusing for value in reader.results)
    return is_elementwise(op) or is_reduction(op) or reader.shape.is_matmul or op.name in RESHAPING
