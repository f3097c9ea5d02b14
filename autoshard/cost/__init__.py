"""Prices every choice of a program and builds the Problem from them; reads a solution back into shardings."""

from autoshard.cost.assemble import PricedGraph, assemble
from autoshard.cost.follow import follow
from autoshard.cost.graph import Graph, build_graph
from autoshard.cost.lowering import Lowering
from autoshard.cost.readback import Chosen, ChosenCollective, ChosenValue, read_back
from autoshard.cost.reshard import Collective

__all__ = [
    "Chosen",
    "ChosenCollective",
    "ChosenValue",
    "Collective",
    "Graph",
    "Lowering",
    "PricedGraph",
    "assemble",
    "build_graph",
    "follow",
    "read_back",
]
