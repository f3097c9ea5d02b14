"""The engines' processes, asked together: one round of the race."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core
from autoshard.solve.exact.lazy import Progress
from autoshard.solve.exact.member import Member, Message
from autoshard.solve.exact.question import Question

_SHARE = 0.5  # of the time that is left, for an engine that others wait for
_PATIENCE = 10  # times as long as the others needed, and
_PATIENCE_S = 60.0  # this at least: then an engine hangs, and is told to stop
_AFTER_PROOF_S = 5.0  # the same once a later engine has a proof
_LAST_WORDS_S = 0.3
_TICK_S = 0.1


class Team:
    """Processes are started when first asked; one that is gone is not started again.

    `found` is told every choice that fits, as soon as an engine has it.
    """

    def __init__(
        self,
        core: Core,
        clock: Clock,
        seed: int,
        engines: Sequence[str],
        threads: int,
        found: Callable[[Ints], None],
    ) -> None:
        self._introduction = pickle.dumps((core, seed), pickle.HIGHEST_PROTOCOL)
        self._clock, self._threads, self._found = clock, threads, found
        self.engines = list(engines)  # those not gone, in order
        self._members: dict[str, Member] = {}
        self._said: SimpleQueue[tuple[str, Message]] = SimpleQueue()
        self._running: set[str] = set()
        self._answered: dict[str, Progress] = {}

    def round(self, question_for: Callable[[str, float], Question]) -> list[Progress]:
        """The answers in the order of the engines, up to the first that is a proof and no later one.

        `question_for` is given the engine and its time limit in seconds.

        Raises:
            OutOfTimeError: the clock is over; `last_words` has what there is.
        """
        began = time.monotonic()
        waiting = list(self.engines)
        self._answered.clear()
        while (waiting or self._running) and not self._settled():
            while waiting and len(self._running) < self._threads and not self._proofs():
                name = waiting.pop(0)
                others_wait = len(waiting) + len(self._running) >= self._threads
                limit_s = self._clock.left_s() * (_SHARE if others_wait else 1.0)
                self._ask(name, question_for(name, limit_s))
            if not self._running:
                break
            self._hear(began)
        return self._in_order()

    def _ask(self, name: str, question: Question) -> None:
        if name not in self._members:
            try:
                self._members[name] = Member(name, self._introduction, self._said)
            except OSError:  # no more processes
                self.engines.remove(name)
                return
        self._running.add(name)
        self._members[name].ask(question)

    def _hear(self, began: float) -> None:
        """Wait for one message, or for the patience to end."""
        patience_s, heard_at = self._patience_s(began), time.monotonic()
        while True:
            self._clock.check()
            try:
                self._take(*self._said.get(timeout=min(_TICK_S, max(self._clock.left_s(), 0.0))))
                return
            except Empty:
                if time.monotonic() - heard_at > patience_s:
                    self._hurry()
                    patience_s = float("inf")

    def _patience_s(self, began: float) -> float:
        """How long we wait in silence for those that still run."""
        if not self._answered:
            return float("inf")
        least = _AFTER_PROOF_S if self._proofs() else _PATIENCE_S
        return max(least, _PATIENCE * (time.monotonic() - began))

    def _take(self, name: str, message: Message) -> None:
        if message is None:
            self._running.discard(name)
            self.engines.remove(name)
            self._members.pop(name).end()
        elif isinstance(message, Progress):
            self._running.discard(name)
            self._answered[name] = message
        else:
            self._found(message)

    def _proofs(self) -> list[str]:
        return [name for name in self.engines if name in self._answered and _is_proof(self._answered[name])]

    def _settled(self) -> bool:
        """No answer that is still to come can change the result."""
        proofs = self._proofs()
        if not proofs:
            return False
        earlier = self.engines[: self.engines.index(proofs[0])]
        return all(name in self._answered for name in earlier) or any(
            self._answered[name].answer.infeasible for name in proofs
        )

    def _in_order(self) -> list[Progress]:
        answers: list[Progress] = []
        for name in self.engines:
            if name in self._answered:
                answers.append(self._answered[name])
                if _is_proof(answers[-1]):
                    break
        return answers

    def _hurry(self) -> None:
        for name in self._running:
            self._members[name].hurry()

    def last_words(self) -> list[Progress]:
        """What engines that are told to stop can say in a moment."""
        self._hurry()
        until = time.monotonic() + _LAST_WORDS_S
        while self._running and time.monotonic() < until:
            with suppress(Empty):
                self._take(*self._said.get(timeout=_TICK_S))
        return self._in_order()

    def end(self) -> None:
        for member in self._members.values():
            member.end()


def _is_proof(progress: Progress) -> bool:
    return progress.answer.optimal or progress.answer.infeasible
