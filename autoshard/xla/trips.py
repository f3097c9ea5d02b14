"""How often a `while` of an HLO module runs: what XLA noted, else a counter that steps by a constant up to a constant."""

import re

from autoshard.xla.hlo import Computation, HloModule, Instruction

_NOTED = re.compile(r'known_trip_count"?:\s*\{"n":"?(\d+)')
_MOVES = ("bitcast", "convert", "copy", "copy-done", "copy-start", "reshape")


def trip_count(module: HloModule, around: Computation, loop: Instruction) -> int | None:
    """None where the loop does not show it; `around` is the computation that the loop stands in."""
    if noted := _NOTED.search(loop.attributes):
        return int(noted[1])
    condition, body = (module.computations.get(loop.callee(role) or "") for role in ("condition", "body"))
    if condition is None or body is None or condition.root is None or body.root is None:
        return None
    test = condition.root
    if test.opcode != "compare" or body.root.opcode != "tuple" or len(test.operands) < 2:
        return None
    direction = re.search(r"direction=(\w+)", test.attributes)
    counter = _position(_origin(condition, test.operands[0]))
    last_operand = _origin(condition, test.operands[1])
    last = _constant(last_operand)
    if last is None and (carried := _position(last_operand)) is not None:
        last = _initial(around, loop, carried)
    if counter is None or last is None or direction is None or direction[1] not in ("LT", "LE"):
        return None
    step = _step(body, counter)
    if step is None or step <= 0:
        return None
    first = _initial(around, loop, counter) or 0
    return max(0, -(-(last + (direction[1] == "LE") - first) // step))


def _step(body: Computation, counter: int) -> int | None:
    """What one run adds to element `counter` of the loop's state."""
    assert body.root is not None
    if counter >= len(body.root.operands):
        return None
    step, at = 0, _origin(body, body.root.operands[counter])
    while at is not None and at.opcode == "add":
        left, right = (_origin(body, operand) for operand in at.operands[:2])
        added = _constant(right) if _constant(right) is not None else _constant(left)
        if added is None:
            return None
        step, at = step + added, left if _constant(right) is not None else right
    return step if _position(at) == counter else None


def _initial(around: Computation, loop: Instruction, position: int) -> int | None:
    state = around.by_name.get(loop.operands[0]) if loop.operands else None
    if state is None or state.opcode != "tuple" or position >= len(state.operands):
        return None
    return _constant(_origin(around, state.operands[position]))


def _origin(computation: Computation, name: str) -> Instruction | None:
    """What makes a value, but for moves."""
    found = computation.by_name.get(name)
    while found is not None and found.opcode in _MOVES and found.operands:
        found = computation.by_name.get(found.operands[0])
    return found


def _constant(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "constant":
        return None
    return int(instruction.arguments) if re.fullmatch(r"-?\d+", instruction.arguments.strip()) else None


def _position(instruction: Instruction | None) -> int | None:
    """Which element of the loop's state it reads."""
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    found = re.search(r"\bindex=(\d+)", instruction.attributes)
    return None if found is None else int(found[1])
