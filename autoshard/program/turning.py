"""Products that a transposition alone reads. XLA for TPUs makes one turned where that exchanges the dimensions of its operands."""

from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import matmul_roles, rule_of

_TRANSPOSE = "stablehlo.transpose"


class Turning(NamedTuple):
    """`places`: of the product's dimensions of more than one element, in order, those that they become."""

    result: int
    places: tuple[int, ...]
    is_exchange: bool
    has_batch: bool  # the product is several


def turning_of(product: Op, listing: Listing) -> Turning | None:
    """Of a product that only a transposition reads."""
    match listing.sites.get(product.results[0], ()):
        case [(number, 0)] if number >= 0 and listing.ops[number].name == _TRANSPOSE:
            rule, made = rule_of(listing.ops[number], listing), rule_of(product, listing)
            roles = matmul_roles(made)
            kinds = ["".join(roles[factor] for factor in factors)[:1] for factors in made.results[0]]
            large = [
                dim
                for dim, factors in enumerate(rule.operands[0])
                if any(rule.factors[factor].size > 1 for factor in factors)
            ]
            places = {dim: rule.results[0].index(rule.operands[0][dim]) for dim in large}
            exchanged = sorted(large, key=lambda dim: "bnm".find(kinds[dim]))
            is_exchange = sorted(large, key=lambda dim: places[dim]) == exchanged
            has_batch = any(kinds[dim] == "b" for dim in large)
            if has_batch and len(large) < len(kinds):
                # XLA strips the other dimensions first, so that a reshape is in between.
                is_exchange = False
            return Turning(listing.ops[number].results[0], tuple(places.values()), is_exchange, has_batch)
        case _:
            return None
