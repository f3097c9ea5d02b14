"""Sums that XLA for TPUs scatters in a loop with the product that makes them, and operands that it gathers in one.

Each of 8 or 16 devices passes parts of the result on to the next, one more time than there are devices, two at a time with one latency.
The loop is made where the product's operations at the peak rate take longer than the bytes of a pass. What waits is one pass, and what
the product is too short for.
"""

from dataclasses import dataclass

from autoshard.check.compute import kernel_ns, peak_ns
from autoshard.check.parts import num_shards, parts_of
from autoshard.check.planned import Planned
from autoshard.check.reads import KernelRead, Read
from autoshard.sharding import AxisRef, FactorKind, TensorMapping, TensorSharding, TensorType
from costmodels import Hardware

_FEWEST_DEVICES, _MOST_DEVICES = 8, 16


@dataclass(frozen=True, slots=True)
class InProduct:
    """`bytes` in all passes, on one device."""

    bytes: int
    waits_ns: int
    hidden_ns: int


def part_bytes(planned: Planned, read: KernelRead, value: int) -> int:
    """Of the part that a device passes on, where the result's sum may be scattered in the product; else 0.

    The sum is known to be scattered over all that it is summed over.
    """
    type_ = planned.type_of(value)
    made, left = planned.produced[value], planned.settled[value]
    is_product = planned.listing.ops[read.kernel.ops[-1]].name == "stablehlo.dot_general"
    if not is_product or made.unreduced or num_shards(tuple(p for a in made.axes for p in parts_of(a))) > 1:
        return 0
    if not _is_one_even_cut(planned, left, type_):
        return 0
    halves = 3 if type_.is_complex else 2  # three real products make the two of a complex one
    return left.local_bytes(type_) * halves // 2


def _is_one_even_cut(planned: Planned, left: TensorSharding, type_: TensorType) -> bool:
    """Whether every device has a part of its own, of one dimension."""
    counts = [num_shards(parts_of(axes)) for axes in left.axes]
    devices = planned.mesh.num_devices
    return (
        _FEWEST_DEVICES <= devices <= _MOST_DEVICES
        and max(counts) == devices
        and type_.shape[counts.index(devices)] % devices == 0
    )


def in_product(
    planned: Planned, read: KernelRead, hardware: Hardware, part: int, pass_ns: int, latency_ns: int
) -> InProduct | None:
    """How a sum in parts of so many bytes goes, each pass taking `pass_ns` with its latency; None where there is no loop."""
    if peak_ns(read, hardware) <= _taken_ns(hardware, part, pass_ns - latency_ns):
        return None
    product_ns = kernel_ns(planned, read, hardware)
    devices = planned.mesh.num_devices
    passes = devices + 1
    passes_ns = passes * pass_ns - devices // 2 * latency_ns
    if hardware.is_scheduled:
        waits_ns = max(0, devices // 2 * pass_ns - hardware.covered_ns(product_ns))
    else:
        waits_ns = max(pass_ns, passes_ns - product_ns)
    return InProduct(passes * part, waits_ns, passes_ns - waits_ns)


@dataclass(frozen=True, slots=True)
class Loop:
    """What such a loop needs to know of one read: the product, and how the operand is held."""

    run: KernelRead
    number: int  # of the operand
    held: TensorSharding
    axes: tuple[AxisRef, ...]
    factors: tuple[int, ...]  # of the dimension that the operand is cut along
    is_summed: bool  # over that dimension
    is_in_columns: bool  # of the result, which that dimension is the last of


def gathering_loop(
    planned: Planned, run: KernelRead, value: int, held: TensorSharding, read: Read
) -> Loop | None:
    """None where the product cannot gather the operand, of which it is the lone one that reads it."""
    kernel, type_ = run.kernel, planned.type_of(value)
    root = planned.listing.ops[kernel.ops[-1]]
    made = planned.produced.get(kernel.results[0]) if kernel.results else None
    numbers = [
        number
        for number, (use, asked) in enumerate(zip(kernel.uses, run.shardings, strict=True))
        if use.value == value and asked == read.sharding
    ]
    is_possible = (
        root.name == "stablehlo.dot_general"
        and len(numbers) == 1
        and not kernel.shape.manual_axes
        and read.time == kernel.time
        and made is not None
        and _is_split_over_all(planned, made)
        and not (held.is_foreign or held.unreduced or read.sharding.is_foreign or read.sharding.unreduced)
        and not any(read.sharding.axes)
        and _is_one_even_cut(planned, held, type_)
    )
    if not is_possible:
        return None
    cut = next(dim for dim, axes in enumerate(held.axes) if axes)
    factors = run.run.rule.operands[numbers[0]][cut]
    if any({*factors} & {f for dim in other for f in dim} for other in _batched(run, numbers[0])):
        return None
    is_summed = any(run.run.rule.factors[factor].kind is FactorKind.REDUCTION for factor in factors)
    is_in_columns = run.run.rule.results[0][-1:] == (factors,)
    return Loop(run, numbers[0], held, held.axes[cut], factors, is_summed, is_in_columns)


def _batched(run: KernelRead, operand: int) -> list[TensorMapping]:
    """The other operand and the result, where the same factor is in both."""
    others = [mine for number, mine in enumerate(run.run.rule.operands) if number != operand]
    kept = {f for dim in run.run.rule.results[0] for f in dim}
    return [tuple(tuple(f for f in dim if f in kept) for dim in other) for other in others]


def is_long_enough(planned: Planned, loop: Loop, hardware: Hardware, part: int, links_ns: int) -> bool:
    """Of a part of so many bytes, as wide as the value is, which takes so long over the links without latency."""
    root = planned.listing.ops[loop.run.kernel.ops[-1]]
    devices = planned.mesh.num_devices
    rate = hardware.peak_flop_per_s(loop.run.kernel.shape.dtype)
    return root.flops / devices * 1e9 > _taken_ns(hardware, part, links_ns) * rate


def _taken_ns(hardware: Hardware, part: int, links_ns: int) -> float:
    """How long the compiler takes a part to pass: what it takes over the links, where nothing else is known."""
    taken = hardware.taken_pass_ns(part)
    return links_ns if taken is None else taken


def in_gathering(
    planned: Planned, loop: Loop, hardware: Hardware, part: int, pass_ns: int, alone_ns: int
) -> InProduct:
    """`alone_ns`: of a gather before the product."""
    devices = planned.mesh.num_devices
    covered_ns = hardware.covered_ns(kernel_ns(planned, loop.run, hardware))
    first_ns = 0 if hardware.is_scheduled else pass_ns
    waits_ns = min(first_ns + max(devices // 2 * pass_ns - covered_ns, 0), alone_ns)
    return InProduct((devices + 1) * part, waits_ns, max((devices + 1) * pass_ns - waits_ns, 0))


def _is_split_over_all(planned: Planned, made: TensorSharding) -> bool:
    parts = [part for axes in made.axes for part in parts_of(axes)]
    return not made.is_foreign and not made.unreduced and num_shards(tuple(parts)) == planned.mesh.num_devices
