"""`Problem`: the plain numbers that the compiler side builds and the solver side solves."""

from autoshard.problem.builder import ProblemBuilder
from autoshard.problem.evaluate import Evaluation, evaluate, item_usages, memory_profile, peak_of
from autoshard.problem.iopddl import read_iopddl, write_iopddl
from autoshard.problem.model import Problem, Table
from autoshard.problem.validate import validate

__all__ = [
    "Evaluation",
    "Problem",
    "ProblemBuilder",
    "Table",
    "evaluate",
    "item_usages",
    "memory_profile",
    "peak_of",
    "read_iopddl",
    "validate",
    "write_iopddl",
]
