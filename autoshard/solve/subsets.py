"""A smallest-by-inclusion set of requirements that cannot hold together, by questions "can all of these hold?".

QuickXplain [1] takes about 2 k log(n / k) questions for k of n; then each member is left out once more, until a whole round finds
every one needed, so the answer is minimal by test even where fewer requirements are not always easier to meet.

[1] U. Junker, QuickXplain: preferred explanations and relaxations for over-constrained problems, AAAI 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Holds = Callable[[frozenset[int]], bool | None]
"""Can all of these requirements hold together? None: not decided in the time that there is."""


@dataclass(frozen=True, slots=True)
class Minimal:
    """Requirements that cannot hold together; `is_proved`: leaving any one out was seen to be enough."""

    members: tuple[int, ...]
    is_proved: bool


@dataclass(slots=True)
class Memory:
    """Remembers the answers of an oracle."""

    holds: Holds
    known: dict[frozenset[int], bool | None] = field(default_factory=dict[frozenset[int], bool | None])

    def __call__(self, members: frozenset[int]) -> bool | None:
        if members not in self.known:
            self.known[members] = self.holds(members)
        return self.known[members]


def minimal(clashing: Sequence[int], holds: Holds) -> Minimal:
    """A minimal part of requirements that are known to clash; those that come first are preferred."""
    ask = Memory(holds)
    found = list(clashing)
    if ask(frozenset()) is False:
        return Minimal((), True)
    if len(found) > 1:
        found = _explained([], found, ask, is_new=False)
        if ask(frozenset(found)) is not False:  # fewer requirements were harder to meet, or time ran out
            found = list(clashing)
    return _without_needless(found, ask)


def _explained(background: list[int], candidates: list[int], ask: Memory, *, is_new: bool) -> list[int]:
    """Candidates that clash with the background; none where the background, just grown, clashes by itself."""
    if is_new and ask(frozenset(background)) is False:
        return []
    if len(candidates) == 1:
        return candidates
    half = len(candidates) // 2
    first, second = candidates[:half], candidates[half:]
    of_second = _explained([*background, *first], second, ask, is_new=True)
    of_first = _explained([*background, *of_second], first, ask, is_new=bool(of_second))
    return [*of_first, *of_second]


def _without_needless(members: list[int], ask: Memory) -> Minimal:
    changed = True
    while changed:
        changed = False
        for member in reversed(members):
            fewer = [other for other in members if other != member]
            if ask(frozenset(fewer)) is False:
                members, changed = fewer, True
    kept = frozenset(members)
    return Minimal(tuple(sorted(members)), all(ask(kept - {member}) is True for member in members))
