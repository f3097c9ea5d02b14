"""Which instruction makes what is in a buffer, behind copies, views, loops and fusions that only pass it on."""

import re

from autoshard.xla.hlo import HloModule, Instruction

_INDEX = re.compile(r"\bindex=(\d+)")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_VIEWS = frozenset({"bitcast", "copy", "copy-start", "copy-done", "slice-start", "slice-done", "opt-barrier"})
_BUFFER = re.compile(r"([^{]+)(?:\{(\d+)[\d,]*\})?")


class Makers:
    """Of all buffers of a module, whose instructions have names of their own."""

    def __init__(self, module: HloModule) -> None:
        self._computations = module.computations
        self._found = {one.name: one for one in module.instructions}
        entry = module.computations[module.entry].instructions
        self._arguments = {one.name: one.arguments for one in entry if one.opcode == "parameter"}

    def op_name(self, buffer: str) -> str:
        """What XLA notes of the op that the buffer is made for, "" where it notes nothing; of `fusion.5{1}` the second result."""
        parts = _BUFFER.fullmatch(buffer)
        return "" if parts is None else self._of(parts[1], int(parts[2] or 0), set())

    def _of(self, name: str, index: int, seen: set[tuple[str, int]]) -> str:
        """The name of what is behind it, else its own; of an argument its number."""
        if name in self._arguments:
            return f"argument {self._arguments[name]}"
        if name not in self._found or (name, index) in seen:
            return ""
        seen.add((name, index))
        one = self._found[name]
        return self._behind(one, index, seen) or _own(one)

    def _behind(self, one: Instruction, index: int, seen: set[tuple[str, int]]) -> str:
        operands = one.operands
        if one.opcode == "fusion":
            return self._made_inside(one.callee("calls"), index, seen, operands)
        if not operands:
            return ""
        if one.opcode == "get-tuple-element":
            found = _INDEX.search(one.attributes)
            return self._of(operands[0], int(found[1]) if found else 0, seen)
        if one.opcode in _VIEWS:
            return self._of(operands[0], 0, seen)
        if one.opcode == "tuple" and index < len(operands):
            return self._of(operands[index], 0, seen)
        if one.opcode == "while":
            made = self._made_inside(one.callee("body"), index, seen)
            return made or self._of(operands[0], index, seen)
        return ""

    def _made_inside(
        self, called: str | None, index: int, seen: set[tuple[str, int]], operands: tuple[str, ...] = ()
    ) -> str:
        """Of a result of a computation; of one that it only hands on, of the operand of that number."""
        computation = self._computations.get(called or "")
        if computation is None or computation.root is None:
            return ""
        root = computation.root
        name = root.operands[index] if root.opcode == "tuple" and index < len(root.operands) else root.name
        while self._found[name].opcode in _VIEWS and self._found[name].operands:
            name = self._found[name].operands[0]
        one = self._found[name]
        if one.opcode != "parameter":
            return self._of(name, 0, seen)
        number = int(one.arguments) if one.arguments.isdigit() else len(operands)
        return self._of(operands[number], 0, seen) if number < len(operands) else ""


def _own(one: Instruction) -> str:
    found = _OP_NAME.search(one.attributes)
    return "" if found is None else found[1]
