"""What only results depend on, made as soon as what it reads is there: the updates of weights and state behind a backward pass.

Traced programs have all updates at their end, where every gradient waits. XLA for v5p and v6e updates a weight when its gradient is summed
over the devices, and sums gradients together up to 120 MiB (`xla_jf_crs_combiner_threshold_in_bytes` of its dumps): of training steps of
eight perceptrons with 537 MB of gradients there are one to three at the peak with SGD and Adafactor (libtpu 0.0.51). On v5e, whose
scheduler moves work behind collectives, all of them wait. Where all gradients are read together (their norm), they do everywhere.
"""

from dataclasses import dataclass, field

from autoshard.mlir.context import Value, ir
from autoshard.mlir.dead import DIALECTS, EFFECTS
from autoshard.mlir.walk import function_named
from autoshard.sharding import TensorType

COMBINED_BYTES = 120 << 20
_RESHARDS = frozenset({"sdy.reshard", "sdy.sharding_constraint"})
_REDUCE = "stablehlo.reduce"
_SAME = _RESHARDS | {"stablehlo.broadcast_in_dim"}
"""What a written plan has once for each sharding that it is wanted in; so are `_CONSTANTS`."""
_CONSTANTS = frozenset({"stablehlo.constant", "stablehlo.iota"})
_STAY = EFFECTS | frozenset(
    f"stablehlo.{name}"
    for name in (
        "case", "cholesky", "concatenate", "convolution", "dot_general", "dynamic_slice", "dynamic_update_slice", "fft", "gather", "if",
        "optimization_barrier", "reduce_window", "scatter", "select_and_scatter", "sort", "triangular_solve", "while",
    )
)  # fmt: skip
"""Ops with work or an order of their own."""


def update_early(module: ir.Operation, entry: str) -> None:
    """Move the updates of the entry function, in place."""
    found = _Order(function_named(module, entry).regions[0].blocks[0])
    order = found.of_updates()
    if order != list(range(found.end)):
        for index in order:
            found.ops[index].move_before(found.ops[-1])


@dataclass(slots=True)
class _Order:
    """Changes of sharding and broadcasts are looked through: a written plan has more of them, and is read in the order that was planned."""

    block: ir.Block
    ops: list[ir.Operation] = field(init=False)
    end: int = field(init=False)  # number of the last op, which returns
    number: dict[ir.Operation, int] = field(init=False)
    users: list[set[int]] = field(init=False)  # of what each op makes
    readers: list[set[int]] = field(init=False)  # the same, also in other shardings and broadcast
    reads: list[list[Value]] = field(init=False)  # of each op, also by ops that it holds

    def __post_init__(self) -> None:
        self.ops = [view.operation for view in self.block.operations]
        self.end = len(self.ops) - 1
        self.number = {op: index for index, op in enumerate(self.ops)}
        self.users = [set[int]().union(*(self._users(result) for result in op.results)) for op in self.ops]
        self.readers = [
            set[int]().union(*(self._readers(result) for result in op.results)) for op in self.ops
        ]
        self.reads = [[] for _ in self.ops]
        for value in (*self.block.arguments, *(result for op in self.ops for result in op.results)):
            for user in self._users(value):
                self.reads[user].append(value)

    def of_updates(self) -> list[int]:
        """Numbers of all ops but the last: updates behind what they wait for, and what reads arguments only in front of its reader."""
        updates = self._updates()
        ready = self._ready(updates)
        place = {index: (index, 0, index) for index in range(self.end)}
        for index in sorted(updates, reverse=True):
            if ready[index] >= 0:
                place[index] = (ready[index], 1, index)
            elif users := [place[user] for user in self.users[index] & updates]:
                number, side, _ = min(users)
                place[index] = (number, side or -1, index)
        return sorted(place, key=place.__getitem__)

    def _updates(self) -> set[int]:
        """Ops that nothing else depends on than results."""
        return self._without_users(self._gradients(self._without_users(set())))

    def _without_users(self, staying: set[int]) -> set[int]:
        """Ops that may move and that only such ops read."""
        found = {self.end}
        for index in reversed(range(self.end)):
            users = self.users[index]
            if users and users <= found and index not in staying and _may_move(self.ops[index]):
                found.add(index)
        return found - {self.end}

    def _gradients(self, updates: set[int]) -> set[int]:
        """Sums of work on what others than updates read as well: gradients of biases and scales, which are no updates."""
        worked_on, found = set[int](), set[int]()
        read_besides = {
            index
            for index, op in enumerate(self.ops)
            if index not in updates and op.name not in _CONSTANTS and not self._is_for(updates, index)
        }
        for index in sorted(updates):
            values = (self._origin(read, set())[0] for read in self.reads[index])
            makers = {
                self.number[value.owner.operation] for value in values if isinstance(value, ir.OpResult)
            }
            if not (makers.isdisjoint(worked_on) and makers.isdisjoint(read_besides)):
                (found if self.ops[index].name == _REDUCE else worked_on).add(index)
        return found

    def _is_for(self, updates: set[int], index: int) -> bool:
        """Whether nothing but updates and the end reads what the op makes."""
        return self.readers[index] <= updates | {self.end}

    def _users(self, value: Value) -> set[int]:
        return {self._outer(use.owner.operation) for use in value.uses}

    def _outer(self, op: ir.Operation) -> int:
        """The op of the entry function's block that is it or holds it."""
        while op not in self.number:
            parent = op.parent
            assert parent is not None, "the entry function holds it"
            op = parent.operation
        return self.number[op]

    def _readers(self, value: Value) -> set[int]:
        """Users of the value, also in other shardings and broadcast."""
        found: set[int] = set()
        for user in self._users(value):
            is_same = self.ops[user].name in _SAME
            found |= self._readers(self.ops[user].results[0]) if is_same else {user}
        return found

    def _ready(self, updates: set[int]) -> dict[int, int]:
        """The last op that each update waits for; -1 where it only reads arguments.

        It waits for the sum of what it reads and for other readers of the arguments, which are written over.
        """
        summed = self._summed(updates)
        last_reads: dict[Value, int] = {
            value: max(self._readers(value) - updates - {self.end}, default=-1)
            for value in self.block.arguments
        }
        ready: dict[int, int] = {}
        freed: dict[int, int] = {}
        for index in sorted(updates):
            made, free = -1, -1
            for read in self.reads[index]:
                value, behind = self._origin(read, updates)
                free = max(free, behind)
                if not isinstance(value, ir.OpResult):
                    free = max(free, last_reads[value])
                elif (maker := self.number[value.owner.operation]) in updates:
                    made, free = max(made, ready[maker]), max(free, freed[maker])
                elif self.ops[maker].name in _CONSTANTS:
                    free = max(free, maker)
                else:
                    made = max(made, summed.get(maker, maker))
            freed[index] = free
            ready[index] = max(made, free) if made >= 0 else -1
        return ready

    def _origin(self, value: Value, updates: set[int]) -> tuple[Value, int]:
        """What the value is in another sharding or broadcast, and the op that makes it so for others too; -1 without one."""
        last = -1
        while isinstance(value, ir.OpResult):
            maker = self.number[value.owner.operation]
            if maker in updates or self.ops[maker].name not in _SAME:
                break
            value, last = self.ops[maker].operands[0], max(last, maker)
        return value, last

    def _summed(self, updates: set[int]) -> dict[int, int]:
        """When what each op makes for updates is summed: with others, up to some bytes."""
        found: dict[int, int] = {}
        waiting: list[int] = []
        bytes_ = 0
        for index, op in enumerate(self.ops):
            if index in updates or op.name in _SAME | _CONSTANTS:
                continue
            if updates.isdisjoint(self.readers[index]) or not self._is_for(updates, index):
                continue  # what others read too is summed for them
            waiting.append(index)
            bytes_ += sum(_num_bytes(result.type) for result in op.results)
            if bytes_ >= COMBINED_BYTES:
                found.update(dict.fromkeys(waiting, index))
                waiting, bytes_ = [], 0
        return found | dict.fromkeys(waiting, waiting[-1] if waiting else -1)


def _may_move(op: ir.Operation) -> bool:
    return op.name in _RESHARDS or (op.name.split(".")[0] in DIALECTS and op.name not in _STAY)


def _num_bytes(type_: ir.Type) -> int:
    """0 of what reading refuses later, or is no tensor."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0
    return TensorType(tuple(type_.shape), str(type_.element_type)).num_bytes
