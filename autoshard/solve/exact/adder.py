"""A memory row -> clauses: binary numbers added by a network of adders, the sum compared with the room.

Full adders with sum and carry as variables of their own [1, section 5.2], in both directions, so a choice decides
every variable by unit propagation. A node takes exactly one strategy, so its usage is one number, not one for each
strategy: its least usage is taken off the room and bit b of the rest is the OR of the strategies that have the bit.
All numbers are first divided by their greatest common divisor. The size is linear in numbers times bits whatever
the numbers are, which decision diagrams and totalizers do not promise.

[1] N. Een, N. Sorensson, Translating pseudo-Boolean constraints into SAT, JSAT 2, 2006.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

Number = list[
    tuple[int, int]
]  # (literal, amount >= 0): exactly one of the literals holds, and that is the amount


@dataclass(slots=True)
class Clauses:
    """Clauses over the variables 1..top."""

    top: int = 0
    hard: list[list[int]] = field(default_factory=list[list[int]])
    _any_of: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])

    def variable(self) -> int:
        self.top += 1
        return self.top

    def any_of(self, literals: list[int]) -> int:
        """A literal that holds exactly where one of these does, the same one for the same question."""
        if len(literals) == 1:
            return literals[0]
        result = self._any_of.get(tuple(literals))
        if result is None:
            result = self._any_of[tuple(literals)] = self.variable()
            self.hard.append([-result, *literals])
            self.hard.extend([result, -literal] for literal in literals)
        return result


def at_most(clauses: Clauses, numbers: list[Number], room: int) -> list[list[int]]:
    """Define the sum of the numbers; the clauses returned demand that it is `room` at most."""
    least = [min(amount for _, amount in number) for number in numbers]
    room -= sum(least)
    if room < 0:
        contradiction = clauses.variable()
        return [[contradiction], [-contradiction]]
    rests = [
        [(literal, amount - low) for literal, amount in number if amount > low]
        for number, low in zip(numbers, least, strict=True)
    ]
    too_much = [[-literal] for rest in rests for literal, amount in rest if amount > room]
    fitting = [[(literal, amount) for literal, amount in rest if amount <= room] for rest in rests]
    if sum(max((amount for _, amount in rest), default=0) for rest in fitting) <= room:
        return too_much
    unit = gcd(*(amount for rest in fitting for _, amount in rest))
    scaled = [[(literal, amount // unit) for literal, amount in rest] for rest in fitting]
    return too_much + _at_most(_sum(clauses, scaled), room // unit)


def _sum(clauses: Clauses, numbers: list[Number]) -> list[int | None]:
    """The bits of the sum, lowest first; None is a zero."""
    columns = _columns(clauses, numbers)
    total: list[int | None] = []
    while len(total) < len(columns):
        column = columns[len(total)]
        if len(column) > 1 and len(total) + 1 == len(columns):
            columns.append([])
        while len(column) > 1:  # first in, first out: a balanced tree
            digits, column[:3] = column[:3], []
            digit, carry = (
                _full_adder(clauses, *digits) if len(digits) == 3 else _half_adder(clauses, *digits)
            )
            column.append(digit)
            columns[len(total) + 1].append(carry)
        total.append(column[0] if column else None)
    return total


def _columns(clauses: Clauses, numbers: list[Number]) -> list[list[int]]:
    """For each place the literals that are a one there."""
    largest = max(amount for number in numbers for _, amount in number)
    return [
        [
            clauses.any_of(having)
            for number in numbers
            if (having := [literal for literal, amount in number if amount >> place & 1])
        ]
        for place in range(largest.bit_length())
    ]


def _half_adder(clauses: Clauses, a: int, b: int) -> tuple[int, int]:
    digit, carry = clauses.variable(), clauses.variable()
    clauses.hard += [[-a, -b, -digit], [a, b, -digit], [a, -b, digit], [-a, b, digit]]
    clauses.hard += [[-a, -b, carry], [a, -carry], [b, -carry]]
    return digit, carry


def _full_adder(clauses: Clauses, a: int, b: int, c: int) -> tuple[int, int]:
    digit, carry = clauses.variable(), clauses.variable()
    for one, two, three in ((a, b, c), (a, -b, -c), (-a, b, -c), (-a, -b, c)):
        clauses.hard += [[-one, -two, -three, digit], [one, two, three, -digit]]
    for one, two in ((a, b), (a, c), (b, c)):
        clauses.hard += [[-one, -two, carry], [one, two, -carry]]
    for one in (a, b, c):  # implied, for propagation from the sum
        clauses.hard += [[-digit, -carry, one], [digit, carry, -one]]
    return digit, carry


def _at_most(total: list[int | None], room: int) -> list[list[int]]:
    """Each bit that is one where the room's is zero needs a higher one that is zero where the room's is one."""
    demands: list[list[int]] = []
    for place, digit in enumerate(total):
        if digit is None or room >> place & 1:
            continue
        higher = [place for place in range(place + 1, room.bit_length()) if room >> place & 1]
        escapes = [total[place] if place < len(total) else None for place in higher]
        if None not in escapes:  # a zero there is an escape for good
            demands.append([-digit, *(-escape for escape in escapes if escape is not None)])
    return demands
