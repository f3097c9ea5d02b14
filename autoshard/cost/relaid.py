"""Gathers along several dimensions: the parts arrive one behind the other, and XLA:TPU lays the whole out anew behind that.

One copy, and one more where the minor dimension is among them, whatever the other is; none of what is gathered along one dimension, in the
middle too. Where gathers run behind compute (v5e) those of three dimensions and more do not: they are made when the program begins, as
nothing that its list scheduling puts first waits for what copies them, and all of them are kept until they are read. Matrices are gathered
in their place, but for programs with no other gathers.

Seen of what libtpu 0.0.52 compiles for v5e and v6e 4x4: matrices and arrays of three dimensions, every pair of dimensions, one layer and
twelve; 28 of 150 gathers of Llama-3 8B forward, for which it takes 0.9 GB.
"""

from collections.abc import Iterator

import numpy as np

from autoshard.cost.layouts import Ints
from autoshard.problem.model import Bools
from autoshard.program import Program

KEPT_RANK = 3
"""From which on those of arguments are made in front of all else where gathers run behind compute."""


def passes(before: Ints, after: Ints) -> Ints:
    """[...] how often the result is written anew, of what lies in so many parts [..., dimension] before and is gathered to so many."""
    grown = after < before
    is_several = (grown.sum(axis=-1) > 1) & (after <= before).all(axis=-1)
    behind = grown[..., -1] if grown.shape[-1] else np.zeros(grown.shape[:-1], dtype=np.bool_)
    return np.where(is_several, 1 + behind, 0).astype(np.int64)


def held_ahead(
    program: Program, value: int, rank: int, begin: int, is_laid: Bools, whole: Ints, shard: Ints
) -> Iterator[tuple[int, int, Ints]]:
    """(begin, end, [from, to] bytes) of what is there from the start of the program until a gather of `value`, at `begin`.

    The shard, but of a value that is stored only until it has that; what is laid out anew in its place.
    """
    if rank >= KEPT_RANK and is_laid.any():
        yield 0, begin, np.where(is_laid, whole, 0)
        shard = np.where(is_laid, 0, shard)
    stored = program.lifetimes.get(value)
    is_made = stored is not None and stored.is_own_buffer and stored.begin > 0
    until = min(begin, stored.begin) if stored is not None and is_made else begin
    if shard.any():
        yield 0, until, shard
