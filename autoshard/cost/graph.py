"""The graph of choices: nodes choose, edges connect what a provider leaves with what a reader demands.

There is one node per kernel and flow, and one per value with several readers (its hub): the sharding that the value is brought to
once, for all of them, in a copy that lives from the first reader to the last. Without a hub every reader would pay for its own reshard.
A hub may have two edges from what provides the value: of a copy for all readers, and of one for those that take it narrow (`cost.sharing`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.cost.given import Given
from autoshard.cost.layouts import Ints, LayoutsByRank
from autoshard.cost.loops import Loop, Loops
from autoshard.cost.partial import PartialPlan
from autoshard.cost.sharing import Sharing
from autoshard.program import (
    KernelShape,
    Program,
)
from autoshard.sharding import Mesh, TensorSharding, TensorType
from autoshard.space import (
    ProgramCuts,
    Strategy,
)


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """What one node may choose: for every strategy the layout it demands of each operand and leaves of each result."""

    demands: tuple[Ints, ...]  # [K] layout numbers, one array an operand
    supplies: tuple[Ints, ...]  # [K], one array a result

    @property
    def count(self) -> int:
        return len((self.supplies or self.demands)[0])


@dataclass(frozen=True, slots=True, eq=False)
class KernelSpace:
    """The strategies that kernels of one shape choose from."""

    shape: KernelShape
    strategies: tuple[Strategy, ...]
    choices: Choices
    produced: tuple[Ints, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    choices: Choices
    space: KernelSpace | None = None  # of a kernel
    kernel: int = -1  # index into program.kernels, or -1
    flow: int = -1  # index into program.flows, or -1
    hub: int = -1  # the value that a hub shares, or -1
    sharing: Sharing | None = None  # of a hub


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A read: `result` of node `provider`, demanded as operand `operand` of node `reader`."""

    provider: int
    result: int
    reader: int
    operand: int
    type: TensorType
    travels: TensorType  # what a compiler may send in its place
    repeat: int
    begin: int  # when a copy made for this read exists
    end: int
    sites: tuple[tuple[int, int], ...]
    source: int = -1
    """The value, or what the loops that carry it unchanged were handed; -1: of no single reader."""
    loops: tuple[Loop, ...] = ()  # around the read
    trips: int = 0  # of what stays in the loops that the rest is moved out of
    inside: tuple[int, tuple[Loop, ...]] = (-1, ())  # the value in those loops, and the loops
    is_narrow: bool = False  # of a read: narrower than others; of a hub: the copy that only such readers take


Wanted = Mapping[int, Sequence[TensorSharding]]
"""Demands on values, any of which may be met or not."""


@dataclass(slots=True, eq=False)
class Graph:
    program: Program
    mesh: Mesh
    layouts: LayoutsByRank
    loops: Loops
    cuts: ProgramCuts
    given: Given | None = None
    wanted: Wanted | None = None
    partial: PartialPlan = field(default_factory=PartialPlan)
    moved_once: dict[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    """Of given shardings: values whose only reader is a reshard, and what to; Shardy merges a sum and its slice to a reduce-scatter."""
    hoists: bool = False  # whether the compiler moves what does not change out of loops
    adds_first: bool = False  # whether the compiler sums once after an addition
    sums_left: frozenset[int] = (
        frozenset()
    )  # on the way of a sum that may be left to a reader (`cost.sums_left`)
    sliced: frozenset[int] = frozenset()  # values whose sum the compiler does not scatter (`program.slicing`)
    any_order: bool = False  # of the axes of a dimension, because the user wrote one that is not mesh order
    nodes: list[Node] = field(default_factory=list[Node])
    edges: list[Edge] = field(default_factory=list[Edge])
    provider: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Value -> node, result."""
    spaces: dict[object, KernelSpace] = field(default_factory=dict[object, KernelSpace])  # interned
    sharings: dict[object, Sharing] = field(default_factory=dict[object, Sharing])  # interned


def edge_ends(graph: Graph, edge: Edge) -> tuple[Ints, Ints]:
    """Layouts of every choice: what the provider leaves, and what the reader demands."""
    return (
        graph.nodes[edge.provider].choices.supplies[edge.result],
        graph.nodes[edge.reader].choices.demands[edge.operand],
    )
