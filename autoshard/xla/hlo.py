"""Counts collectives in compiled HLO text."""

import re
from collections import Counter

_KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_INSTRUCTION = re.compile(rf" = (?:\(.*?\)|\S+) ({'|'.join(_KINDS)})(?:-start)?\(")


def collectives_of(hlo_text: str) -> dict[str, int]:
    """How often each kind is written (in a loop body: once); an asynchronous pair counts once."""
    return dict(sorted(Counter(_INSTRUCTION.findall(hlo_text)).items()))
