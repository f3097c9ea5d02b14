"""From a listing to its flows: where values take a sharding without being computed."""

from collections.abc import Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.demands import demands_of
from autoshard.program.records import RESULT_SITE, Flow, FlowKind, FlowSource
from autoshard.sharding import TensorSharding


def flows_of(
    listing: Listing, pairs: Sequence[tuple[int, int]], handed_on: frozenset[int]
) -> tuple[Flow, ...]:
    """Arguments, then what is carried, then results.

    Args:
        pairs: (result index, argument index) of carried state, which is the argument's flow alone.
        handed_on: values that have their sources' buffers.
    """
    end = len(listing.ops)
    written = {(demand.value, demand.result): str(demand) for demand in demands_of(listing)}
    fed_by = {argument: result for result, argument in pairs}
    flows: list[Flow] = []
    for index, argument in enumerate(listing.arguments):
        type_ = listing.values[argument.value].type
        if type_ is None or not type_.rank:
            continue
        sources = ()
        demands = [argument.demand]
        ends: list[tuple[int, int | None]] = [(argument.value, None)]
        if index in fed_by:
            result = listing.results[fed_by[index]]
            sources = (FlowSource(result.value, end, 1, (RESULT_SITE, fed_by[index])),)
            demands.append(result.demand)
            ends.append((result.value, fed_by[index]))
        told = tuple(written[end] for end in ends if end in written)
        flows.append(
            Flow(
                FlowKind.ARGUMENT, argument.value, type_, sources, _given(*demands), True, argument.name, told
            )
        )
    for index, data_flow in enumerate(listing.data_flows):
        type_ = listing.values[data_flow.target].type
        if type_ is not None and type_.rank:
            sources = tuple(
                FlowSource(s.value, s.time, s.repeat, (-1 - index, i))
                for i, s in enumerate(data_flow.sources)
            )
            flows.append(
                Flow(
                    FlowKind.CARRIED,
                    data_flow.target,
                    type_,
                    sources,
                    _given(data_flow.demand),
                    data_flow.crossing is not None,
                    data_flow.kind,
                    manual_axes=data_flow.manual_axes,
                    crossing=data_flow.crossing,
                    is_handed_on=data_flow.target in handed_on,
                )
            )
    carried = {result for result, _ in pairs}
    for index, result in enumerate(listing.results):
        type_ = listing.values[result.value].type
        if type_ is not None and type_.rank and index not in carried:
            source = FlowSource(result.value, end, 1, (RESULT_SITE, index))
            flows.append(
                Flow(
                    FlowKind.RESULT, result.value, type_, (source,), _given(result.demand), True, result.name
                )
            )
    return tuple(flows)


def _given(*demands: TensorSharding | None) -> tuple[TensorSharding, ...]:
    return tuple(demand for demand in demands if demand is not None)
