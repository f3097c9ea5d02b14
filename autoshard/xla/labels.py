"""Names every op of a module by a number that XLA carries into the metadata of what it makes of it, and reads such names back."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.mlir.context import ir
from autoshard.mlir.locations import Locations
from autoshard.xla.prepare import walk

_LABEL = re.compile(r"\bautoshard\.op(\d+)\b")
_CONSTRAINT = "sdy.sharding_constraint"
BOUNDARY = "arguments and results"
"""Where a plan says that what crosses main's boundary is needed."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What the numbers stand for: the op and its location, as plans have them. `readers`: of a constraint, the op that reads through it."""

    texts: tuple[str, ...]
    readers: Mapping[str, str]

    def where(self, op_name: str) -> str:
        """The op of the module in a name of XLA's, which may have a prefix; a name of XLA's own stays as it is."""
        found = _LABEL.search(op_name)
        return self.texts[int(found[1])] if found and int(found[1]) < len(self.texts) else op_name

    def readable(self, hlo_text: str) -> str:
        """HLO with the ops in place of their numbers."""
        return _LABEL.sub(
            lambda found: self.where(found[0]).replace("\\", "\\\\").replace('"', '\\"'), hlo_text
        )


def label(module: ir.Operation, file: str) -> Labels:
    """Rename in place."""
    locations = Locations(file)
    ops = list(walk(module))
    texts = tuple(_text(op, locations) for op in ops)
    readers = {
        text: _text(_reader(op), locations)
        for op, text in zip(ops, texts, strict=True)
        if op.name == _CONSTRAINT
    }
    for number, op in enumerate(ops):
        op.location = ir.Location.name(f"autoshard.op{number}", context=op.context)
    return Labels(texts, readers)


def _reader(op: ir.Operation) -> ir.Operation:
    while op.name == _CONSTRAINT:
        use = next(iter(op.results[0].uses), None)
        if use is None:
            return op
        op = use.owner.operation
    return op


def _text(op: ir.Operation, locations: Locations) -> str:
    if op.name == "func.return":
        return BOUNDARY
    return f"{op.name} {locations.text(op.location)}".strip()
