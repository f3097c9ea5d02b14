"""The assumptions on what runs behind compute, by name; `cost.overlap` says what they mean."""

from typing import Literal, get_args

from autoshard.errors import AutoshardError

Overlap = Literal["none", "async"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)


def overlap_named(name: str) -> Overlap:
    """Raises AutoshardError: there is none of that name."""
    for overlap in OVERLAPS:
        if overlap == name:
            return overlap
    raise AutoshardError(f"no overlap is called {name!r}", fix=f"name one of {', '.join(OVERLAPS)}")
