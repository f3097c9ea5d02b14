"""What loops keep on the chip from trip to trip, and how often their kernels reach into memory for the rest.

XLA:TPU puts what is made in a loop, and what the loop carries, into vector memory as far as there is room; only stacks of which each trip
reads or writes a slice stay outside. Where all that is alive at once may fit, split over all devices, every value does that takes no more
than a part of that memory (`costmodels.vector_memory`). A slice of a stack is read where it is needed, and stored nowhere. What a loop
adds up of a product that is summed over devices only later (`program.accumulation`) is added as it leaves the matrix unit.

Seen in what libtpu 0.0.51 compiles for v5e 4x4 of the training steps of an LSTM and a GRU, whose loops were predicted to move up to twenty
times what they move between memory and the chip.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.mlir.listing import DataFlow, Listing, Op
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import Kernel, KernelShape, Lifetime
from autoshard.program.traffic import UPDATES_IN_PLACE

_SLICE = "stablehlo.dynamic_slice"


@dataclass(frozen=True, slots=True)
class _Loop:
    begin: int
    end: int
    carried: frozenset[int]  # what a trip reads other than by slices


def keep_near(
    kernels: Sequence[Kernel],
    listing: Listing,
    lives: Mapping[int, Lifetime],
    buffers: Mapping[int, frozenset[int]],
    summed_after: Collection[int],
    interned: dict[KernelShape, KernelShape],
) -> tuple[Kernel, ...]:
    """The kernels, with counts of what loops keep near.

    Args:
        lives: of all values.
        buffers: those behind each value that is recomputed.
        summed_after: what a loop adds up before it is summed over devices.
    """
    loops = _loops(listing)
    if not loops:
        return tuple(kernels)
    made = {value: kernel for kernel in kernels if _moves(kernel) for value in kernel.results}
    stacks = _SLICE, *UPDATES_IN_PLACE
    around = innermost((loop.begin, loop.end) for loop in loops)
    near = {v for v, k in made.items() if k.time in around and listing.ops[k.time].name not in stacks}
    near |= {value for loop in loops for value in loop.carried}
    times, devices = [kernel.time for kernel in kernels], listing.mesh.num_devices
    sizes: list[int] = []
    for loop in loops:
        inside = kernels[bisect_left(times, loop.begin) : bisect_left(times, loop.end)]
        sizes.append(-(-_most_alive(loop, inside, listing, lives, near) // devices))
    return tuple(
        _kernel(kernel, listing, sizes[around[kernel.time]], near, buffers, summed_after, interned)
        if kernel.time in around and _moves(kernel)
        else kernel
        for kernel in kernels
    )


def _loops(listing: Listing) -> list[_Loop]:
    """Innermost last."""
    flows: dict[tuple[int, int], list[DataFlow]] = {}
    for flow in listing.data_flows:
        if flow.kind == "while":
            flows.setdefault((flow.begin, flow.end), []).append(flow)
    found: list[_Loop] = []
    for (begin, end), mine in sorted(flows.items(), key=lambda item: (item[0][0], -item[0][1])):
        whole = {value for op in listing.ops[begin:end] for value in _read_whole(op)}
        found.append(_Loop(begin, end, frozenset(flow.target for flow in mine if flow.target in whole)))
    return found


def _read_whole(op: Op) -> tuple[int, ...]:
    if op.name == _SLICE:
        return op.operands[1:]
    return op.operands[len(op.results) :] if op.name in UPDATES_IN_PLACE else op.operands


def _most_alive(
    loop: _Loop,
    kernels: Sequence[Kernel],
    listing: Listing,
    lives: Mapping[int, Lifetime],
    near: Collection[int],
) -> int:
    """The most bytes, over all devices, of what the loop carries and its kernels make at any time."""
    change: dict[int, int] = {}
    for value in (value for kernel in kernels for value in kernel.results):
        life = lives.get(value)
        if value in near and life is not None and life.is_own_buffer:
            size = stored_bytes(listing, value)
            change[life.begin] = change.get(life.begin, 0) + size
            change[life.end] = change.get(life.end, 0) - size
    alive = most = sum(stored_bytes(listing, value) for value in loop.carried)
    for time in sorted(change):
        alive += change[time]
        most = max(most, alive)
    return most


def _kernel(
    kernel: Kernel,
    listing: Listing,
    loop_bytes: int,
    near: Collection[int],
    buffers: Mapping[int, frozenset[int]],
    summed_after: Collection[int],
    interned: dict[KernelShape, KernelShape],
) -> Kernel:
    """One in a loop that keeps so many bytes."""
    root, shape = listing.ops[kernel.time], kernel.shape
    if root.name == _SLICE:
        shape = replace(shape, writes=0)
    else:
        reads_near = [all(b in near for b in buffers.get(use.value, (use.value,))) for use in kernel.uses]
        spared = tuple(  # products read more than once what is wider than their operand
            (count if shape.is_matmul else min(count, 1)) * is_near
            for count, is_near in zip(shape.reads, reads_near, strict=True)
        )
        is_near = all(value in near for value in kernel.results)
        shape = replace(
            shape,
            near_reads=spared,
            is_near=is_near,
            sums_later=any(value in summed_after for value in kernel.results),
            loop_bytes=loop_bytes,
        )
    return replace(kernel, shape=interned.setdefault(shape, shape))


def innermost(spans: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Of each time in a loop, the number of the innermost one around it; loops come by when they begin and end, before those in them."""
    found: dict[int, int] = {}
    for number, span in enumerate(spans):
        found.update(dict.fromkeys(range(*span), number))
    return found


def _moves(kernel: Kernel) -> bool:
    return bool(kernel.shape.writes) or any(kernel.shape.reads) or kernel.shape.is_matmul
