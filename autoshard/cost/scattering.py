"""What a sum costs that is scattered while its product runs (`sharding.scattering`).

The loop passes every part of the result on n + 1 times, one hop each, two at a time, one each way round: both are started before the
turn's share of the product and waited for behind it, so that they share one latency. The last goes alone, and

    exposed = one pass + max(0, n passes - product), of which n / 2 have a latency
    hidden  = what else the passes take

By the times of XLA's scheduler two at a time take as long as one, and the last is an asynchronous collective like others, behind which
other work runs: exposed = max(0, n / 2 passes - product), with its time for the product (`Hardware.covered_ns`). Single products of 1.05 to
8 times a pass on v5e 4x4, v6e 4x4 and v5p 2x2x4 wait for one pass and for that within one and a half (`experiments/fidelity/covering.py`).

XLA makes that loop where the product takes longer than one pass, operations at the peak rate and bytes without latency as its scheduler has
them (`Hardware.taken_pass_ns`): seen on v5e 2x4 and 4x4, v5p 2x2x2 and 2x2x4 and v6e 4x4, bfloat16 and float32, in products of a tenth to
ten times that time, in steps of 1 to 2 % near it. Other sums go everywhere and are sliced.
"""

from collections.abc import Iterable

from autoshard.cost.lowering import CollectivePrices, Emitted
from autoshard.cost.reshard import Collective
from autoshard.program import KernelShape
from autoshard.sharding import PRODUCT, Mesh, cut_in_groups, is_cut_over_all, may_loop, total_size
from autoshard.space import Strategy


def is_scattered_in_product(collectives: Iterable[Collective]) -> bool:
    """Whether one of a kernel's collectives is such a sum."""
    return any(
        one.kind == "reduce_scatter" and one.emitted and one.emitted[0].kind == "collective_permute"
        for one in collectives
    )


def scattered_in_product(
    shape: KernelShape,
    strategy: Strategy,
    product_ns: int,
    local_flops: float,
    prices: CollectivePrices,
    mesh: Mesh,
) -> Collective | None:
    """The collective of a kernel whose sum is scattered that way; None where it is not."""
    may_be = shape.name == PRODUCT or (strategy.is_open and may_loop(shape.name, shape.rule))
    if prices.lowering != "xla-tpu" or not strategy.is_scattered or not may_be:
        return None
    whole, axes, type_ = strategy.produced[0], strategy.reduced, shape.results[0]
    if is_cut_over_all(whole, strategy.settled[0], type_.shape, mesh):
        devices = mesh.num_devices
    elif strategy.is_open and whole.num_shards * total_size(axes) == mesh.num_devices:
        devices = total_size(cut_in_groups(whole, strategy.settled[0], type_.shape, mesh))
    else:
        return None
    if devices == 1:
        return None
    part_bytes = strategy.settled[0].local_bytes(type_)
    if type_.is_complex:  # three real products, each with a half
        part_bytes = part_bytes * 3 // 2
    if not prices.outlasts_pass(local_flops, shape.dtype, part_bytes, axes):
        return None
    pass_ns, latency_ns = (prices.ns_of_one("collective_permute", bytes_, axes) for bytes_ in (part_bytes, 0))
    covered_ns, is_scheduled = prices.hardware.covered_ns(product_ns), prices.hardware.is_scheduled
    turns_ns = devices * pass_ns - devices // 2 * latency_ns
    waited_ns = max(0, (devices // 2 * pass_ns if is_scheduled else turns_ns) - covered_ns)
    exposed_ns = waited_ns if is_scheduled else pass_ns + waited_ns
    hidden_ns = turns_ns + pass_ns - exposed_ns
    emitted = Emitted("collective_permute", axes, (devices + 1) * part_bytes)
    return Collective(
        "reduce_scatter", axes, whole.local_bytes(type_), exposed_ns, hidden_ns, emitted=(emitted,)
    )
