"""Engines that prove: each solves a whole core, with memory rows that are added as they turn out to matter.

An `Engine` minimises over a core with the memory rows that it is given; `lazy` adds those that its optimum violates
until none is, and `race` runs several engines side by side, in processes of their own. Dynamic programming needs no
rows and no process.
"""
