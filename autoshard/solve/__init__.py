"""`solve`: a Problem in, the best choice that can be found in the time, with what was proved about it, out."""

from autoshard.solve.brute import brute_force
from autoshard.solve.clash import Required, Tied, clash_with_memory, structural_clash
from autoshard.solve.clock import Clock
from autoshard.solve.fit import Fit, find_fit
from autoshard.solve.portfolio import SOLVERS, solve
from autoshard.solve.solution import Solution, Solver, Status
from autoshard.solve.subsets import Minimal, minimal

__all__ = [
    "SOLVERS",
    "Clock",
    "Fit",
    "Minimal",
    "Required",
    "Solution",
    "Solver",
    "Status",
    "Tied",
    "brute_force",
    "clash_with_memory",
    "find_fit",
    "minimal",
    "solve",
    "structural_clash",
]
