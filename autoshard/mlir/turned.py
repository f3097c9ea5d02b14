"""Constraints on products that only a transposition reads: written behind it.

With a constraint between them XLA:TPU sums the product as it lies, and works in that layout until the program ends: of gradients, copies of
the weights and of their state, for all of the step (a drawn training step, data parallel on v5e 8x8: 1.94 GB, 1.22 with constraints behind;
24 blocks of two float32 matrices and AdamW, gradients summed and sliced, on v5e 4x4: 2.54 and 1.80 GB; libtpu 0.0.52). Without one it
makes the product turned.
"""

from collections.abc import Iterator
from dataclasses import replace

from autoshard.mlir.context import ir
from autoshard.mlir.decisions import Decisions
from autoshard.mlir.listing import Listing
from autoshard.mlir.variants import Choices
from autoshard.mlir.walk import Walked
from autoshard.sharding import TensorSharding

_TRANSPOSE = "stablehlo.transpose"


def changed_behind(decisions: Decisions, walked: Walked, listing: Listing) -> Decisions:
    """The same plan, with such a product brought to another sharding behind the transposition instead of in front of it.

    Not where XLA may scatter the sum while the product runs: it does so wherever the constraint is.
    """
    choices = Choices(listing, decisions)
    produced, settled, uses = dict(decisions.produced), dict(decisions.settled), dict(decisions.uses)
    for index in _turning(listing):
        product, result = listing.ops[index].operands[0], listing.ops[index].results[0]
        made, read, turned = choices.produced(product), choices.operand(index, 0), choices.produced(result)
        order = list(ir.DenseI64ArrayAttr(walked.ops[index].attributes["permutation"]))
        is_plain = turned == choices.settled(result) == _permuted(read, order) and not made.unreduced
        if made != read and is_plain and not choices.may_be_scattered(product):
            settled[product] = uses[index, 0] = made
            produced[result], settled[result] = _permuted(made, order), turned
    return replace(decisions, produced=produced, settled=settled, uses=uses)


def constrained_behind(values: frozenset[int], listing: Listing, choices: Choices) -> frozenset[int]:
    """The same values to constrain; instead of such products, which are read as they are made, their transpositions."""
    turned = {
        listing.ops[index].operands[0]: listing.ops[index].results[0]
        for index in _turning(listing)
        if choices.operand(index, 0) == choices.settled(listing.ops[index].operands[0])
    }
    return frozenset(turned.get(value, value) for value in values)


def _turning(listing: Listing) -> Iterator[int]:
    """The transpositions, by number."""
    products, sites = {op.results[0] for op in listing.ops if op.is_matmul}, listing.sites
    for index, op in enumerate(listing.ops):
        if op.name == _TRANSPOSE and op.operands[0] in products and len(sites[op.operands[0]]) == 1:
            yield index


def _permuted(sharding: TensorSharding, order: list[int]) -> TensorSharding:
    return replace(sharding, dims=tuple(sharding.dims[dim] for dim in order))
