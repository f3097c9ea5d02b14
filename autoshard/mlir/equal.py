"""Ops that read the same and say the same."""

from collections.abc import Callable, Hashable

from autoshard.mlir.context import ir

Says = Callable[[ir.Operation], Hashable | None]


class Equals:
    """The first of equal ops. What an op says, which takes long to ask, is asked of those alone that read what another does."""

    def __init__(self, says: Says) -> None:
        """`says`: all that is said of an op beside what it reads, None where that is not known."""
        self._says = says
        self._first: dict[Hashable, ir.Operation] = {}
        self._several: dict[Hashable, dict[Hashable, ir.Operation]] = {}

    def first(self, op: ir.Operation, reads: Hashable) -> ir.Operation:
        """The op itself where none before it is known to be equal."""
        before = self._first.setdefault(reads, op)
        if before is op:
            return op
        if reads not in self._several:
            self._several[reads] = {self._says(before): before}
        said = self._says(op)
        return op if said is None else self._several[reads].setdefault(said, op)
