"""Loops that begin with counters: those that hash them into random numbers (threefry, as in JAX's dropout).

What XLA:TPU makes of one iota alike, the counters plus a key in each such loop, it makes in one fusion for all loops of one shape, so that
all of their states are there before the first loop runs. Each trip is one fusion that writes over the state. When the first loop of each
shape has run, the others follow, ahead of what reads their numbers: those, one for the two words of a state, wait. Seen of libtpu 0.0.51:
14 small programs of 2 to 14 masks of one shape or two, in forward passes, training steps, rematerialised layers (whose backward passes
begin anew) and bodies of scans; BERT, T5 and a language model with dropout.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from autoshard.mlir.listing import DataFlow, Listing, Op
from autoshard.program.fusion import BROADCAST, FREE_LEAVES, is_cheap, is_elementwise
from autoshard.program.handing import BARRIER
from autoshard.sharding import TensorType

_IOTA = "stablehlo.iota"


class Counters(NamedTuple):
    """When states of such loops begin and, those that no numbers take the place of, end; and what trips make on the way, in registers."""

    begin: dict[int, int]
    end: dict[int, int]
    passing: frozenset[int]


NO_COUNTERS = Counters({}, {}, frozenset())


class _Place(NamedTuple):
    """Where loops are that begin together: in one body, and behind the same optimization barriers, which hold rematerialised work back."""

    around: tuple[int, int] | None
    barriers: int


def find_counters(listing: Listing) -> Counters:
    """Those of a program."""
    loops = {(flow.begin, flow.end) for flow in listing.data_flows if flow.kind == "while"}
    barriers = {flow.begin for flow in listing.data_flows if flow.kind == BARRIER}
    made_by = {result: op for op in listing.ops for result in op.results}
    alike: defaultdict[_Place, defaultdict[TensorType | None, list[DataFlow]]] = defaultdict(
        lambda: defaultdict(list)
    )
    passing: set[int] = set()
    for flow in listing.data_flows:
        if flow.kind != "while" or not _counts(flow.sources[0].value, listing, made_by):
            continue
        made = _made_elementwise(flow, listing)
        if made:
            passing |= made
            around = max((loop for loop in loops if loop[0] < flow.begin < loop[1]), default=None)
            place = _Place(around, sum(barrier < flow.begin for barrier in barriers))
            alike[place][listing.values[flow.target].type].append(flow)
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    for by_type in alike.values():
        firsts = {type_: min(flows, key=lambda flow: flow.begin) for type_, flows in by_type.items()}
        all_begun = max(first.end for first in firsts.values())
        for type_, flows in by_type.items():
            words = Counter[int]()
            for flow in flows:
                begin[flow.target] = firsts[type_].begin
                if words[flow.begin]:
                    end[flow.target] = min(flow.end, all_begun)
                words[flow.begin] += 1
    return Counters(begin, end, frozenset(passing))


def _counts(value: int, listing: Listing, made_by: Mapping[int, Op]) -> bool:
    """Whether it is an elementwise function of an iota and of what is smaller than it."""
    counts, open_, seen = False, [value], set[int]()
    while open_:
        one = open_.pop()
        if one in seen:
            continue
        seen.add(one)
        op = made_by.get(one)
        if op is None or not (op.name in FREE_LEAVES or is_cheap(op)):
            return False
        counts = counts or op.name == _IOTA
        for operand in op.operands:
            if _elements(operand, listing) >= _elements(value, listing):
                open_.append(operand)
            elif operand in made_by:
                counts = counts or made_by[operand].name == _IOTA
    return counts


def _made_elementwise(flow: DataFlow, listing: Listing) -> frozenset[int]:
    """What a loop makes that is as large as its state; nothing where some of it is not elementwise."""
    found: set[int] = set()
    for op in listing.ops[flow.begin : flow.end]:
        large = [v for v in op.results if _elements(v, listing) >= _elements(flow.target, listing)]
        if large and op.name != BROADCAST and not is_elementwise(op):
            return frozenset()
        found.update(large)
    return frozenset(found)


def _elements(value: int, listing: Listing) -> int:
    type_ = listing.values[value].type
    return 0 if type_ is None else type_.num_elements
