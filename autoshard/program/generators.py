"""Random number generators that the form's compiler does not split."""

from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.sharding import FactorKind, OpShardingRule

_GENERATOR = "stablehlo.rng_bit_generator"


def with_whole_generators(listing: Listing) -> Listing:
    """The same listing with every `rng_bit_generator` whole on each device, as XLA's partitioner has it, and a warning that says so.

    Shardy's rule leaves the dimensions of its numbers free. XLA has no way to split the op: each device makes all numbers and keeps
    its part (libtpu 0.0.51; JAX's documentation of `jax.random` names the flag that lets TPUs split it, which changes the numbers).
    """
    found = {
        number: op.rule
        for number, op in enumerate(listing.ops)
        if op.name == _GENERATOR and op.rule is not None and op.rule.factors
    }
    if not found:
        return listing
    warning = (
        f"{len(found)} rng_bit_generator ops make all of their numbers on every device, as XLA does not split them: generate with "
        "threefry instead (jax_default_prng_impl), or have --xla_tpu_spmd_rng_bit_generator_unsafe=1 split them, which no plan counts on; "
        f"first {listing.ops[min(found)].location}"
    )
    ops = (
        replace(op, rule=_whole(found[number])) if number in found else op
        for number, op in enumerate(listing.ops)
    )
    return replace(listing, ops=tuple(ops), warnings=(*listing.warnings, warning))


def _whole(rule: OpShardingRule) -> OpShardingRule:
    return replace(
        rule, factors=tuple(replace(one, kind=FactorKind.NEED_REPLICATION) for one in rule.factors)
    )
