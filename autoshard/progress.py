"""How long tasks tell how far they are."""

from collections.abc import Callable

Progress = Callable[[str, float | None], None]
"""Called with a phase and, where it is known, the fraction of it that is done."""


def silent(phase: str, fraction: float | None) -> None:
    """Tells nobody."""
