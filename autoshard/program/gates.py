"""Comparisons that gate the value they are made of, as activation functions have them: kept as that value, not as predicates.

XLA:TPU evaluates a comparison again in each fusion that reads its operand anyway, though a predicate has fewer bytes: of leaky rectifiers,
ELU, clipped values and values set against a mean it keeps what the product before made and neither predicates nor results (libtpu 0.0.51,
v5e 4x4, perceptrons of six layers and convolutions in bfloat16 and float32). Masks of dropout, whose readers do not read the random bits,
are kept as predicates.
"""

from collections import deque

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import is_cheap


class Gates:
    """Of all comparisons of a listing."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._made_at = {value: index for index, op in enumerate(listing.ops) for value in op.results}
        self._readers = listing.readers

    def is_gate(self, value: int, buffer: int) -> bool:
        """Whether a predicate made of that buffer has a reader that reads the buffer besides, perhaps through cheap work."""
        type_ = self._listing.values[value].type
        if type_ is None or type_.dtype != "i1":
            return False
        return any(self._reads(reader, buffer, besides=value) for reader in self._readers.get(value, ()))

    def _reads(self, reader: Op, buffer: int, besides: int) -> bool:
        first = self._made_at.get(buffer, -1)
        left = deque(reader.operands)  # nearest first: behind each select of a chain is all that came before
        seen = {besides}
        while left:
            value = left.popleft()
            if value == buffer:
                return True
            made_at = self._made_at.get(value, -1)
            if value not in seen and made_at > first and is_cheap(self._listing.ops[made_at]):
                seen.add(value)
                left.extend(self._listing.ops[made_at].operands)
        return False
