"""Tables that are too wide for the terminal lose nothing: texts go on in the next line, and what cuts figures is printed wider."""

from collections.abc import Iterator

from rich.console import Console, ConsoleRenderable, Group, RenderHook
from rich.table import Column, Table

_CUT = "…"  # what rich ends a text with that does not fit
_WIDEST = 1000  # columns, in which everything fits
_STEP = 4


class Whole(RenderHook):
    """For `Console.push_render_hook` of that console."""

    def __init__(self, console: Console) -> None:
        self._console, self._width = console, console.width

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        for column in _columns(renderables):
            if column.justify == "left":
                column.overflow = "fold"
        self._console.width = max((self._least_width(one) for one in renderables), default=self._width)
        return renderables

    def _least_width(self, renderable: ConsoleRenderable) -> int:
        whole = self._cuts(renderable, _WIDEST)  # what the text itself has of them
        widths = range(self._width, _WIDEST, _STEP)
        return next((width for width in widths if self._cuts(renderable, width) == whole), _WIDEST)

    def _cuts(self, renderable: ConsoleRenderable, width: int) -> int:
        lines = self._console.render_lines(renderable, self._console.options.update(width=width), pad=False)
        return sum(segment.text.count(_CUT) for line in lines for segment in line)


def _columns(renderables: "list[ConsoleRenderable]") -> Iterator[Column]:
    for one in renderables:
        if isinstance(one, Table):
            yield from one.columns
        elif isinstance(one, Group):
            yield from _columns([part for part in one.renderables if isinstance(part, ConsoleRenderable)])
