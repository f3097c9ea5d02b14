"""Ops that the form's compiler does not split, or not along all dimensions, whatever Shardy's rule leaves free."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.sharding import FactorKind, OpShardingRule

_GENERATOR = "stablehlo.rng_bit_generator"
_EIGEN = "Eigh"
_UPDATE = "stablehlo.dynamic_update_slice"


def with_whole_ops(listing: Listing) -> Listing:
    """The same listing with these ops whole on each device, as XLA's partitioner has them, and warnings that say so of the first two.

    Shardy's rules leave the dimensions of random numbers and the batch of eigendecompositions free. XLA has no way to split either: each
    device makes all numbers and keeps its part (libtpu 0.0.51; JAX's documentation of `jax.random` names the flag that lets TPUs split
    `rng_bit_generator`, which changes the numbers), or gathers all matrices (libtpu 0.0.52; of `Qr` it splits the batch).

    Of what is updated in place they leave the dimension free along which the update is shorter. One row XLA writes where it lies; for more
    of them it gathers that dimension, updates the whole and slices (libtpu 0.0.52, v5e 4x4 and v6e 16x16). Where the index is a constant
    and the rows lie with one device it writes them there, which depends on the sharding: here that is said of so few first rows that
    they do however the dimension is split.
    """
    warnings, rules = list[str](), _updates(listing)
    for found, told in _unsplit(listing):
        if found:
            rules |= {number: _whole(rule) for number, rule in found.items()}
            warnings.append(f"{len(found)} {told}; first {listing.ops[min(found)].location}")
    if not rules:
        return listing
    ops = (
        replace(op, rule=rules[number]) if number in rules else op for number, op in enumerate(listing.ops)
    )
    return replace(listing, ops=tuple(ops), warnings=(*listing.warnings, *warnings))


def _unsplit(listing: Listing) -> Iterator[tuple[dict[int, OpShardingRule], str]]:
    """Rules of ops by their numbers, and what to say of so many."""
    ruled = {
        number: (op, op.rule)
        for number, op in enumerate(listing.ops)
        if op.rule is not None and op.rule.factors
    }
    yield (
        {number: rule for number, (op, rule) in ruled.items() if op.name == _GENERATOR},
        "rng_bit_generator ops make all of their numbers on every device, as XLA does not split them: generate with "
        "threefry instead (jax_default_prng_impl), or have --xla_tpu_spmd_rng_bit_generator_unsafe=1 split them, which no plan counts on",
    )
    yield (
        {number: rule for number, (op, rule) in ruled.items() if op.called == _EIGEN},
        "custom calls of Eigh work on all matrices on every device, as XLA does not split their batch: decompose a device's own matrices "
        "under `jax.shard_map`",
    )


def _updates(listing: Listing) -> dict[int, OpShardingRule]:
    """Rules of updates of several rows, which take the dimension whole, and the rows themselves too."""
    found = dict[int, OpShardingRule]()
    zeros = {value for op in listing.ops if op.is_zero for value in op.results}
    devices = listing.mesh.num_devices
    for number, op in enumerate(listing.ops):
        if op.name != _UPDATE or op.rule is None:
            continue
        whole, update = (listing.values[value].type for value in op.operands[:2])
        assert whole is not None and update is not None, "tensors"
        cut = set[int]()
        for dim, (size, rows) in enumerate(zip(whole.shape, update.shape, strict=True)):
            if 1 < rows < size:
                is_of_one_device = op.operands[2 + dim] in zeros and rows * devices <= size
                cut.update(op.rule.operands[1][dim], () if is_of_one_device else op.rule.operands[0][dim])
        if cut:
            found[number] = _whole(op.rule, cut)
    return found


def _whole(rule: OpShardingRule, factors: Collection[int] | None = None) -> OpShardingRule:
    """With these factors whole, or all of them."""
    return replace(
        rule,
        factors=tuple(
            replace(one, kind=FactorKind.NEED_REPLICATION) if factors is None or number in factors else one
            for number, one in enumerate(rule.factors)
        ),
    )
