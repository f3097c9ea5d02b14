"""HLO text as values: computations of instructions. Takes TPU layouts, tiles and operands written with or without their types."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
"""Opcodes of collectives; the first half of an asynchronous one ends in `-start`."""

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+)(?: \(.*)? \{\s*")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\]]')
_COMMENT = re.compile(r"/\*.*?\*/")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_ARRAY = re.compile(r"\b([a-z]+[0-9a-z]*)\[([\d,<=]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_WIDTH = re.compile(r"[a-z]+?(\d+)(?:e\d.*)?")  # f8e4m3fn is 8 bits wide, c64 is 64
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_CALLEES = re.compile(
    r"\b(calls|body|condition|true_computation|false_computation|to_apply)=%?([\w.\-]+)|"
    r"\b(branch_computations|called_computations)=\{([^}]*)\}"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """`arguments`: the text between the brackets, where a constant has its value and a parameter its number."""

    name: str
    type: str
    opcode: str
    arguments: str
    attributes: str
    is_root: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(_OPERAND.findall(_COMMENT.sub("", self.arguments)))

    @property
    def op_name(self) -> str:
        """What XLA notes of the op that it is made of; "" where it notes nothing."""
        found = _OP_NAME.search(self.attributes)
        return "" if found is None else found[1]

    @property
    def collective(self) -> str | None:
        """Its kind, where it is a collective or the first half of one."""
        kind = self.opcode.removesuffix("-start")
        return kind if kind in KINDS else None

    @property
    def callees(self) -> Iterator[tuple[str, str]]:
        """(role, computation) of all that it calls; a role is the attribute's name."""
        for role, name, roles, names in _CALLEES.findall(self.attributes):
            if name:
                yield role, name
            else:
                yield from ((roles, one.strip().lstrip("%")) for one in names.split(","))

    def callee(self, role: str) -> str | None:
        return next((name for found, name in self.callees if found == role), None)


@dataclass(frozen=True, slots=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]
    by_name: Mapping[str, Instruction] = field(repr=False)

    @property
    def root(self) -> Instruction | None:
        return next((one for one in self.instructions if one.is_root), None)


@dataclass(frozen=True, slots=True)
class HloModule:
    computations: Mapping[str, Computation]
    entry: str
    num_partitions: int

    @property
    def instructions(self) -> Iterator[Instruction]:
        for computation in self.computations.values():
            yield from computation.instructions


def parse_hlo(text: str) -> HloModule:
    """The last of several modules in `text` wins a name; headers that are no computations are passed over."""
    found: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line[:1].strip():
            header = _COMPUTATION.fullmatch(line)
            current = None if header is None or line.startswith("HloModule") else header[2]
            if header is not None and current is not None:
                found[current] = []
                entry = current if header[1] else entry
        elif current is not None and (start := _INSTRUCTION.match(line)):
            found[current].extend(_instruction(start, line[start.end() :]))
    partitions = re.search(r"\bnum_partitions=(\d+)", text[: text.find("\n")])
    computations = {
        name: Computation(name, tuple(body), {one.name: one for one in body}) for name, body in found.items()
    }
    return HloModule(computations, entry, int(partitions[1]) if partitions else 1)


def _instruction(start: re.Match[str], text: str) -> Iterator[Instruction]:
    split = _end_of_brackets(text, 0) if text.startswith("(") else text.find(" ")
    type_, rest = text[:split], text[split:].lstrip()
    bracket = rest.find("(")
    if split > 0 and bracket > 0:
        end = _end_of_brackets(rest, bracket)
        yield Instruction(
            start[2], type_, rest[:bracket], rest[bracket + 1 : end - 1], rest[end:], start[1] is not None
        )


def _end_of_brackets(text: str, start: int) -> int:
    """Just after the bracket that closes the one at `start`; quoted ones do not count."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return len(text)


def dims_of(type_: str) -> tuple[int, ...]:
    """Of an array type, or of the first array of a tuple; bounds of dynamic sizes count as sizes."""
    found = _ARRAY.search(_LAYOUT.sub("", type_))
    return () if found is None else tuple(int(size.lstrip("<=")) for size in found[2].split(",") if size)


def dtype_of(type_: str) -> str:
    """Element type of the first array."""
    found = _ARRAY.search(_LAYOUT.sub("", type_))
    return "" if found is None else found[1]


def bytes_of(type_: str) -> int:
    """Elements times their width, over all arrays of a tuple; without the padding of a layout."""
    bits = 0
    for dtype, dims in _ARRAY.findall(_LAYOUT.sub("", _COMMENT.sub("", type_))):
        bits += _bits(dtype) * math.prod(int(size.lstrip("<=")) for size in dims.split(",") if size)
    return -(-bits // 8)


def elements_of(type_: str) -> tuple[str, ...]:
    """The types in a tuple, one level deep; of an array, itself."""
    text = _COMMENT.sub("", type_).strip()
    if not text.startswith("("):
        return (text,)
    parts: list[str] = []
    depth, start, inner = 0, 0, text[1:-1]
    for i, letter in enumerate(inner):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inner[start:i].strip())
            start = i + 1
    return tuple(part for part in (*parts, inner[start:].strip()) if part)


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    width = _WIDTH.fullmatch(dtype)
    return int(width[1]) if width else 32


def collectives_of(hlo_text: str) -> dict[str, int]:
    """How often each kind is written (in a loop body: once); an asynchronous pair counts once."""
    kinds = (one.collective for one in parse_hlo(hlo_text).instructions)
    return dict(sorted(Counter(kind for kind in kinds if kind is not None).items()))
