"""A second opinion on a plan: legality, collectives, cost, peak memory and bound worked out anew from the module.

Shares no code with the search spaces, the costs or the solver: it walks the listed ops by their own rules and prices what it finds with
`costmodels`. It trusts the analysis of the module (`mlir`, `program`) and Shardy's own decomposition of reshards.
"""

from autoshard.check.checker import Subject, check
from autoshard.check.report import CheckReport, Finding

__all__ = ["CheckReport", "Finding", "Subject", "check"]
