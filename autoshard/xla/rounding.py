"""How coarsely a program rounds: its narrowest floating type, and the narrowest that each argument enters."""

from typing import Any

from autoshard.mlir.context import ir
from autoshard.xla.dtypes import epsilon, is_complex, is_float
from autoshard.xla.flow import Flow
from autoshard.xla.prepare import walk


def narrowest_float(module: ir.Operation) -> str:
    """The floating type with the fewest digits among all results of ops; f64 in a program without any."""
    return max(_values_by_float(module), key=epsilon, default="f64")


def roundings_of(module: ir.Operation, main: ir.Operation) -> list[float]:
    """For each argument of `main`: eps of the narrowest floating type among the values computed from it."""
    flow = Flow(module)
    arguments = {argument: i for i, argument in enumerate(main.regions[0].blocks[0].arguments)}
    found = [0.0] * len(arguments)
    by_float = _values_by_float(module)
    for element in sorted(by_float, key=epsilon):
        for value in _all_behind(by_float[element], flow):
            if value in arguments:
                found[arguments[value]] = epsilon(element)
    return found


def _all_behind(values: list[Any], flow: Flow) -> set[Any]:
    seen: set[Any] = set()
    while values:
        value = values.pop()
        if value not in seen:
            seen.add(value)
            values.extend(flow.influences(value))
    return seen


def _values_by_float(module: ir.Operation) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for op in walk(module):
        for value in op.results:
            if isinstance(value.type, ir.RankedTensorType):
                element = str(value.type.element_type)
                component = element[len("complex<") : -1] if is_complex(element) else element
                if is_float(component):
                    found.setdefault(component, []).append(value)
    return found
