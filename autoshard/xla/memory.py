"""How much device memory a compiled module takes, by XLA's own account."""

import re
from dataclasses import dataclass

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+),(.*)$", re.M)
_PARAMETER = re.compile(r"\bparameter (\d+),")
_COLOUR = re.compile(r"\bcolor (\d+)")
_USED = re.compile(r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm")
_REQUIRED = re.compile(r"memory required [^()]*\(([\d.]+[KMGT]?)\) exceeds available HBM \(([\d.]+[KMGT]?)\)")


@dataclass(frozen=True, slots=True)
class CompiledMemory:
    """Bytes on one device. `alias`: of outputs that take the buffer of a donated argument, which count as arguments too."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int

    @property
    def total_bytes(self) -> int:
        """Argument + output - alias + temporary."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes


def memory_of_assignment(text: str, ignored_parameter: int | None = None) -> CompiledMemory:
    """From the text of a buffer assignment: its allocations in main memory (colour 0). Of the tables of tuples, all count as output.

    What is local to a thread does not count: parameters of computations that run on another core stand for buffers of their callers.

    `ignored_parameter`: one that the module was given for other ends.
    """
    argument = output = alias = temporary = 0
    for size, notes in _ALLOCATION.findall(text):
        colour = _COLOUR.search(notes)
        if colour is not None and colour[1] != "0":
            continue
        parameter = _PARAMETER.search(notes)
        is_live_out = "maybe-live-out" in notes
        if parameter is not None and int(parameter[1]) == ignored_parameter:
            continue
        argument += int(size) * (parameter is not None)
        output += int(size) * is_live_out
        alias += int(size) * (is_live_out and parameter is not None)
        temporary += int(size) * (
            not is_live_out and parameter is None and not notes.endswith("thread-local:")
        )
    return CompiledMemory(argument, output, alias, temporary)


def out_of_memory(words: str) -> tuple[int, int] | None:
    """(used, available) bytes of main memory in what the compiler said, where that is that they do not suffice.

    XLA:TPU says at once where the temporaries alone are too many, and names what is used of what where it learns so at the end.
    """
    found = _USED.search(words) or _REQUIRED.search(words)
    return None if found is None else (_bytes(found[1]), _bytes(found[2]))


def _bytes(text: str) -> int:
    number = text.rstrip("KMGT")
    return round(float(number) * 1024 ** " KMGT".index(text[len(number) :] or " "))
