"""The price of every fusion that XLA:TPU notes in the module that it generates code for."""

import re

from autoshard.xla.collectives import visits
from autoshard.xla.hlo import HloModule

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def fusion_cycles(module: HloModule) -> int:
    """Cycles of a step, over all runs of loops; collectives and copies have none."""
    return sum(
        visit.times * int(found[1])
        for visit in visits(module)
        if visit.through is None
        for instruction in visit.computation.instructions
        if (found := _CYCLES.search(instruction.attributes))
    )
