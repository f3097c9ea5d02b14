"""MLIR locations as short text: the name that the front end gave, and the line."""

from typing import cast

from autoshard.mlir.context import ir


class Locations:
    """Names and texts of locations, each distinct one made once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._known: dict[ir.Attribute, tuple[str, str]] = {}

    def name(self, location: ir.Location) -> str:
        """The innermost name, such as `jit(step)/layer_0/dot_general`, else empty."""
        return self.both(location)[0]

    def text(self, location: ir.Location) -> str:
        """`name (file:line)`, or what there is of it."""
        return self.both(location)[1]

    def both(self, location: ir.Location) -> tuple[str, str]:
        """Name and text."""
        key = location.attr
        known = self._known.get(key)
        if known is None:
            name, line = _name(location), self._line(location)
            text = f"{name} ({line})" if name and line else name or line
            known = self._known[key] = (name, text)
        return known

    def _line(self, location: ir.Location) -> str:
        match location:
            case ir.FileLineColLoc():
                file = self._file if location.filename == "-" else location.filename
                return f"{file}:{location.start_line}"
            case ir.NameLoc():
                return self._line(location.child_loc)
            case ir.CallSiteLoc():
                return self._line(location.callee)
            case ir.FusedLoc():
                return next(filter(None, map(self._line, _parts(location))), "")
            case _:
                return ""


def _parts(location: ir.FusedLoc) -> list[ir.Location]:
    return cast(list[ir.Location], location.locations)


def _name(location: ir.Location) -> str:
    match location:
        case ir.NameLoc():
            return location.name_str
        case ir.CallSiteLoc():
            return _name(location.callee)
        case ir.FusedLoc():
            return next(filter(None, map(_name, _parts(location))), "")
        case _:
            return ""
