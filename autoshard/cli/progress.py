"""What is going on, on stderr."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress_bar() -> Generator[Callable[[str, float | None], None]]:
    """Phases on stderr while they run, when a person is looking."""
    if not sys.stderr.isatty():
        yield lambda phase, fraction: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def report(phase: str, fraction: float | None) -> None:
            bars.update(
                task, description=phase, total=None if fraction is None else 1, completed=fraction or 0
            )

        yield report
