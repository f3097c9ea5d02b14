"""`solve`: a Problem in, the best choice that can be found in the time, with what was proved about it, out."""

from autoshard.solve.brute import brute_force
from autoshard.solve.portfolio import SOLVERS, solve
from autoshard.solve.solution import Solution, Solver, Status

__all__ = ["SOLVERS", "Solution", "Solver", "Status", "brute_force", "solve"]
