"""What only results depend on, made as soon as what it reads is there: the updates of weights and state behind a backward pass.

Traced programs have all updates at their end, where every gradient waits. XLA for v5p and v6e updates a weight when its gradient is summed
over the devices, and sums gradients together up to 120 MiB (`xla_jf_crs_combiner_threshold_in_bytes` of its dumps): of training steps of
eight perceptrons with 537 MB of gradients there are one to three at the peak with SGD and Adafactor (libtpu 0.0.51). On v5e, whose
scheduler moves work behind collectives, all of them wait. Where all gradients are read together (their norm), they do everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.mlir.context import Value, ir
from autoshard.mlir.dead import DIALECTS, EFFECTS
from autoshard.mlir.walk import function_named
from autoshard.sharding import TensorType

COMBINED_BYTES = 120 << 20
_STAY = frozenset(
    f"stablehlo.{name}"
    for name in (
        *(
            "concatenate",
            "convolution",
            "dot_general",
            "dynamic_slice",
            "dynamic_update_slice",
            "fft",
            "gather",
        ),
        *("reduce_window", "scatter", "select_and_scatter", "sort", "triangular_solve", "cholesky"),
        *("case", "if", "while", "optimization_barrier"),
    )
)
"""Ops with work or an order of their own."""


def update_early(module: ir.Operation, entry: str) -> None:
    """Move the updates of the entry function, in place."""
    block = function_named(module, entry).regions[0].blocks[0]
    *ops, end = (view.operation for view in block.operations)
    order = _Order(ops, end).of_updates()
    if order != list(range(len(ops))):
        for index in order:
            ops[index].move_before(end)


@dataclass(slots=True)
class _Order:
    ops: Sequence[ir.Operation]
    end: ir.Operation
    number: dict[ir.Operation, int] = field(init=False)

    def __post_init__(self) -> None:
        self.number = {op: index for index, op in enumerate(self.ops)}
        self.number[self.end] = len(self.ops)

    def of_updates(self) -> list[int]:
        """Numbers of all ops, updates behind the last op that they wait for."""
        updates = self._updates()
        ready = self._ready(updates)
        place = {index: (index, 0, index) for index in range(len(self.ops))}
        for index in sorted(updates, reverse=True):
            users = [place[user] for user in self._users(index) if user in updates]
            behind = min((number if is_moved else number - 1 for number, is_moved, _ in users), default=-1)
            if (waits := behind if ready[index] < 0 else ready[index]) >= 0:
                place[index] = (waits, 1, index)
        return sorted(place, key=place.__getitem__)

    def _updates(self) -> set[int]:
        """Ops that nothing else depends on than results."""
        found = {len(self.ops)}
        for index in reversed(range(len(self.ops))):
            op = self.ops[index]
            users = self._users(index)
            if users and users <= found and _may_move(op):
                found.add(index)
        return found - {len(self.ops)}

    def _users(self, index: int) -> set[int]:
        return {self._outer(use.owner.operation) for result in self.ops[index].results for use in result.uses}

    def _outer(self, op: ir.Operation) -> int:
        """The op of the entry function's block that is it or holds it."""
        while op not in self.number:
            parent = op.parent
            assert parent is not None, "the entry function holds it"
            op = parent.operation
        return self.number[op]

    def _ready(self, updates: set[int]) -> dict[int, int]:
        """The last op that each update waits for; -1 where it only reads arguments.

        It waits for the sum of what it reads and for other readers of the arguments, which are written over.
        """
        summed = self._summed(updates)
        last_reads: dict[Value, int] = {}
        ready: dict[int, int] = {}
        freed: dict[int, int] = {}
        for index in sorted(updates):
            made, free = -1, -1
            for operand in self.ops[index].operands:
                if not isinstance(operand, ir.OpResult):
                    if operand not in last_reads:
                        readers = (
                            {self._outer(use.owner.operation) for use in operand.uses}
                            - updates
                            - {len(self.ops)}
                        )
                        last_reads[operand] = max(readers, default=-1)
                    free = max(free, last_reads[operand])
                    continue
                maker = self.number[operand.owner.operation]
                if maker in updates:
                    made, free = max(made, ready[maker]), max(free, freed[maker])
                else:
                    made = max(made, summed[maker])
            freed[index] = free
            ready[index] = max(made, free) if made >= 0 else -1
        return ready

    def _summed(self, updates: set[int]) -> dict[int, int]:
        """When what each op makes for updates is summed: with others, up to some bytes."""
        found: dict[int, int] = {}
        waiting: list[int] = []
        bytes_ = 0
        for index, op in enumerate(self.ops):
            if index in updates or updates.isdisjoint(self._users(index)):
                continue
            waiting.append(index)
            bytes_ += sum(_num_bytes(result.type) for result in op.results)
            if bytes_ >= COMBINED_BYTES:
                found.update(dict.fromkeys(waiting, index))
                waiting, bytes_ = [], 0
        return found | dict.fromkeys(waiting, waiting[-1] if waiting else -1)


def _may_move(op: ir.Operation) -> bool:
    is_work = op.name.split(".")[0] in DIALECTS and op.name not in _STAY | EFFECTS
    return is_work or op.name in ("sdy.sharding_constraint", "sdy.reshard")


def _num_bytes(type_: ir.Type) -> int:
    """0 of what reading refuses later, or is no tensor."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0
    return TensorType(tuple(type_.shape), str(type_.element_type)).num_bytes
