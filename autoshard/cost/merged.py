"""Which steps of changes of sharding a compiler carries out: XLA merges those that are the same (common subexpressions).

Readers that bring one value to one sharding, in one loop body, each have a constraint of their own; what runs is one collective, also for
the first steps that two changes have in common, in the widest type that any of the readers takes. What is read as it settles is read from
there, also where other readers share a copy (`cost.sharing`). Beside that copy a plan pays for each reader, since the solver's prices are
sums over pairs; only what is emitted tells.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.cost.graph import Edge
from autoshard.cost.loops import Loop, made_inside
from autoshard.cost.lowering import Emitted
from autoshard.cost.reshard import ReshardPrices
from autoshard.sharding import TensorSharding, TensorType, dtype_bits

_Path = tuple[int, tuple[Loop, ...], tuple[TensorSharding, ...], int]
"""The value, the loops around where it is brought there, the shardings on the way, the first included, and which time it is."""


@dataclass(frozen=True, slots=True)
class Move:
    """What an edge, of this number, brings from one layout to another."""

    number: int
    edge: Edge
    origin: int
    target: int
    is_made: bool = True  # not of a shared copy for who reads what was there before it
    copied: TensorType | None = None  # of a shared copy: what its readers take of it
    again: int = 0  # above 0: carried out anew, though readers before ask for the same

    @property
    def travels(self) -> TensorType:
        return self.edge.travels if self.copied is None else self.copied


def emitted_once(reshards: ReshardPrices, moves: Sequence[Move]) -> Iterator[tuple[tuple[Emitted, ...], ...]]:
    """For each move what is emitted for each of its steps: nothing for one that a reader before has too."""
    paths = [list(_paths(reshards, move)) for move in moves]
    widest: dict[_Path, TensorType] = {}
    for move, mine in zip(moves, paths, strict=True):
        for path in mine if move.is_made else ():
            widest[path] = max(widest.get(path, move.travels), move.travels, key=element_bits)
    for move, mine in zip(moves, paths, strict=True):
        alone = reshards.collectives(move.edge.type, move.origin, move.target, move.travels)
        if not move.is_made:
            yield ((),) * len(alone)
            continue
        if not mine:
            yield tuple(step.emitted for step in alone)
            continue
        found: list[tuple[Emitted, ...]] = []
        for step, path in enumerate(mine):
            type_ = widest.pop(path, None)
            steps = (
                alone
                if type_ is None
                else reshards.collectives(move.edge.type, move.origin, move.target, type_)
            )
            found.append(() if type_ is None else steps[step].emitted)
        yield tuple(found)


def _paths(reshards: ReshardPrices, move: Move) -> Iterator[_Path]:
    """One for each step; no path where nothing is merged."""
    edge = move.edge
    if edge.source < 0 or not reshards.merges_equal:
        return
    change = edge.type.rank, move.origin, move.target
    passed = reshards.path(*change)
    for end, stays in enumerate(made_inside(reshards.kinds(*change)), 2):
        value, loops = edge.inside if stays and edge.trips > edge.repeat else (edge.source, edge.loops)
        yield value, loops, passed[:end], move.again


def element_bits(type_: TensorType) -> int:
    """How wide one element is."""
    return dtype_bits(type_.dtype)
