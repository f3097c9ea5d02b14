"""What only a transposition reads of a product is constrained behind it.

With a constraint between them XLA:TPU makes the product as it lies, and works in that layout until the program ends: of gradients, copies
of the weights and of their state, for all of the step (a drawn training step, data parallel on v5e 8x8: 1.94 GB, 1.22 with constraints
behind; 24 blocks of two float32 matrices and AdamW, gradients summed and sliced, on v5e 4x4: 2.54 and 1.80 GB; libtpu 0.0.52). Without one
it makes the product turned. A module that is read has changes of sharding, which are two constraints and more, in front, where they were
planned; a single one says how the transposition is made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoshard.mlir.context import Value, ir, sdy
from autoshard.mlir.decisions import Decisions
from autoshard.mlir.flops import MATMULS
from autoshard.mlir.listing import Listing
from autoshard.mlir.variants import Choices
from autoshard.mlir.walk import Walked, function_named, ops_named
from autoshard.sharding import TensorSharding

_CONSTRAINT, _TRANSPOSE = "sdy.sharding_constraint", "stablehlo.transpose"
_CHANGE = 2  # constraints: what is made, and what that becomes


def changed_behind(decisions: Decisions, walked: Walked, listing: Listing) -> Decisions:
    """The same plan, with such a product brought to another sharding behind the transposition instead of in front of it, through the same.

    Not where XLA may scatter the sum while the product runs: it does so wherever the constraint is.
    """
    choices = Choices(listing, decisions)
    produced, settled, uses = dict(decisions.produced), dict(decisions.settled), dict(decisions.uses)
    shared = dict(decisions.shared)
    for index in _turning(walked, listing):
        product, result = listing.ops[index].operands[0], listing.ops[index].results[0]
        made, read, turned = choices.produced(product), choices.operand(index, 0), choices.produced(result)
        order = _order(walked.ops[index])
        is_plain = turned == choices.settled(result) == _permuted(read, order) and not made.unreduced
        if made == read or not is_plain or choices.may_be_scattered(product):
            continue
        between, sites = choices.settled(product), frozenset(listing.sites.get(result, ()))
        is_through = between not in (made, read)
        if is_through and (choices.shared(result) is not None or any(number < 0 for number, _ in sites)):
            continue
        settled[product] = uses[index, 0] = made
        produced[result], settled[result] = _permuted(made, order), turned
        if is_through:
            settled[result], shared[result] = _permuted(between, order), turned
            uses |= dict.fromkeys(sites - uses.keys(), turned)
    return replace(decisions, produced=produced, settled=settled, shared=shared, uses=uses)


def constrained_behind(
    values: frozenset[int], walked: Walked, listing: Listing, choices: Choices
) -> frozenset[int]:
    """The same values to constrain; instead of such products, which are read as they are made, their transpositions."""
    turned = {
        listing.ops[index].operands[0]: listing.ops[index].results[0]
        for index in _turning(walked, listing)
        if choices.operand(index, 0) == choices.settled(listing.ops[index].operands[0])
    }
    return frozenset(turned.get(value, value) for value in values)


def change_in_front(module: ir.Operation, entry: str) -> None:
    """Bring such products to another sharding in front of their transposition, in place."""
    for op in ops_named(function_named(module, entry), frozenset({_TRANSPOSE})):
        product = op.operands[0]
        if not isinstance(product, ir.OpResult) or product.owner.name not in MATMULS:
            continue
        is_alone = len(list(product.uses)) == 1 and _stand_together(product.owner.operation, op)
        chain = list(_chain(op)) if is_alone else []
        if len(chain) >= _CHANGE:
            order = _order(op)
            back = [order.index(dim) for dim in range(len(order))]
            changed = product
            for constraint in chain:
                changed = _constrained(changed, constraint, back, ir.InsertionPoint(op))
            op.operands[0] = changed
            chain[-1].results[0].replace_all_uses_with(op.result)
            for constraint in reversed(chain):
                constraint.erase()


def _chain(op: ir.Operation) -> Iterator[ir.Operation]:
    """The constraints of the same block that alone read what the op makes, and each other."""
    uses = list(op.result.uses)
    while (
        len(uses) == 1 and uses[0].owner.name == _CONSTRAINT and _stand_together(uses[0].owner.operation, op)
    ):
        yield uses[0].owner.operation
        uses = list(uses[0].owner.operation.result.uses)


def _stand_together(one: ir.Operation, other: ir.Operation) -> bool:
    """Whether an op and one that reads it are in the same block."""
    return one.parent == other.parent


def _constrained(value: Value, like: ir.Operation, order: Sequence[int], at: ir.InsertionPoint) -> Value:
    """A constraint as another one is, of dimensions in that order of its own."""
    said = sdy.TensorShardingAttr(like.attributes["sharding"])
    dims = list(said.dimension_shardings)
    sharding = sdy.TensorShardingAttr.get(
        said.mesh_or_ref,
        [dims[dim] for dim in order],
        list(said.replicated_axes),
        list(said.unreduced_axes),
        context=like.context,
    )
    made = ir.Operation.create(
        _CONSTRAINT, [value.type], [value], {"sharding": sharding}, loc=like.location, ip=at
    )
    return made.result


def _turning(walked: Walked, listing: Listing) -> Iterator[int]:
    """The transpositions, by number; each in the same scope as the product."""
    made = {op.results[0]: index for index, op in enumerate(listing.ops) if op.is_matmul}
    sites, scopes = listing.sites, walked.op_scopes
    for index, op in enumerate(listing.ops):
        maker = made.get(op.operands[0]) if op.name == _TRANSPOSE else None
        if maker is not None and len(sites[op.operands[0]]) == 1 and scopes[maker] == scopes[index]:
            yield index


def _order(transposition: ir.Operation) -> list[int]:
    return list(ir.DenseI64ArrayAttr(transposition.attributes["permutation"]))


def _permuted(sharding: TensorSharding, order: Sequence[int]) -> TensorSharding:
    return replace(sharding, dims=tuple(sharding.dims[dim] for dim in order))
