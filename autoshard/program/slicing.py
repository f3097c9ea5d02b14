"""Slices that XLA cuts where they are read, and parts that it puts together there: it stores neither."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import BROADCAST, RESHAPING, is_elementwise, is_reduction
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import MOVES, Kernel
from autoshard.program.repeating import readers_of

_ADD, _PAD, _SLICE = "stablehlo.add", "stablehlo.pad", "stablehlo.slice"


def cut_where_read(
    kernels: Sequence[Kernel], listing: Listing, pinned: frozenset[int], zeros: frozenset[int]
) -> tuple[Kernel, ...]:
    """The kernels, without buffers for slices that only fusions and products read: what they are cut from lives as long instead.

    XLA:TPU fuses such slices into their readers (the halves of a gated product's result, of queries and keys that are rotated). Seen where
    they are all of what they are cut from, each element in one of them and none skipped; those of shifts and of running sums it stores.
    What goes back to such parts is padded with zeros and added up to the whole, in one fusion too (libtpu 0.0.51, v5e and v5p: gates beside
    what they gate in one product, along a dimension of their own or one behind the other).

    Args:
        pinned: values that keep a buffer of their own.
        zeros: values that are zero everywhere.
    """
    readers, divided, parts = readers_of(kernels), _divided(listing), _put_together(listing, zeros)
    fusing = set[int]()  # values that are read by fusions and products alone
    found: list[Kernel] = []
    for kernel in reversed(kernels):
        read_by = [reader for value in kernel.results for reader in readers.get(value, ())]
        is_fusing = pinned.isdisjoint(kernel.results) and all(_fuses(one, listing, fusing) for one in read_by)
        is_slice = bool(kernel.results) and listing.ops[kernel.time].name == _SLICE
        is_cut = is_fusing and (
            (is_slice and [use.value in divided for use in kernel.uses] == [True])
            or not parts.isdisjoint(kernel.results)
        )
        if is_cut or (is_fusing and kernel.is_alias):
            fusing.update(kernel.results)
        found.append(replace(kernel, is_alias=True) if is_cut else kernel)
    return tuple(reversed(found))


def sliced_values(listing: Listing) -> frozenset[int]:
    """What slices read, as it is or as a constraint has it.

    XLA for TPUs makes one slice of that and of the one that takes a device's part of a sum, and then has no slice to scatter the sum by: it
    is summed whole, and stays until what reads the slices is done (libtpu 0.0.52, v5e and v6e: a gate and what it gates as halves of one
    product, Qwen3's experts; not behind a reshape, a transposition or an addition).
    """
    found: set[int] = set()
    for op in reversed(listing.ops):
        if op.name == _SLICE or (op.name in MOVES and not found.isdisjoint(op.results)):
            found.add(op.operands[0])
    return frozenset(found)


def cut_from(kernels: Sequence[Kernel], listing: Listing) -> dict[int, int]:
    """Of slices without a buffer of their own, the buffer that they are cut from."""
    names = {kernel.results[0]: kernel.uses[0].value for kernel in kernels if _is_name(kernel)}
    return {
        kernel.results[0]: _last(kernel.uses[0].value, names)
        for kernel in kernels
        if _is_name(kernel) and listing.ops[kernel.time].name == _SLICE
    }


def as_cut(values: Collection[int], cut: Mapping[int, int]) -> frozenset[int]:
    """Those values, and instead of slices what they are cut from."""
    return frozenset(cut.get(value, value) for value in values)


def _is_name(kernel: Kernel) -> bool:
    return kernel.is_alias and len(kernel.uses) == 1 == len(kernel.results)


def _last(value: int, names: Mapping[int, int]) -> int:
    while value in names:
        value = names[value]
    return value


def _divided(listing: Listing) -> frozenset[int]:
    """Values that slices without strides have all elements of, as many as there are."""
    taken: Counter[int] = Counter()
    for op in listing.ops:
        if op.name == _SLICE and all(window.stride == 1 for window in op.windows):
            taken[op.operands[0]] += stored_bytes(listing, op.results[0])
    return frozenset(value for value, bytes_ in taken.items() if bytes_ == stored_bytes(listing, value))


def _put_together(listing: Listing, zeros: frozenset[int]) -> frozenset[int]:
    """Values padded with zeros that are added up to one without any, each for that alone."""
    readers = Counter(value for op in listing.ops for value in op.operands)
    added: dict[int, tuple[int, ...]] = {}  # what makes sums of parts; of a part itself nothing
    bytes_: dict[int, int] = {}
    found: set[int] = set()
    for op in listing.ops:
        if op.name == _PAD and op.operands[1] in zeros:
            added[op.results[0]] = ()
            bytes_[op.results[0]] = stored_bytes(listing, op.operands[0])
        elif op.name == _ADD and all(v in added and readers[v] == 1 for v in op.operands):
            (value,) = op.results
            added[value] = op.operands
            bytes_[value] = sum(bytes_[v] for v in op.operands)
            if bytes_[value] == stored_bytes(listing, value):
                found.update(_parts(value, added))
    return frozenset(found)


def _parts(value: int, added: Mapping[int, tuple[int, ...]]) -> Iterator[int]:
    left = [value]
    while left:
        one = left.pop()
        left.extend(added[one])
        if not added[one]:
            yield one


def _fuses(reader: Kernel, listing: Listing, fusing: Collection[int]) -> bool:
    op = listing.ops[reader.time]
    if op.collective is not None:
        return False
    if reader.is_alias and not is_elementwise(op):
        return all(value in fusing for value in reader.results)
    is_fusion = is_elementwise(op) or is_reduction(op) or op.name in RESHAPING or op.name == BROADCAST
    return is_fusion or reader.shape.is_matmul
