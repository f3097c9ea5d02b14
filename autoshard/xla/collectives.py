"""Every collective of a compiled HLO module: what it moves, between whom, how often, and for which op.

Times are products of the trip counts of the loops around it; a loop whose count does not show is taken for as many as in plans. The
collective of an asynchronous pair is its first half; TPUs also run one in pieces inside several fusions, of which the one that starts it
counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.mlir.repeats import DEFAULT_TRIP_COUNT
from autoshard.xla.groups import Groups, permuted_pairs, replica_groups
from autoshard.xla.hlo import Computation, HloModule, Instruction, bytes_of, dtype_of, elements_of
from autoshard.xla.trips import trip_count

_PIECE = "async_collective_fusion_config"
_START = '"AsyncCollectiveStart"'
_VIEWS = ("bitcast", "get-tuple-element")


@dataclass(frozen=True, slots=True)
class CompiledCollective:
    """One collective instruction; bytes are of one device and of one run, without padding.

    buffers: bytes of each operand, of which a combined collective has several.
    priced_as: the instruction that stands for it in the schedule, itself or the fusion it is in.
    group: devices of the first group; of a permute, that send.
    where: what each buffer is moved for, one or one for each of several buffers, as XLA names it.
    """

    kind: str
    name: str
    priced_as: str
    dtype: str
    buffers: tuple[int, ...]
    result_bytes: int
    group_size: int
    groups: int
    group: tuple[int, ...] = field(repr=False)
    times: int
    is_asynchronous: bool
    where: tuple[str, ...]

    @property
    def operand_bytes(self) -> int:
        return sum(self.buffers)

    @property
    def total_bytes(self) -> int:
        """Operand bytes over all runs of a step."""
        return self.operand_bytes * self.times


@dataclass(frozen=True, slots=True)
class Walked:
    """`trips`: runs of each loop by its name; `unknown_loops`: those taken for `DEFAULT_TRIP_COUNT` as theirs do not show."""

    collectives: tuple[CompiledCollective, ...]
    trips: Mapping[str, int]
    unknown_loops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """A computation as reached from the entry: so many times, through that fusion or none."""

    computation: Computation
    times: int
    through: Instruction | None


def visits(module: HloModule, trips: dict[str, int | None] | None = None) -> Iterator[Visit]:
    """Every computation once for each place that runs it, callers first. Notes the trip count of each loop in `trips`."""
    pending = [Visit(module.computations[module.entry], 1, None)]
    while pending:
        visit = pending.pop()
        yield visit
        for instruction in visit.computation.instructions:
            if instruction.opcode.endswith(("-done", "-update")):  # what they call is what their start calls
                continue
            times = visit.times
            if instruction.opcode == "while":
                count = trip_count(module, visit.computation, instruction)
                if trips is not None:
                    trips[instruction.name] = count
                times *= DEFAULT_TRIP_COUNT if count is None else count
            through = visit.through or (instruction if instruction.opcode == "fusion" else None)
            pending.extend(
                Visit(module.computations[name], times, through)
                for role, name in instruction.callees
                if name in module.computations and _is_run(instruction, role)
            )


def _is_run(instruction: Instruction, role: str) -> bool:
    """Reducers and comparators are no steps of a program."""
    return role != "to_apply" or instruction.opcode == "call"


def collectives_in(module: HloModule) -> Walked:
    """All of them, in the order of a walk from the entry. A loop whose trip count does not show is named."""
    found: list[CompiledCollective] = []
    trips: dict[str, int | None] = {}
    for visit in visits(module, trips):
        starts = any(_START in one.attributes for one in visit.computation.instructions)
        for instruction in visit.computation.instructions:
            is_piece = _PIECE in instruction.attributes
            if instruction.collective is not None and (starts or not is_piece):
                found.append(_collective(module, visit, instruction, is_piece))
    unknown = tuple(name for name, count in trips.items() if count is None)
    runs = {name: DEFAULT_TRIP_COUNT if count is None else count for name, count in trips.items()}
    return Walked(tuple(found), runs, unknown)


def _collective(
    module: HloModule, visit: Visit, instruction: Instruction, is_piece: bool
) -> CompiledCollective:
    kind = instruction.collective
    assert kind is not None
    buffers = _buffers(module, visit.computation, instruction)
    result_bytes = _result_bytes(instruction, kind)
    group, size, count = _group(kind, instruction, module.num_partitions)
    return CompiledCollective(
        kind,
        instruction.name,
        (visit.through or instruction).name,
        dtype_of(buffers[0].type if buffers else instruction.type),
        tuple(bytes_of(one.type) for one in buffers) or (result_bytes,),
        result_bytes,
        size,
        count,
        group,
        visit.times,
        is_piece or instruction.opcode.endswith("-start"),
        _op_names(visit, instruction, buffers),
    )


def _buffers(module: HloModule, computation: Computation, instruction: Instruction) -> list[Instruction]:
    """What is sent: the operands, or what XLA:GPU laid end to end into a single one (which then has no name)."""
    found = _operands(computation, instruction)
    if len(found) == 1 and found[0].op_name == "" and _lays_end_to_end(module, found[0]):
        return _operands(computation, found[0])
    return found


def _operands(computation: Computation, instruction: Instruction) -> list[Instruction]:
    return [computation.by_name[name] for name in instruction.operands if name in computation.by_name]


def _lays_end_to_end(module: HloModule, instruction: Instruction) -> bool:
    if instruction.opcode != "fusion":
        return instruction.opcode == "concatenate"
    root = module.computations[instruction.callee("calls") or ""].root
    return (
        root is not None and root.opcode == "concatenate" and len(root.operands) == len(instruction.operands)
    )


def _result_bytes(instruction: Instruction, kind: str) -> int:
    """Of a start, whose type holds operands, results and what it keeps meanwhile, the results alone."""
    if not instruction.opcode.endswith("-start") or kind == "all-reduce":
        return bytes_of(instruction.type)
    return bytes_of(elements_of(instruction.type)[1])


def _group(kind: str, instruction: Instruction, num_devices: int) -> tuple[tuple[int, ...], int, int]:
    if kind == "collective-permute":
        pairs = permuted_pairs(instruction.attributes)
        return tuple(source for source, _ in pairs), 2, len(pairs)
    groups: Groups = replica_groups(instruction.attributes, num_devices)
    return groups[0], len(groups[0]), len(groups)


def _op_names(visit: Visit, instruction: Instruction, buffers: Sequence[Instruction]) -> tuple[str, ...]:
    """Of itself, of the fusion it is in, else of what makes its operand, as some passes forget it on the collectives that they make.

    Of a combined one, of what makes each buffer: its own is that of one of them.
    """
    itself = (instruction,) if visit.through is None else (instruction, visit.through)
    makers = [_maker(visit.computation, buffer) for buffer in buffers]
    if len(makers) < 2:
        return (_first_op_name((*itself, *makers)),)
    return tuple(_first_op_name((maker, *itself)) for maker in makers)


def _maker(computation: Computation, buffer: Instruction) -> Instruction:
    """What makes it, behind views without a name."""
    while buffer.opcode in _VIEWS and buffer.op_name == "":
        behind = _operands(computation, buffer)
        if not behind:
            break
        buffer = behind[0]
    return buffer


def _first_op_name(candidates: Iterable[Instruction]) -> str:
    return next((one.op_name for one in candidates if one.op_name), "")
