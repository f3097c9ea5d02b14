"""Ops that the form's compiler does not split, whatever Shardy's rule leaves free: each device works out all of them."""

from collections.abc import Iterator
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.sharding import FactorKind, OpShardingRule

_GENERATOR = "stablehlo.rng_bit_generator"
_EIGEN = "Eigh"


def with_whole_ops(listing: Listing) -> Listing:
    """The same listing with these ops whole on each device, as XLA's partitioner has them, and warnings that say so.

    Shardy's rules leave the dimensions of random numbers and the batch of eigendecompositions free. XLA has no way to split either: each
    device makes all numbers and keeps its part (libtpu 0.0.51; JAX's documentation of `jax.random` names the flag that lets TPUs split
    `rng_bit_generator`, which changes the numbers), or gathers all matrices (libtpu 0.0.52; of `Qr` it splits the batch).
    """
    warnings, rules = list[str](), dict[int, OpShardingRule]()
    for found, told in _unsplit(listing):
        if found:
            rules |= found
            warnings.append(f"{len(found)} {told}; first {listing.ops[min(found)].location}")
    if not rules:
        return listing
    ops = (
        replace(op, rule=_whole(rules[number])) if number in rules else op
        for number, op in enumerate(listing.ops)
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


def _whole(rule: OpShardingRule) -> OpShardingRule:
    return replace(
        rule, factors=tuple(replace(one, kind=FactorKind.NEED_REPLICATION) for one in rule.factors)
    )
