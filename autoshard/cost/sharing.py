"""What a hub chooses beside the layout of its copy: the one in which the value settles, and whether the copy is narrow.

Readers of the value as it settles take it from there, and not from the copy that others share (`mlir.emit`): they pay nothing, and the copy
is no wider for them. Prices are sums over pairs, so for those readers to know, the hub's choice says how the value settles:

    (H, any)       the copy is H, for all readers; where none of the others is possible
    (H, S)         the value settles as S, the copy is H: a reader of S pays nothing, all others from H
    (H, S, narrow) the same, and only those who take the value narrow read the copy, which is sent so

The last two are there where they may spare something, for three readers or more. With two axes or more, where there would be too many,
they are there of what is gathered only, as what products share is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.cost.layouts import Ints
from autoshard.problem.model import Bools
from autoshard.sharding import Mesh, TensorSharding

_ANY = -1
_READERS = 3
_AXES = 1


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """The choices [K] of one hub."""

    copies: Ints  # layouts of the copy
    settled: Ints  # layouts in which the value settles, or -1: any
    is_narrow: Bools

    @property
    def is_plain(self) -> bool:
        """Whether no choice says how the value settles."""
        return bool((self.settled == _ANY).all())

    def possible(self, supply: Ints) -> Bools:
        """[from, K] which choices a value has that settles so: those that do not say so only where no other has their copy."""
        found = self.settled[None, :] == supply[:, None]
        for row, layout in enumerate(supply.tolist()):
            told = self.copies[self.settled == layout]
            found[row] |= (self.settled == _ANY) & ~np.isin(self.copies, told)
        return found

    def takes_copy(self, demand: Ints) -> Bools:
        """[K, to] whether who reads it so reads the copy."""
        return self.settled[:, None] != demand[None, :]


def find_sharing(
    supply: Ints,
    demands: Sequence[Ints],
    are_narrow: Sequence[bool],
    shardings: Sequence[TensorSharding],
    mesh: Mesh,
    given: int | None = None,
) -> Sharing:
    """For a value that may settle as `supply`.

    Args:
        demands: what each reader may ask for.
        are_narrow: whether the reader takes less than the widest of them.
        shardings: of the layouts.
        given: the layout of the copy; None: any that it settles in or a reader asks for.
    """
    asked = dict.fromkeys(layout for each in demands for layout in each.tolist())
    settling = dict.fromkeys(supply.tolist())
    copies = list(settling | asked) if given is None else [given]
    rows = [(copy, _ANY, False) for copy in copies]
    if len(demands) >= _READERS or given is not None:
        told = [
            (copy, kept)
            for kept in settling
            for copy in copies
            if kept in asked and copy != kept and tells_settled(shardings[kept], shardings[copy], mesh)
        ]
        rows += [(*pair, True) for pair in told if sum(are_narrow) > 1]
        rows += [(*pair, False) for pair in told]
    columns = zip(*rows, strict=True)
    copied, settled, narrow = (np.asarray(column) for column in columns)
    return Sharing(copied.astype(np.int64), settled.astype(np.int64), narrow.astype(np.bool_))


def tells_settled(settled: TensorSharding, copy: TensorSharding, mesh: Mesh) -> bool:
    """Whether hubs have the choice that says so."""
    if settled.unreduced != copy.unreduced or settled.mesh != copy.mesh:
        return False
    are_few = sum(axis.size > 1 for axis in mesh.axes) <= _AXES
    return are_few or settled.refines(copy)
