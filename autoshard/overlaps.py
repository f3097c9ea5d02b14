"""The assumptions on what runs behind compute, by name; `cost.overlap` says what they mean."""

from typing import Literal, get_args

Overlap = Literal["none", "async"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)


def overlap_named(name: str) -> Overlap:
    return next(overlap for overlap in OVERLAPS if overlap == name)
