"""Products whose changes of sharding XLA makes before the loop that reads them.

A constraint on what a loop carries unchanged is applied to what the loop is handed. Where that is the result of a contraction or a
reduction with no constraint of its own, XLA:TPU may gather what is multiplied in the place of the product and multiply everywhere. Seen
in what libtpu 0.0.51 compiles for v5e 4x4: gradients of logits gathered, 16 times the bytes of what goes back to a recurrent network.
"""

from collections.abc import Iterator

from autoshard.mlir.decisions import RESULT_SITE, Site, sites_of
from autoshard.mlir.listing import Listing
from autoshard.mlir.variants import Choices
from autoshard.sharding import FactorKind, TensorSharding


def products_moved_for_loops(listing: Listing, choices: Choices) -> frozenset[int]:
    """Sums of ops, split or not, that a loop reads otherwise than they come to it."""
    return frozenset(_moved(listing, choices))


def _moved(listing: Listing, choices: Choices) -> Iterator[int]:
    sites = sites_of(listing)
    made = {value: op for op in listing.ops for value in op.results}
    for flow in listing.data_flows:
        handed, target = flow.sources[0].value, flow.target
        rule = made[handed].rule if handed in made else None
        is_sum = rule is not None and any(factor.kind is FactorKind.REDUCTION for factor in rule.factors)
        is_unchanged = flow.kind == "while" and all(source.value == target for source in flow.sources[1:])
        if not is_sum or not is_unchanged or choices.is_recomputed(handed):
            continue
        read = {_read(choices, site) for site in sites.get(target, ())}
        if read - {choices.settled(target)}:
            yield handed


def _read(choices: Choices, site: Site) -> TensorSharding:
    number, position = site
    if number == RESULT_SITE:
        return choices.result(position)
    return choices.source(-1 - number, position) if number < 0 else choices.operand(number, position)
