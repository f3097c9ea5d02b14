"""`solve`: a Problem in, the best choice that can be found in the time, with what was proved about it, out."""

from autoshard.solve.brute import brute_force
from autoshard.solve.portfolio import solve
from autoshard.solve.solution import Solution, Status

__all__ = ["Solution", "Status", "brute_force", "solve"]
