"""The user's demands for partial sums: refused where they cannot be, dropped where the form cannot say them."""

from dataclasses import replace

from autoshard.errors import AutoshardError
from autoshard.mlir.linearity import zero_values
from autoshard.mlir.listing import Listing, Op
from autoshard.program.demands import Demand, demands_of
from autoshard.sharding import FactorKind, TensorSharding


def refuse_unsound(listing: Listing) -> None:
    """Nothing in Shardy checks what `unreduced` claims.

    Raises:
        AutoshardError: a result is demanded as a partial sum of an op that makes none and is linear in nothing.
    """
    demanded = [demand for demand in demands_of(listing) if demand.sharding.unreduced]
    if not demanded:
        return
    zeros = zero_values(listing)
    made_by = {value: op for op in listing.ops for value in op.results}
    for demand in demanded:
        op = made_by.get(demand.value) if demand.result is None else None
        reason = _not_a_number(listing, demand) or (_reason(listing, op, zeros) if op is not None else None)
        if reason is not None:
            axes = ", ".join(map(str, demand.sharding.unreduced))
            raise AutoshardError(
                f"{demand.what} cannot be a partial sum over {{{axes}}}: {reason}",
                where=demand.where,
                fix="demand it reduced (drop unreduced), or leave it partial up to here only",
            )


def without_unreduced(listing: Listing) -> Listing:
    """The same listing with every partial sum demanded whole, and a warning that says so."""
    demanded = [demand for demand in demands_of(listing) if demand.sharding.unreduced]
    if not demanded:
        return listing
    first = demanded[0]
    place = f" at {first.where}" if first.where else ""
    warning = (
        f"{len(demanded)} demands for partial sums (unreduced) are met by whole values: the form cannot say that a value is "
        f"partial; --form shardy can; first {first.what}{place}"
    )
    return replace(
        listing,
        ops=tuple(
            replace(
                op,
                demand=_whole(op.demand),
                other_demands=tuple(other.summed() for other in op.other_demands),
            )
            for op in listing.ops
        ),
        data_flows=tuple(replace(flow, demand=_whole(flow.demand)) for flow in listing.data_flows),
        arguments=tuple(replace(argument, demand=_whole(argument.demand)) for argument in listing.arguments),
        results=tuple(replace(result, demand=_whole(result.demand)) for result in listing.results),
        warnings=(*listing.warnings, warning),
    )


def _whole(demand: TensorSharding | None) -> TensorSharding | None:
    return None if demand is None else demand.summed()


def _not_a_number(listing: Listing, demand: Demand) -> str | None:
    type_ = listing.values[demand.value].type
    return f"{type_} has no sums" if type_ is not None and type_.dtype == "i1" else None


def _reason(listing: Listing, op: Op, zeros: frozenset[int]) -> str | None:
    """Why the op's result cannot be a partial sum; None where it can."""
    if op.is_zero or (op.leaves_addends and _sums(op)):
        return None
    if len(op.results) > 1:
        return f"{op.name} has several results"
    if not op.operands:
        return f"every device has all of {op.name}, and their sum is another value"
    if not op.linear:
        return f"{op.name} of a sum is not the sum of {op.name} of its parts"
    if not any(all(_can_be_partial(listing, op.operands[i], zeros) for i in way) for way in op.linear):
        return f"what {op.name} adds to its operand is not zero"
    return None


def _sums(op: Op) -> bool:
    return op.rule is not None and any(factor.kind is FactorKind.REDUCTION for factor in op.rule.factors)


def _can_be_partial(listing: Listing, value: int, zeros: frozenset[int]) -> bool:
    type_ = listing.values[value].type
    return value in zeros or (type_ is not None and type_.rank > 0)
