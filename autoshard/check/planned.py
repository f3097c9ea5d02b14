"""The plan's shardings read against the listing: what every value and every read of one looks like.

Everything later assumes what `read_shardings` establishes: every ranked value that is kept, and every recorded read, has a sharding of
its rank, in Shardy's notation, on axes of the mesh, each once, and on no dimension more shards than elements.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.check.loops import Loops
from autoshard.check.parts import Parts, num_shards, overlapping, parts_of
from autoshard.check.report import Finding, of_offenders
from autoshard.errors import AutoshardError
from autoshard.mlir.listing import Listing, Op
from autoshard.plans import Plan
from autoshard.program import RESULT_SITE, Program
from autoshard.sharding import Mesh, TensorSharding, TensorType, parse_sharding

Site = tuple[int, int]

_KEEPS_ZERO = frozenset(
    {
        "stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice", "stablehlo.pad", "stablehlo.convert",
        "stablehlo.concatenate", "stablehlo.negate", "stablehlo.add", "stablehlo.subtract", "stablehlo.multiply",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """A program with the shardings that a plan gives it."""

    program: Program
    produced: dict[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    settled: dict[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    shared: dict[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    uses: dict[Site, TensorSharding] = field(default_factory=dict[Site, TensorSharding])
    again: dict[Site, int] = field(default_factory=dict[Site, int])  # brought to its sharding anew, by number

    @property
    def listing(self) -> Listing:
        return self.program.listing

    @property
    def mesh(self) -> Mesh:
        return self.program.listing.mesh

    @cached_property
    def is_recomputed(self) -> tuple[bool, ...]:
        """Of every op: whether it is cloned for each use, so that a plan says nothing of it."""
        cloneable = self.program.cloneable
        return tuple(bool(op.results) and all(v in cloneable for v in op.results) for op in self.listing.ops)

    @cached_property
    def zeros(self) -> frozenset[int]:
        """Values that are zero everywhere: constants, and what moves of those alone make."""
        found: set[int] = set()
        for op in self.listing.ops:
            moves_zeros = op.name in _KEEPS_ZERO and all(value in found for value in op.operands)
            if op.is_zero or moves_zeros:
                found.update(op.results)
        return frozenset(found)

    @cached_property
    def loops(self) -> Loops:
        return Loops(self.listing)

    def type_of(self, value: int) -> TensorType:
        type_ = self.listing.values[value].type
        assert type_ is not None, "only values with a type are read"
        return type_

    def is_ranked(self, value: int) -> bool:
        type_ = self.listing.values[value].type
        return type_ is not None and type_.rank > 0

    def found(self, value: int) -> TensorSharding | None:
        """What a reader without a sharding of its own finds; None of a value that is recomputed."""
        return self.shared.get(value, self.settled.get(value))

    def read(self, op: int, operand: int) -> TensorSharding | None:
        """How an op that is not recomputed reads an operand; None where a recomputed value has no recorded use."""
        return self.uses.get((op, operand), self.found(self.listing.ops[op].operands[operand]))

    def where(self, op: int) -> str:
        return described(self.listing.ops[op])


def described(op: Op) -> str:
    return f"{op.name} {op.location}".strip()


def read_shardings(plan: Plan, program: Program) -> tuple[Planned, Finding]:
    """The plan's shardings, and whether they are whole and well formed."""
    reader = _Reader(program)
    for value, planned in plan.values.items():
        if not 0 <= value < len(program.listing.values):
            reader.offenders.append(f"value {value}: the module has none of this number")
            continue
        reader.value(value, planned.produced, planned.settled, planned.shared)
    for use in plan.uses:
        reader.use((use.op, use.operand), use.sharding)
        if use.again:
            reader.planned.again[use.op, use.operand] = use.again
    for value in _kept(reader.planned):
        if value not in reader.planned.settled:
            reader.offenders.append(f"value {value} {program.listing.values[value].name}: no sharding")
    count = len(plan.values) + len(plan.uses)
    what = "values and reads have a sharding of the mesh that fits"
    return reader.planned, of_offenders("shardings", reader.offenders, count, what)


def _kept(planned: Planned) -> Iterator[int]:
    """Ranked values that exist, which are those not recomputed for each use."""
    listing, cloneable = planned.listing, planned.program.cloneable
    for value in [a.value for a in listing.arguments] + [flow.target for flow in listing.data_flows]:
        if planned.is_ranked(value):
            yield value
    for op in listing.ops:
        yield from (v for v in op.results if planned.is_ranked(v) and v not in cloneable)


class _Reader:
    def __init__(self, program: Program) -> None:
        self.planned = Planned(program)
        self.offenders: list[str] = []
        self._known: dict[tuple[str, TensorType], TensorSharding | str] = {}
        self._demanded = frozenset(_demanded_axes(program.listing))

    def value(self, value: int, produced: str, settled: str, shared: str) -> None:
        planned, label = self.planned, f"value {value} {self.planned.listing.values[value].name}"
        for text, target in (
            (produced, planned.produced),
            (settled or produced, planned.settled),
            (shared, planned.shared),
        ):
            sharding = self._read(text, value, label) if text or target is not planned.shared else None
            if sharding is not None:
                target[value] = sharding

    def use(self, site: Site, text: str) -> None:
        value = site_value(self.planned.listing, site)
        label = f"use {site}"
        if value is None:
            self.offenders.append(f"{label}: the module has no such operand")
        elif site in self.planned.uses:
            self.offenders.append(f"{label}: given twice")
        else:
            sharding = self._read(text, value, label)
            if sharding is not None:
                self.planned.uses[site] = sharding

    def _read(self, text: str, value: int, label: str) -> TensorSharding | None:
        type_ = self.planned.listing.values[value].type
        if type_ is None:
            self.offenders.append(f"{label}: {text} on a value that is no tensor")
            return None
        key = (text, type_)
        if key not in self._known:
            self._known[key] = _well_formed(text, type_, self.planned.mesh, self._demanded)
        found = self._known[key]
        if isinstance(found, str):
            self.offenders.append(f"{label}: {found}")
            return None
        return found


def _demanded_axes(listing: Listing) -> Iterator[Parts]:
    """The axes of every dimension that the user split: he may split one further than it has elements."""
    demands = [*(a.demand for a in listing.arguments), *(r.demand for r in listing.results)]
    demands += [flow.demand for flow in listing.data_flows]
    demands += [demand for op in listing.ops for demand in (op.demand, *op.other_demands)]
    yield from (parts_of(dim.axes) for demand in demands if demand is not None for dim in demand.dims)


def _well_formed(
    text: str, type_: TensorType, mesh: Mesh, demanded: frozenset[Parts]
) -> TensorSharding | str:
    """The sharding that the text is, or what is wrong with it; dimensions split into more shards than elements only as `demanded`."""
    try:
        sharding = parse_sharding(text, mesh)
    except AutoshardError as error:
        return f"{text}: {error.reason}"
    if str(sharding) != text or sharding.replicated or not sharding.is_fully_closed:
        return f"{text} is not a closed sharding in Shardy's notation"
    if sharding.rank != type_.rank:
        return f"{text} on {type_}"
    dims = [parts_of(dim.axes) for dim in sharding.dims]
    twice = overlapping([*(part for parts in dims for part in parts), *parts_of(sharding.unreduced)])
    if twice is not None:
        return f'{text} uses axis "{twice}" twice'
    if any(
        num_shards(parts) > max(size, 1) and parts not in demanded
        for parts, size in zip(dims, type_.shape, strict=True)
    ):
        return f"{text} splits a dimension of {type_} beyond its size"
    return sharding


def site_value(listing: Listing, site: Site) -> int | None:
    """The value read at a site of the listing; None where there is no such site."""
    op, operand = site
    if op == RESULT_SITE:
        return listing.results[operand].value if 0 <= operand < len(listing.results) else None
    if op < 0:
        flow = listing.data_flows[-1 - op] if -1 - op < len(listing.data_flows) else None
        return flow.sources[operand].value if flow is not None and 0 <= operand < len(flow.sources) else None
    operands = listing.ops[op].operands if op < len(listing.ops) else ()
    return operands[operand] if 0 <= operand < len(operands) else None
