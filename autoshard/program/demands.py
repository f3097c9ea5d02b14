"""The demands of a listing one by one, each as the user wrote it and where: what is kept, ranked by priority, or named in a clash."""

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.mlir.listing import Listing
from autoshard.sharding import TensorSharding


@dataclass(frozen=True, slots=True)
class Demand:
    """A sharding that the user wrote on a value, or on what the function returns as result number `result`."""

    value: int
    result: int | None  # of the function
    sharding: TensorSharding
    what: str  # "argument 3 `params['wq']`"
    where: str

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.what} must be {self.sharding}{place}"


def demands_of(listing: Listing) -> tuple[Demand, ...]:
    """Every demand, in the order of the program: arguments, carried values and ops, results."""
    return (*_of_arguments(listing), *_of_flows(listing), *_of_ops(listing), *_of_results(listing))


def priority_levels(listing: Listing) -> tuple[int, ...]:
    """The priorities that the dimensions of demands have, most urgent first; a dimension without one has priority 0."""
    found = {dim.priority or 0 for demand in demands_of(listing) for dim in demand.sharding.dims}
    return tuple(sorted(found))


def _of_arguments(listing: Listing) -> Iterator[Demand]:
    for number, argument in enumerate(listing.arguments):
        if argument.demand is not None:
            what = f"argument {number} `{argument.name}`"
            yield Demand(argument.value, None, argument.demand, what, argument.location)


def _of_flows(listing: Listing) -> Iterator[Demand]:
    for flow in listing.data_flows:
        if flow.demand is not None:
            yield Demand(flow.target, None, flow.demand, f"a value carried by a {flow.kind}", flow.location)


def _of_ops(listing: Listing) -> Iterator[Demand]:
    for op in listing.ops:
        if op.demand is None:
            continue
        ranked = [value for value in op.results if (t := listing.values[value].type) is not None and t.rank]
        for value, sharding in zip(ranked, (op.demand, *op.other_demands), strict=False):
            which = f"result {op.results.index(value)}" if len(op.results) > 1 else "the result"
            yield Demand(value, None, sharding, f"{which} of {op.name}", op.location)


def _of_results(listing: Listing) -> Iterator[Demand]:
    for number, result in enumerate(listing.results):
        if result.demand is not None:
            what = f"result {number} `{result.name}` of the function"
            yield Demand(result.value, number, result.demand, what, result.location)
