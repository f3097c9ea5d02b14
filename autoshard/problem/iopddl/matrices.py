"""The matrices of all edges as text -> each distinct one once, and which one every edge has.

They repeat a lot: 54,801 edges of the contest's instance A have 1,560 matrices. Rows of a Part that are equal have equal
text, so a matrix that has been seen is known by its text before any number of it is read. What is kept of a long text is
its SHA-256, which nobody can make two texts share.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from autoshard.problem.iopddl.rows import Name, Part, parse_part, parts
from autoshard.problem.iopddl.walk import Walk
from autoshard.problem.model import Bools, Ints

FORBIDDEN_FROM = 10**17
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """Row-major costs of the pairs of each edge, forbidden ones masked; shapes are known only with the nodes."""

    of_edge: Ints  # [E] index of a distinct matrix
    length: Ints  # [distinct] entries
    _blocks: list[tuple[Ints, Bools | None]]
    _block: Ints  # [distinct] which of them
    _offset: Ints  # [distinct] where in it

    def entries(self, index: int) -> tuple[Ints, Bools | None]:
        """(costs, which are allowed) of a distinct matrix, flat; None: all are."""
        cost, allowed = self._blocks[self._block[index]]
        entries = slice(self._offset[index], self._offset[index] + self.length[index])
        if allowed is None or allowed[entries].all():
            return cost[entries], None
        return cost[entries], allowed[entries]


def read_matrices(walk: Walk, what: str, name: Name) -> Matrices:
    """The list of matrices that is next in the text.

    Raises:
        AutoshardError: as `read_rows`.
    """
    interner = _Interner(name)
    for part in parts(walk, what, name):
        if part.opens and part.closes:
            interner.add_rows(part)
        else:
            interner.add_piece(part)
    return interner.matrices()


@dataclass(slots=True)
class _Interner:
    name: Name
    _known: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _of_edge: list[Ints] = field(default_factory=list[Ints])
    _blocks: list[tuple[Ints, Bools | None]] = field(default_factory=list[tuple[Ints, "Bools | None"]])
    _lengths: list[Ints] = field(default_factory=list[Ints])
    _pieces: list[Ints] = field(default_factory=list[Ints])  # of the row that is being read
    _key: _Key = field(default_factory=lambda: _Key())

    def add_rows(self, part: Part) -> None:
        """Whole rows; those that are new are parsed together."""
        known = self._known
        found: list[int] = []
        fresh: list[tuple[int, bytes]] = []
        for row, text in enumerate(part.text.split(b"]")[:-1], part.first_row):
            key = text if len(text) < _DIGEST_BYTES else hashlib.sha256(text).digest()
            if key not in known:
                known[key] = len(known)
                fresh.append((row, text))
            found.append(known[key])
        self._of_edge.append(np.array(found, dtype=np.int64))
        if fresh:
            rows = [row for row, _ in fresh]
            text = b"]".join([*(text for _, text in fresh), b""])
            self._keep(*parse_part(Part(0, text), lambda index: self.name(rows[index])))

    def add_piece(self, part: Part) -> None:
        """A piece of a row: of a matrix that is known nothing is kept after its last piece."""
        self._pieces.append(parse_part(part, self.name)[0])
        self._key.add(part.text[:-1] if part.opens else b"," + part.text[2:-1])
        if not part.closes:
            return
        key, entries = self._key.value(), np.concatenate(self._pieces)
        self._pieces, self._key = [], _Key()
        if key not in self._known:
            self._known[key] = len(self._known)
            self._keep(entries, np.array([len(entries)]))
        self._of_edge.append(np.array([self._known[key]], dtype=np.int64))

    def _keep(self, entries: Ints, lengths: Ints) -> None:
        """New matrices, concatenated."""
        allowed = entries < FORBIDDEN_FROM
        if allowed.all():
            self._blocks.append((entries, None))
        else:
            entries[~allowed] = 0
            self._blocks.append((entries, allowed))
        self._lengths.append(lengths)

    def matrices(self) -> Matrices:
        nothing = np.zeros(0, dtype=np.int64)
        return Matrices(
            of_edge=np.concatenate([nothing, *self._of_edge]),
            length=np.concatenate([nothing, *self._lengths]),
            _blocks=self._blocks,
            _block=np.repeat(np.arange(len(self._lengths)), [len(lengths) for lengths in self._lengths]),
            _offset=np.concatenate([nothing, *(np.cumsum(lengths) - lengths for lengths in self._lengths)]),
        )


class _Key:
    """The key of a row's text that comes in pieces."""

    def __init__(self) -> None:
        self._hash, self._head = hashlib.sha256(), b""

    def add(self, text: bytes) -> None:
        self._hash.update(text)
        if len(self._head) < _DIGEST_BYTES:
            self._head += text[:_DIGEST_BYTES]

    def value(self) -> bytes:
        return self._head if len(self._head) < _DIGEST_BYTES else self._hash.digest()
