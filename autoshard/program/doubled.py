"""Exponentials of a softmax that are made and stored twice, as its scores leave the matrix unit.

XLA:TPU for v6e makes such scores twice where they are float32 and nothing lies between their product and the softmax, and keeps both
exponentials for the backward pass (libtpu 0.0.51: training steps of six layers of attention in float32 take 1.4 to 1.5 times as much
as with one of them; scaled, masked or bounded scores, bfloat16, v5e and v5p have one, and so have logits, libtpu 0.0.52).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing, Op
from autoshard.program.additions import PASSED
from autoshard.program.fusion import has_batch, matmul_roles
from autoshard.program.records import Kernel, Lifetime, Whole
from autoshard.program.repeating import read_times, readers_of

_ADD = "stablehlo.add"


def doubled_exponentials(
    kernels: Sequence[Kernel], listing: Listing, zeros: Collection[int], lives: Mapping[int, Lifetime]
) -> Iterator[tuple[int, Whole]]:
    """The second one of each that is stored, where something reads it after the first product that does; it is there as long."""
    made_by = {value: op for op in listing.ops for value in op.results}
    products = {kernel.time for kernel in kernels if kernel.shape.is_matmul}
    readers = readers_of(kernels)
    for kernel in kernels:
        root = listing.ops[kernel.time]
        if root.name != "stablehlo.exponential" or not _is_of_product(root, made_by, zeros):
            continue
        (value,), (type_,) = kernel.results, kernel.shape.results
        times, life = read_times(value, readers), lives[value]
        first = min(times & products, default=life.end)
        if type_.dtype == "f32" and life.is_own_buffer and any(time > first for time in times):
            yield value, Whole(kernel.time, life.end, type_)


def _is_of_product(exponential: Op, made_by: Mapping[int, Op], zeros: Collection[int]) -> bool:
    """Whether it is of a product less its maximum; adding zeros to it does nothing."""
    less = made_by.get(exponential.operands[0])
    if less is None or less.name != "stablehlo.subtract":
        return False
    op = made_by.get(less.operands[0])
    while op is not None:
        added = [value for value in op.operands if value not in zeros] if op.name == _ADD else []
        if op.name not in PASSED and len(added) != 1:
            break
        op = made_by.get(added[0] if added else op.operands[0])
    return op is not None and op.name == "stablehlo.dot_general" and _is_batched(op)


def _is_batched(product: Op) -> bool:
    """Whether it is several: logits, of a product of one matrix, are kept themselves."""
    return product.rule is not None and has_batch(product.rule, matmul_roles(product.rule))
