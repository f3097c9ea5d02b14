"""Which instruction makes what is in a buffer, behind copies, views, loops and fusions that only pass it on."""

import re

from autoshard.xla.hlo import HloModule, Instruction

_INDEX = re.compile(r"\bindex=(\d+)")
_VIEWS = frozenset({"bitcast", "copy", "copy-start", "copy-done", "slice-start", "slice-done", "opt-barrier"})
_Place = tuple[str, int]  # an instruction, and which of its results
_BUFFER = re.compile(r"([^{]+)(?:\{(\d+)[\d,]*\})?")


class Makers:
    """Of all buffers of a module, whose instructions have names of their own."""

    def __init__(self, module: HloModule) -> None:
        self._computations = module.computations
        self._found = {one.name: one for one in module.instructions}
        entry = module.computations[module.entry].instructions
        self._arguments = {one.name: one.arguments for one in entry if one.opcode == "parameter"}

    def op_name(self, buffer: str) -> str:
        """What XLA notes of the op that the buffer is made for, "" where it notes nothing; of `fusion.5{1}` the second result.

        Of what an argument is handed on as, the argument's number. Where what is behind it has no name, the nearest name before that.
        """
        parts = _BUFFER.fullmatch(buffer)
        place = None if parts is None else (parts[1], int(parts[2] or 0))
        seen, name = set[_Place](), ""
        while place is not None and place not in seen and place[0] in self._found:
            seen.add(place)
            if place[0] in self._arguments:
                return f"argument {self._arguments[place[0]]}"
            one = self._found[place[0]]
            name = one.op_name or name
            place = self._behind(one, place[1])
        return name

    def _behind(self, one: Instruction, index: int) -> _Place | None:
        """Where that result comes from; None where it is made."""
        operands = one.operands
        if one.opcode == "fusion":
            return self._made_in(one.callee("calls"), index, operands)
        if not operands:
            return None
        if one.opcode == "get-tuple-element":
            found = _INDEX.search(one.attributes)
            return operands[0], int(found[1]) if found else 0
        if one.opcode in _VIEWS:
            return operands[0], 0
        if one.opcode == "tuple":
            return (operands[index], 0) if index < len(operands) else None
        if one.opcode == "while":
            return self._made_in(one.callee("body"), index, ()) or (operands[0], index)
        return None

    def _made_in(self, called: str | None, index: int, operands: tuple[str, ...]) -> _Place | None:
        """A result of a computation; of one that it only hands on, the operand of that number."""
        computation = self._computations.get(called or "")
        if computation is None or computation.root is None:
            return None
        one = computation.root
        if one.opcode == "tuple" and index < len(one.operands):
            one = self._found[one.operands[index]]
        while one.opcode in _VIEWS and one.operands:
            one = self._found[one.operands[0]]
        if one.opcode == "get-tuple-element" and self._found[one.operands[0]].opcode == "parameter":
            return None
        if one.opcode != "parameter":
            return one.name, 0
        number = int(one.arguments) if one.arguments.isdigit() else len(operands)
        return (operands[number], 0) if number < len(operands) else None
