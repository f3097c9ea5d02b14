"""Exact reductions: a Graph -> a smaller one with the same optimum, and the log that leads back.

Each reduction is a function `(graph, node) -> nodes whose surroundings changed`, exact with the memory rows, in a
file of its own; `chain` runs them to a fixpoint with a work queue.
"""

from autoshard.solve.presolve.chain import presolve

__all__ = ["presolve"]
