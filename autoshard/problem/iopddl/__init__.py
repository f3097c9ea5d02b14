"""A Problem <-> the JSON of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (google/iopddl).

    {"problem": {"nodes": {"intervals": [[start, end], ...], "costs": [[...], ...], "usages": [[...], ...]},
                 "edges": {"nodes": [[u, v], ...], "costs": [[row-major matrix], ...]}, "usage_limit": bytes}}

Intervals are half-open; without a `usage_limit`, or with null, there is no limit. Keys may come in any order, and unknown
ones are skipped. A cost of 10**17 or more means forbidden (the contest's own costs end at 3e12, its sentinels are 10**18).

The text is read in windows: `source` holds the window, `walk` finds its way through objects, `rows` cuts lists of lists
of whole numbers into parts, `tokens` makes arrays of a part, `matrices` keeps each distinct matrix once, and `read` puts a
Problem together. `write` is the way back.
"""

from autoshard.problem.iopddl.read import read_iopddl
from autoshard.problem.iopddl.write import write_iopddl

__all__ = ["read_iopddl", "write_iopddl"]
