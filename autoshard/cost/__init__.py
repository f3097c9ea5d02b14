"""Prices every choice of a program and builds the Problem from them; reads a solution back into shardings."""

from autoshard.cost.assemble import PricedGraph, assemble, assemble_at, kernel_work_ns
from autoshard.cost.build import build_graph
from autoshard.cost.cheapest import AskedPrices, CheapestPrices, undominated
from autoshard.cost.follow import decide_hubs, follow, with_told_copies
from autoshard.cost.gathering import Operand, is_gathered_in_product
from autoshard.cost.given import Given, look_through
from autoshard.cost.graph import Graph, Wanted
from autoshard.cost.kernel import inner_sums, is_part_of_readers, local_work
from autoshard.cost.levels import level_masks, wanted_at_levels
from autoshard.cost.lowering import CollectivePrices, Emitted, Lowering
from autoshard.cost.peak import Held, Peak
from autoshard.cost.readback import (
    Chosen,
    ChosenCollective,
    ChosenValue,
    chosen_ends,
    edges_in_products,
    read_back,
)
from autoshard.cost.recall import recall
from autoshard.cost.requirements import Requirement, bound, decider, joined, masked, requirement
from autoshard.cost.reshard import (
    Collective,
    Decompose,
    priced_steps,
    sends_otherwise,
    sized_steps,
    steps_run,
    times_laid_out,
)
from autoshard.cost.schedule import Schedule, schedule_of
from autoshard.cost.sums_left import leave_sums
from autoshard.cost.ties import Tie, Ties, find_ties, tie_table

__all__ = [
    "AskedPrices",
    "CheapestPrices",
    "Chosen",
    "ChosenCollective",
    "ChosenValue",
    "Collective",
    "CollectivePrices",
    "Decompose",
    "Emitted",
    "Given",
    "Graph",
    "Held",
    "Lowering",
    "Operand",
    "Peak",
    "PricedGraph",
    "Requirement",
    "Schedule",
    "Tie",
    "Ties",
    "Wanted",
    "assemble",
    "assemble_at",
    "bound",
    "build_graph",
    "chosen_ends",
    "decide_hubs",
    "decider",
    "edges_in_products",
    "find_ties",
    "follow",
    "inner_sums",
    "is_gathered_in_product",
    "is_part_of_readers",
    "joined",
    "kernel_work_ns",
    "leave_sums",
    "level_masks",
    "local_work",
    "look_through",
    "masked",
    "priced_steps",
    "read_back",
    "recall",
    "requirement",
    "schedule_of",
    "sends_otherwise",
    "sized_steps",
    "steps_run",
    "tie_table",
    "times_laid_out",
    "undominated",
    "wanted_at_levels",
    "with_told_copies",
]
