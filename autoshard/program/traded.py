"""What products read that is stored because repeating it would move more bytes than that.

XLA:TPU makes cheap work anew in each product that reads it unless

    products · (bytes it is made of) > bytes it is made of + its bytes + products · (its bytes)

that is, where reading the operands each time moves more than making it once. Weights in float32 that are cast to 16 bits are so from four
products on (two towers of one encoder, forward and backward), float32 gates from two, sums of three buffers of 16 bits from three; what is
made of no more than its own bytes never is, nor what is made of buffers that something else reads later, as the backward pass reads a gate
and what it gates (12 training steps). Seen in what libtpu 0.0.51 compiles for v5e of 45 small programs, forward; equal casts of an
argument are one. `costmodels.tiles` has the chips that store more.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import Kernel
from autoshard.program.widths import Widths
from autoshard.sharding import dtype_bits

_CONVERT = "stablehlo.convert"


class Traffic:
    def __init__(self, kernels: Sequence[Kernel], listing: Listing, held: Widths) -> None:
        """`held`: in what type values are stored."""
        self._listing, self._held = listing, held
        self._arguments = frozenset(argument.value for argument in listing.arguments)
        self.first = _equal_casts(kernels, listing, self._arguments)
        self._equals = Counter(self.first.values())
        self._products = Counter[int]()
        for value, products in _products(kernels).items():
            self._products[self.first.get(value, value)] += products

    def has_equals(self, value: int) -> bool:
        """Whether a value is the first of several equal casts."""
        return self._equals[value] > 1

    def is_spared(self, value: int, made_of: Collection[int]) -> bool:
        """Whether what is made of these buffers, read by products alone, is stored."""
        products = self._products[self.first.get(value, value)]
        read, made = self._bytes(made_of), self._bytes([value])
        return products * read > read + made + products * made

    def held_bits(self, value: int) -> int:
        """Of one element as it is stored."""
        return dtype_bits(self._held.of_value(value).dtype)

    def _bytes(self, values: Iterable[int]) -> int:
        return sum(
            stored_bytes(self._listing, value)
            if value in self._arguments
            else self._held.of_value(value).num_bytes
            for value in values
        )


def as_first(kernel: Kernel, first: int) -> Kernel:
    """An equal cast: a name of the first one's result."""
    (use,) = kernel.uses
    return replace(kernel, uses=(replace(use, value=first),), is_alias=True)


def _equal_casts(kernels: Sequence[Kernel], listing: Listing, arguments: frozenset[int]) -> dict[int, int]:
    """Of casts of an argument in one body, the first equal one's result, itself included; what is returned or demanded is its own."""
    known: dict[tuple[int, object, int], int] = {}
    found: dict[int, int] = {}
    own = {result.value for result in listing.results}
    for kernel in kernels:
        root = listing.ops[kernel.time]
        is_of_argument = [use.value in arguments for use in kernel.uses] == [True]
        if root.name != _CONVERT or len(kernel.ops) > 1 or not is_of_argument or root.demand is not None:
            continue
        (value,) = kernel.results
        if value not in own:
            key = kernel.uses[0].value, listing.values[value].type, root.region
            found[value] = known.setdefault(key, value)
    return found


def _products(kernels: Sequence[Kernel]) -> Counter[int]:
    """How many products read each value, also under another name."""
    found = Counter[int]()
    for kernel in reversed(kernels):
        is_name = kernel.is_alias and len(kernel.uses) == 1
        read = 1 if kernel.shape.is_matmul else sum(found[value] for value in kernel.results if is_name)
        if read:
            found.update({use.value: read for use in kernel.uses})
    return found
