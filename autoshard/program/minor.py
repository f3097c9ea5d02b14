"""Which dimensions a matrix unit makes minor: of what it reads a free and a contracted one, of what it writes one of each operand.

Batch dimensions, and those that windows slide over, are never minor. Memory in tiles pads the two minor dimensions, so that this
decides how large a result is stored. Seen in the layouts that XLA:TPU gives dots and convolutions, which it all runs as convolutions.
"""

from collections.abc import Iterator, Sequence

from autoshard.program.records import Kernel, KernelShape, MinorDims
from autoshard.sharding import TensorMapping


def minor_dims(kernels: Sequence[Kernel]) -> dict[int, MinorDims]:
    """Of every value that a matmul makes, or that has no other maker with a say and is read by one."""
    found: dict[int, MinorDims] = {}
    for kernel in kernels:
        if kernel.shape.is_matmul:
            written = _dims(kernel.shape, kernel.shape.rule.results[0], ("m", "n"))
            if all(written):
                found[kernel.results[0]] = written
    for value, dims in _reads(kernels):
        found.setdefault(value, dims)
    return found


def _reads(kernels: Sequence[Kernel]) -> Iterator[tuple[int, MinorDims]]:
    for kernel in kernels:
        if kernel.shape.is_matmul:
            for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True):
                dims = _dims(kernel.shape, mapping, ("mn", "k"))
                if all(dims):
                    yield use.value, dims


def _dims(shape: KernelShape, mapping: TensorMapping, kinds: tuple[str, str]) -> MinorDims:
    slid = {factor for window in shape.windows for factor in shape.rule.operands[window.operand][window.dim]}
    first, second = (
        tuple(
            dim
            for dim, factors in enumerate(mapping)
            if factors and all(shape.matmul_roles[f] in kind and f not in slid for f in factors)
        )
        for kind in kinds
    )
    return first, second
