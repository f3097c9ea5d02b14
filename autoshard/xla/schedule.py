"""What XLA:TPU's latency-hiding scheduler says of a program's communication, from the text of its ScheduleProto.

The scheduler prices every instruction in cycles and lays them out. Its collectives are used here, its compute is not: it prices products
before their tiles are chosen, 1.4 to 5 times too slow. A collective that combines several buffers is priced as the first of them alone
(all-reduces of 2 to 14 buffers in any order, libtpu 0.0.52), so it counts here with the share of all. Of an asynchronous one only what
its `-done` waits for is exposed, which the scheduler states per kind and computation as wasted cycles. Each computation counts as often
as its loops run it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.xla.collectives import CompiledCollective
from autoshard.xla.hlo import KINDS

_LINE = re.compile(r"^( {4}| {6})(name|opcode|id|called_computation_ids): \"?([^\"\n]*)\"?$", re.M)
_INSTRUCTION = re.compile(r"\n  instructions \{(.*?)\n  \}", re.S)
_FIELD = re.compile(r"(\w+): ([\d.e+-]+)")
_SCHEDULES = "\ncomputation_schedules {"
_WASTED = "_wasted_cycles"


@dataclass(frozen=True, slots=True)
class SchedulePrice:
    """Nanoseconds of a step, by kind of collective. `total_ns` is the scheduler's own length of the entry."""

    exposed_ns: Mapping[str, int]
    synchronous_ns: Mapping[str, int]
    total_ns: int
    cycles_per_us: float
    scheduled: frozenset[str] = field(repr=False)  # names of the instructions that it priced
    computations: frozenset[str] = field(repr=False)  # and of the computations that these are in

    @property
    def communication_ns(self) -> int:
        return sum(self.exposed_ns.values()) + sum(self.synchronous_ns.values())


@dataclass(frozen=True, slots=True)
class _Called:
    """Names of instructions and computations by their numbers, and who calls whom."""

    instructions: Mapping[str, tuple[str, str]]  # (name, opcode)
    computations: Mapping[str, str]
    members: Mapping[str, Sequence[str]]  # of every computation by name, scheduled or not, its instructions
    callees: Mapping[str, Sequence[str]]  # of an instruction, by name
    kinds: Mapping[str, str]  # of fusions with a collective inside, by name


def read_schedule(
    text: str, collectives: Sequence[CompiledCollective], trips: Mapping[str, int]
) -> SchedulePrice:
    """`collectives` and `trips` are of the compiled module that was scheduled so."""
    head, *blocks = text.split(_SCHEDULES)
    called = _called(head)
    entry = re.search(r'entry_computation_name: "([^"]*)"', head)
    shares = {one.priced_as: sum(one.buffers) / max(one.buffers[0], 1) for one in collectives}
    computations: dict[str, _Scheduled] = {}
    for block in blocks:
        scheduled = _scheduled(block, called, shares)
        computations[scheduled.name] = scheduled
    runs = _runs(entry[1] if entry else "", computations, called, trips)
    rate = max((one.cycles_per_us for one in computations.values()), default=1.0)
    exposed, synchronous = defaultdict[str, float](float), defaultdict[str, float](float)
    for name, times in runs.items():
        for kind, cycles in computations[name].wasted.items():
            exposed[kind] += times * cycles
        for kind, cycles in computations[name].synchronous.items():
            synchronous[kind] += times * cycles
    total = computations[entry[1]].total if entry and entry[1] in computations else 0.0
    return SchedulePrice(
        {kind: round(cycles * 1000 / rate) for kind, cycles in sorted(exposed.items())},
        {kind: round(cycles * 1000 / rate) for kind, cycles in sorted(synchronous.items())},
        round(total * 1000 / rate),
        rate,
        frozenset(name for one in computations.values() for name in one.instructions),
        frozenset(computations),
    )


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """One computation; cycles of one run."""

    name: str
    instructions: tuple[str, ...]
    synchronous: Mapping[str, float]
    wasted: Mapping[str, float]
    total: float
    cycles_per_us: float


def _called(head: str) -> _Called:
    instructions: dict[str, tuple[str, str]] = {}
    computations: dict[str, str] = {}
    numbers: dict[str, list[str]] = defaultdict(list)
    opcodes: dict[str, list[str]] = {}  # of each computation
    members: dict[str, list[str]] = {}
    computation = name = opcode = ""
    inside: list[str] = []
    named: list[str] = []
    for indent, key, value in _LINE.findall(head):
        match len(indent), key:
            case 4, "name":
                computation = value
            case 4, "id":
                computations[value], opcodes[value], members[computation] = computation, inside, named
                inside, named = [], []
            case 6, "name":
                name = value
                named.append(value)
            case 6, "opcode":
                opcode = value
                inside.append(value.removesuffix("-start"))
            case 6, "id":
                instructions[value] = (name, opcode)
            case 6, "called_computation_ids":
                numbers[name].append(value)
            case _:
                pass
    kinds = {
        name: kind
        for name, ids in numbers.items()
        for number in ids
        for kind in opcodes.get(number, ())
        if kind in KINDS
    }
    callees = {name: [computations[i] for i in ids if i in computations] for name, ids in numbers.items()}
    return _Called(instructions, computations, members, callees, kinds)


def _scheduled(block: str, called: _Called, shares: Mapping[str, float]) -> _Scheduled:
    number = re.search(r"computation_id: (\d+)", block)
    assert number is not None
    synchronous = defaultdict[str, float](float)
    names: list[str] = []
    for found in _INSTRUCTION.findall(block):
        fields = dict(_FIELD.findall(found))
        name, opcode = called.instructions.get(fields["id"], ("", ""))
        names.append(name)
        kind = called.kinds.get(name, "") if opcode == "fusion" else opcode.removesuffix("-start")
        if kind in KINDS:
            cycles = float(fields.get("end_timestamp_cycles", 0)) - float(
                fields.get("start_timestamp_cycles", 0)
            )
            synchronous[kind] += cycles * shares.get(name, 1.0)
    statistics = dict(_FIELD.findall(block[block.find("scheduler_statistics") :]))
    wasted = {
        key.removesuffix(_WASTED).replace("_", "-"): float(value)
        for key, value in statistics.items()
        if key.endswith(_WASTED) and key != f"total{_WASTED}"
    }
    return _Scheduled(
        called.computations.get(number[1], ""),
        tuple(names),
        synchronous,
        wasted,
        float(statistics.get("total_cycles", 0)),
        float(statistics.get("cycles_per_microsecond", 1)),
    )


def _runs(
    entry: str, computations: Mapping[str, _Scheduled], called: _Called, trips: Mapping[str, int]
) -> Mapping[str, int]:
    """How often each scheduled computation runs in a step, also within loops that are not scheduled."""
    runs = Counter[str]()
    pending = [(entry, 1)] if entry in computations else []
    while pending:
        name, times = pending.pop()
        if name in computations:
            runs[name] += times
        for instruction in called.members.get(name, ()):
            for callee in called.callees.get(instruction, ()):
                if callee != name:
                    pending.append((callee, times * trips.get(instruction, 1)))
    return runs
