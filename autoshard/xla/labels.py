"""Names every op of a module by a number that XLA carries into the metadata of what it makes of it, and reads such names back."""

import re
from collections.abc import Sequence

from autoshard.mlir.context import ir
from autoshard.mlir.locations import Locations
from autoshard.xla.prepare import walk

_LABEL = re.compile(r"\bautoshard\.op(\d+)\b")
_CONSTRAINT = "sdy.sharding_constraint"
BOUNDARY = "arguments and results"
"""Where a plan says that what crosses main's boundary is needed."""


def label(module: ir.Operation, file: str) -> tuple[str, ...]:
    """Rename in place; what the numbers stand for: the op and its location, as in plans. Of a constraint, the op that reads through it."""
    locations = Locations(file)
    ops = list(walk(module))
    texts = [_text(_reader(op) if op.name == _CONSTRAINT else op, locations) for op in ops]
    for number, op in enumerate(ops):
        op.location = ir.Location.name(f"autoshard.op{number}", context=op.context)
    return tuple(texts)


def where(op_name: str, texts: Sequence[str]) -> str:
    """The op of the module in a name of XLA's, which may have a prefix; a name of XLA's own stays as it is."""
    found = _LABEL.search(op_name)
    return texts[int(found[1])] if found and int(found[1]) < len(texts) else op_name


def readable(hlo_text: str, texts: Sequence[str]) -> str:
    """HLO with the ops in place of their numbers."""
    return _LABEL.sub(
        lambda found: where(found[0], texts).replace("\\", "\\\\").replace('"', '\\"'), hlo_text
    )


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
