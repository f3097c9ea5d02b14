"""What is stored while a Fourier transform is worked out.

XLA:TPU has no such op: it multiplies by matrices of roots of unity, three real products for one of complex numbers, and keeps them all
until they are added up. Lengths of several hundred that 128 divides go in two stages, whose products are alive together; all others in
one. A transform to real numbers mirrors its halves first, one of real numbers over several dimensions has the products of the second
beside those of the first. Where several kernels read what a transform makes, each adds up the products, which are kept in its place; those
of two stages are added up, over the whole length also where half of it is asked for. Seen in what libtpu 0.0.51 compiles for v5e of 30
small programs with lengths of 64 to 4096, over one to three dimensions (16384, 128 x 128, takes a sixth less).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from autoshard.program.records import Kernel, Lifetime, Transform
from autoshard.program.repeating import readers_of
from autoshard.sharding import FactorKind, TensorType

_FFT = "stablehlo.fft"
_LONGEST_STAGE = 256
_STAGE = 128


class _Stored(NamedTuple):
    """In halves of an array of real numbers over the whole length."""

    products: int
    operand_gone: int  # what of a temporary operand that dies here is gone by then
    operand_copied: int  # what an argument is taken apart into
    result: int
    kept: int  # beside the result as long as that lives


_ONE_STAGE = {
    "complex": _Stored(products=6, operand_gone=2, operand_copied=2, result=4, kept=2),
    "from_real": _Stored(products=6, operand_gone=0, operand_copied=0, result=2, kept=4),
    "to_real": _Stored(products=6, operand_gone=1, operand_copied=1, result=2, kept=0),
}
_TWO_STAGES = {
    "complex": _Stored(products=10, operand_gone=2, operand_copied=2, result=4, kept=0),
    "from_real": _Stored(products=12, operand_gone=2, operand_copied=0, result=2, kept=2),
    "to_real": _Stored(products=12, operand_gone=2, operand_copied=0, result=2, kept=0),
}
_SEVERAL_FROM_REAL = _Stored(products=9, operand_gone=2, operand_copied=0, result=2, kept=1)


def transforms(
    kernels: Sequence[Kernel],
    arguments: Collection[int],
    returned: Collection[int],
    lives: Mapping[int, Lifetime],
) -> dict[int, Transform]:
    """Of what transforms make, what they store beside their operand and result; nothing of constants, which are small."""
    made_by = {value: kernel for kernel in kernels for value in kernel.results}
    readers, found = readers_of(kernels), dict[int, Transform]()
    for kernel in kernels:
        if kernel.shape.name == _FFT and kernel.uses and kernel.shape.results:
            (operand,), (made,), (result,) = kernel.shape.operands, kernel.shape.results, kernel.results
            stored = _stored(kernel)
            kept = stored.kept if result not in returned and len(readers.get(result, ())) > 1 else 0
            halves = stored.products - (0 if result in returned else stored.result + kept)
            buffer = _behind(kernel.uses[0].value, made_by, lives)
            if kernel.uses[0].value in arguments:
                halves += stored.operand_copied
            elif buffer in lives and buffer not in arguments and lives[buffer].end <= kernel.time + 1:
                halves -= stored.operand_gone
            whole = operand if made.is_complex else made
            real = whole.dtype.removeprefix("complex<").removesuffix(">")
            found[result] = Transform(TensorType(whole.shape, real), max(halves, 0), kept)
    return found


def _behind(value: int, made_by: Mapping[int, Kernel], lives: Mapping[int, Lifetime]) -> int:
    """The first buffer that a value without one is worked out from."""
    while (kernel := made_by.get(value)) is not None and kernel.uses:
        if value not in lives or lives[value].is_own_buffer:
            break
        value = kernel.uses[0].value
    return value


def _stored(kernel: Kernel) -> _Stored:
    rule, (operand,), (made,) = kernel.shape.rule, kernel.shape.operands, kernel.shape.results
    lengths = [
        max(operand.shape[dim], made.shape[dim])
        for dim, factors in enumerate(rule.operands[0])
        if any(rule.factors[f].kind is FactorKind.NEED_REPLICATION for f in factors)
    ]
    kind = "to_real" if not made.is_complex else "complex" if operand.is_complex else "from_real"
    if any(length > _LONGEST_STAGE and length % _STAGE == 0 for length in lengths):
        return _TWO_STAGES[kind]
    return _SEVERAL_FROM_REAL if kind == "from_real" and len(lengths) > 1 else _ONE_STAGE[kind]
