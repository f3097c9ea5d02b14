"""How often each block of a walked module runs: the product of the trip counts of the loops around it."""

from autoshard.mlir.context import ir
from autoshard.mlir.locations import Locations
from autoshard.mlir.trips import trip_count
from autoshard.mlir.walk import Scope, Walked

DEFAULT_TRIP_COUNT = 10  # of a loop whose condition depends on data


def scope_repeats(walked: Walked, locations: Locations) -> tuple[list[int], list[str]]:
    """How often each scope runs, and a warning where that is a guess."""
    trips: dict[ir.Operation, float] = {}
    guessed: list[str] = []
    repeats: list[int] = []
    for scope in walked.scopes:
        times = 1.0
        if _is_loop(scope):
            if scope.owner not in trips:
                counted = trip_count(scope.owner)
                if counted is None:
                    guessed.append(locations.text(scope.owner.location))
                trips[scope.owner] = DEFAULT_TRIP_COUNT if counted is None else counted
            times = trips[scope.owner]
        repeats.append(max(round(times * (repeats[scope.parent] if repeats else 1)), 1))
    if not guessed:
        return repeats, []
    loops = "1 loop has" if len(guessed) == 1 else f"{len(guessed)} loops have"
    return repeats, [
        f"{loops} no known trip count and is priced for {DEFAULT_TRIP_COUNT} trips; first at {guessed[0]}"
    ]


def _is_loop(scope: Scope) -> bool:
    return scope.kind in ("cond", "body")
