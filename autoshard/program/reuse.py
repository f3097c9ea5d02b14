"""Temporary values that a compiler puts into the memory of results that are made later.

A result's memory is there from the start of the program. Until the result is made, XLA lets other values have it if memory is short,
the largest first, one at a time and each no larger than the result: of llama3-8B's forward pass, scanned over its layers, the scores of
attention and a copy of the embedding lie where the logits go later (libtpu 0.0.51; what is live beside them is in the heap as usual).
Memory is short where the program would take more than 0.85 of what XLA offers without that: one with more and more rows on v5e does so
from 14.5 GB of 16.9 on, and at 14.2 not yet.
Which fits where is decided by unsharded sizes; what a value sharded over few devices takes beyond its result counts
(`Lifetime.within`). Values and results below a hundredth of the largest result do not count.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.lifetime import stored_bytes, written_over
from autoshard.program.records import Kernel, Lifetime

SMALLEST_SHARE = 100
SHORT_SHARE = 0.85
"""Part of what the compiler offers beyond which it lets results lend their memory."""


def reuse_results(
    listing: Listing, kernels: Sequence[Kernel], results: Collection[int], lives: Mapping[int, Lifetime]
) -> dict[int, Lifetime]:
    """Take the buffers from temporary values that go into the memory of one of `results`."""
    made = {value: kernel.time for kernel in kernels for value in kernel.results}
    least = max((stored_bytes(listing, r) for r in results), default=0) // SMALLEST_SHARE
    rooms = {
        r: _Room(bytes_)
        for r in results
        if _is_ranked(listing, r) and (bytes_ := stored_bytes(listing, r)) > least
    }
    for value, result in written_over(
        listing, kernels, results, {v: life.end for v, life in lives.items()}
    ).items():
        made[result] = min(made[result], made[value])
    found = dict(lives)
    temporary = [
        v
        for v, life in lives.items()
        if life.is_own_buffer and v in made and v not in results and stored_bytes(listing, v) > least
    ]
    bytes_of = {value: stored_bytes(listing, value) for value in temporary}
    places = [(result, made.get(result, 0), room) for result, room in rooms.items()]
    for value in sorted(temporary, key=lambda v: (-bytes_of[v], v)):
        life, needed = lives[value], bytes_of[value]
        for result, begin, room in places:
            if life.end <= begin and room.takes(needed, life):
                found[value] = replace(life, is_own_buffer=False, within=result)
                break
    return found


def _is_ranked(listing: Listing, value: int) -> bool:
    type_ = listing.values[value].type
    return type_ is not None and type_.rank > 0


class _Room:
    def __init__(self, bytes_: int) -> None:
        self._bytes = bytes_
        self._taken: list[tuple[int, int]] = []  # disjoint intervals of time

    def takes(self, bytes_: int, life: Lifetime) -> bool:
        """Whether the value found its place."""
        if bytes_ > self._bytes:
            return False
        at = bisect_left(self._taken, (life.begin, life.end))
        is_free = (at == 0 or self._taken[at - 1][1] <= life.begin) and (
            at == len(self._taken) or life.end <= self._taken[at][0]
        )
        if is_free:
            insort(self._taken, (life.begin, life.end))
            return True
        return False
