"""What XLA carries out once: steps that several readers of a value take alike, in one body of the program.

Each reader asks for its own change of sharding; equal operations on equal operands become one, which sends what the widest of the readers
takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.check.loops import Loop, Part
from autoshard.sharding import TensorSharding, TensorType

Body = frozenset[tuple[Loop, Part]]
_Taken = tuple[int, Body, tuple[TensorSharding, ...], int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A change of sharding that a reader of a value asks for, step by step, and what may travel."""

    value: int
    body: Body
    passed: tuple[TensorSharding, ...]  # from the first to the last
    travels: TensorType
    inside: tuple[int, Body] | None = None  # in place of value and body for the steps from `stays` on
    stays: int = 0
    again: int = 0  # above 0: anew, though others before ask for the same

    @property
    def steps(self) -> range:
        return range(1, len(self.passed))

    def taken(self, step: int) -> _Taken:
        value, body = self.inside if self.inside and step >= self.stays else (self.value, self.body)
        return value, body, self.passed[: step + 1], self.again


def carried_out(asked: Sequence[Asked | None]) -> list[list[TensorType | None]]:
    """What travels in each step of each change; None where an earlier one has it too. A change that no reader asks for is empty."""
    types: dict[_Taken, TensorType] = {}
    for one in asked:
        for step in one.steps if one else ():
            assert one is not None
            known = types.setdefault(one.taken(step), one.travels)
            if one.travels.num_bytes > known.num_bytes:
                types[one.taken(step)] = one.travels
    return [[types.pop(one.taken(step), None) for step in one.steps] if one else [] for one in asked]
