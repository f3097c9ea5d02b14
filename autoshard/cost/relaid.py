"""Gathers along several dimensions: the parts arrive one behind the other, and XLA:TPU lays the whole out anew behind that.

One copy, and one more where the minor dimension is among them, whatever the other is; none of what is gathered along one dimension, in the
middle too. Where gathers run behind compute (v5e) smaller ones do not: they are made when the program begins, as nothing that its list
scheduling puts first waits for what copies them, and all of them are kept until they are read. Smaller than the largest weights of layers,
that is (`program.largest_alike`), whether these are gathered so or along one dimension: where heads have 2048 x 2048 and hidden layers
2048 x 8192 the heads' are, the other way round the hidden layers', of one size none; where there is nothing but products, all are.

Seen of what libtpu 0.0.52 compiles for v5e and v6e 4x4: matrices and arrays of three dimensions, every pair of dimensions, one layer and
twelve; 28 of 150 gathers of Llama-3 8B forward, for which it takes 0.9 GB.
"""

import numpy as np

from autoshard.cost.layouts import Ints
from autoshard.program import Program


def passes(before: Ints, after: Ints) -> Ints:
    """[...] how often the result is written anew, of what lies in so many parts [..., dimension] before and is gathered to so many."""
    grown = after < before
    is_several = (grown.sum(axis=-1) > 1) & (after <= before).all(axis=-1)
    behind = grown[..., -1] if grown.shape[-1] else np.zeros(grown.shape[:-1], dtype=np.bool_)
    return np.where(is_several, 1 + behind, 0).astype(np.int64)


def held_until(program: Program, value: int, begin: int) -> int:
    """How long the shard of a value is there from the start of the program for a gather at `begin`: until it is stored, or has that."""
    stored = program.lifetimes.get(value)
    is_made = stored is not None and stored.is_own_buffer and stored.begin > 0
    return min(begin, stored.begin) if stored is not None and is_made else begin
