"""Prices of one program under several placements of its mesh: which placement can win, and a problem that bounds them all.

No number of a `Problem` falls where the price of a collective rises (what overlap hides of a reshard is at most a part of it), and what is
forbidden, and what memory it takes, does not depend on the placement. So where every collective that the program may need costs as
much under one placement as under another, or more, so does its cheapest plan; and a problem at the least price of each collective is
a lower bound for all placements.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.lowering import CollectivePrices
from autoshard.sharding import AxisRef

_Asked = dict[tuple[str, tuple[AxisRef, ...], int], list[NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class AskedPrices(CollectivePrices):
    """Prices that remember what they were asked for."""

    _asked: _Asked = field(default_factory=lambda: _Asked(), compare=False, repr=False)

    def ns(
        self, kind: str, bytes_: NDArray[np.int64] | int, axes: Sequence[AxisRef], widening: int = 1
    ) -> NDArray[np.int64]:
        """See `CollectivePrices`."""
        sizes = np.unique(np.asarray(bytes_, dtype=np.int64))
        self._asked.setdefault((kind, tuple(axes), widening), []).append(sizes)
        return CollectivePrices.ns(self, kind, bytes_, axes, widening)

    def again(self, prices: CollectivePrices) -> NDArray[np.int64]:
        """[Q] what was asked for, each size once, at other prices; always in the same order."""
        found = [
            prices.ns(kind, np.unique(np.concatenate(sizes)), axes, widening)
            for (kind, axes, widening), sizes in self._asked.items()
        ]
        return np.concatenate([np.zeros(0, dtype=np.int64), *found])


@dataclass(frozen=True, slots=True)
class CheapestPrices(CollectivePrices):
    """The least of several prices of each collective."""

    others: tuple[CollectivePrices, ...] = ()

    def ns(
        self, kind: str, bytes_: NDArray[np.int64] | int, axes: Sequence[AxisRef], widening: int = 1
    ) -> NDArray[np.int64]:
        """See `CollectivePrices`."""
        least = CollectivePrices.ns(self, kind, bytes_, axes, widening)
        for other in self.others:
            least = np.minimum(least, other.ns(kind, bytes_, axes, widening))
        return least


def undominated(prices: Sequence[NDArray[np.int64]]) -> list[int | None]:
    """For each array of prices, the number of one that is nowhere higher; None for those that no other covers.

    Of equal ones the first covers the rest; a number that covers others is covered by none.
    """
    covered: list[int | None] = [None] * len(prices)
    for number, mine in enumerate(prices):
        for other, theirs in enumerate(prices):
            is_lower = bool((theirs <= mine).all())
            if other != number and is_lower and (other < number or bool((theirs < mine).any())):
                covered[number] = other
                break
    for number, other in enumerate(covered):
        while other is not None and covered[other] is not None:
            other = covered[other]
        covered[number] = other
    return covered
