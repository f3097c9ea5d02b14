"""Where to look for better multipliers, given what is known of the function that they are to maximise.

Every allowed choice x of the core is an upper bound on the Lagrangian function, a line in the multipliers l:

    L(l)  <=  cost(x) + sum_t l_t (bytes_t(x) - room_t)                       ("cut" of x)

The next multipliers maximise the minimum of the cuts, less a distance from the best ones c so far. The distance is the
relative entropy, because multipliers are positive and their scale is what is unknown most:

    max_l  min_k (cost_k + g_k . l)  -  1/step * sum_t (l_t log(l_t / c_t) - l_t + c_t)

whose dual over weights a_k >= 0 that sum to one has l(a) = c * exp(step * sum_k a_k g_k), scaled to a given sum where the
multipliers must have one, and is minimised here by moving weight between the two cuts that differ most. A proximal
bundle method [1] with the distance of [2].

[1] C. Lemarechal, An extension of Davidon methods to nondifferentiable problems, Mathematical Programming Study 3, 1975.
[2] M. Teboulle, Entropic proximal mappings with applications to nonlinear programming, Mathematics of OR 17(3), 1992.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_MOST_CUTS = 40
_RECENT = 10  # cuts that stay whatever they are worth
_MOST_MOVES = 80  # of weight, in one master problem
_EXACT = 1e-4  # of what the cuts promise beyond the bound
_STEP_SPREAD = 1e8  # how far the step size may go from the first one
_LARGEST_STEP = (-2.0, 1.0)  # of the logarithm of a multiplier
_SMALLEST = 1e-12  # of the largest multiplier, so that all can come back


class Bundle:
    """The cuts, and the step size, which follows how well the cuts predict."""

    def __init__(self, rows: int, total: float | None = None) -> None:
        """For multipliers [rows], which sum to `total` if it is given."""
        self.total = total
        self.costs: Floats = np.zeros(0)
        self.slopes: Floats = np.zeros((0, rows))
        self.step = 0.0
        self._range = (0.0, 0.0)
        self._failures = 0

    def __len__(self) -> int:
        return len(self.costs)

    def add(self, cost: float, slope: Floats, centre: Floats) -> None:
        """A choice of this cost that uses `slope` [rows] bytes more than there is room for."""
        if len(self.costs) and any(
            cost == known and (slope == other).all()
            for known, other in zip(self.costs, self.slopes, strict=True)
        ):
            return
        self.costs = np.append(self.costs, cost)
        self.slopes = np.concatenate([self.slopes, slope[None, :]])
        if self.step == 0.0:
            self.step = 0.5 / max(float(np.abs(slope).max(initial=0)), 1.0)
            self._range = (self.step / _STEP_SPREAD, self.step * _STEP_SPREAD)
        if len(self.costs) > _MOST_CUTS:
            self._forget(centre)

    def proposal(self, centre: Floats, bound: float) -> tuple[Floats, float]:
        """(multipliers to try next, what the cuts allow there at most); `bound` is what the centre reaches."""
        weights = np.zeros(len(self.costs))
        weights[np.argmin(self.costs + self.slopes @ centre)] = 1.0
        slope = weights @ self.slopes
        at = self._moved(centre, slope)
        heights = self.costs + self.slopes @ at
        for _ in range(_MOST_MOVES):
            low = int(heights.argmin())
            high = int(np.where(weights > 0, heights, -np.inf).argmax())
            difference = heights[high] - heights[low]
            if difference <= _EXACT * max(1.0, abs(float(weights @ heights) - bound)):
                break
            direction = self.slopes[low] - self.slopes[high]
            curvature = self.step * float(at @ (direction * direction))
            amount = weights[high] if curvature <= 0 else min(weights[high], difference / curvature)
            weights[low] += amount
            weights[high] -= amount
            slope = slope + amount * direction
            at = self._moved(centre, slope)
            heights = self.costs + self.slopes @ at
        return at, float(heights.min())

    def learn(self, gained: float, promised: float) -> None:
        """Longer steps where the bound rose about as promised, shorter ones after failures."""
        if gained > 0:
            self._failures = 0
            if gained > 0.3 * promised:
                self.step = min(1.5 * self.step, self._range[1])
            return
        self._failures += 1
        if self._failures >= 3:
            self._failures = 0
            self.step = max(0.7 * self.step, self._range[0])

    def _moved(self, centre: Floats, slope: Floats) -> Floats:
        moved = centre * np.exp(np.clip(self.step * slope, *_LARGEST_STEP))
        moved = np.maximum(moved, _SMALLEST * moved.max(initial=0.0))
        return moved if self.total is None else moved * (self.total / moved.sum())

    def _forget(self, centre: Floats) -> None:
        """Keep the recent cuts and those that are lowest at the centre."""
        heights = self.costs + self.slopes @ centre
        heights[-_RECENT:] = -np.inf
        keep = np.sort(np.argsort(heights, kind="stable")[: _MOST_CUTS // 2 + _RECENT])
        self.costs, self.slopes = self.costs[keep], self.slopes[keep]
