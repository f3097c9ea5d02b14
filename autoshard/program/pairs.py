"""Values that XLA makes together with a reduction of them, as a pair, and what is stored beside them instead of in their memory.

An op writes over an operand that dies there only where it reads the instruction itself that made it. Of a pair it reads an element, so
that nothing is written over a pair: of 41 fusions of nine training steps that could have written over one, on v5e, v6e and v5p, none does,
and of 19 that could have written over a value made alone all but three do (libtpu 0.0.52, buffer assignments).

Such are scores and their maxima, exponentials and their sums, and what goes back to both with the sum that the gradient of a softmax
needs. What is made of two of them, as the gradient of scores, is stored where it has 16 bits (in float32 of exponentials also where it is
stored so); on v5e, and where products alone read it, only if reading what it is made of each time moves more than that (`traded`).
Otherwise each of its readers makes it anew. What a gather reads is stored in any case, as logarithms that labels are picked from: beside
float32 logits where nothing goes back to these (a model that says how likely words are, v5e, v6e and v5p).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from autoshard.program.records import Compiler, Kernel
from autoshard.program.repeating import read_behind
from autoshard.program.traded import Traffic
from autoshard.sharding import dtype_bits

_REDUCE, _EXPONENTIAL, _GATHER = "stablehlo.reduce", "stablehlo.exponential", "stablehlo.gather"
_NARROW_BITS = 16


def stored_apart(
    kernels: Sequence[Kernel], traffic: Traffic, compiler: Compiler, sums: frozenset[int]
) -> frozenset[int]:
    """Results that take memory of their own although operands of their size die where they are made.

    Args:
        sums: values made in their readers, which count as no pairs.
    """
    made = {value: kernel for kernel in kernels for value in kernel.results}
    names = {value: kernel for value, kernel in made.items() if kernel.is_alias}
    pairs, for_products = _made_with_reductions(kernels, made), _for_products(kernels)
    pairs = {value: of for value, of in pairs.items() if value not in sums}
    gathers = (kernel for kernel in kernels if kernel.shape.name == _GATHER)
    gathered = {value for kernel in gathers for value in read_behind(kernel, names)}
    found: set[int] = set()
    for kernel in kernels:
        read = {pair for use in kernel.uses for pair in pairs.get(use.value, ())}
        if kernel.is_alias or not read or len(kernel.results) != 1:
            continue
        (value,) = kernel.results
        if value in gathered and any(_is_product_alike(made.get(pair), kernel) for pair in read):
            found.add(value)
        if len(read) < 2:
            continue
        is_narrow = _is_narrow(kernel)
        if value in for_products:
            moves_less = traffic.is_spared(value, read_behind(kernel, names) - names.keys())
            is_narrow &= compiler.ends_products_in_place or moves_less
        elif any(pair in made and made[pair].shape.name == _EXPONENTIAL for pair in read):
            is_narrow |= traffic.held_bits(value) <= _NARROW_BITS
        if is_narrow:
            found.add(value)
    return frozenset(found)


def _is_product_alike(product: Kernel | None, other: Kernel) -> bool:
    """Whether a product is stored in the type of what another kernel makes."""
    if product is None or not product.shape.is_matmul:
        return False
    return product.shape.results[0].dtype == other.shape.results[0].dtype


def _for_products(kernels: Sequence[Kernel]) -> frozenset[int]:
    """What products alone read, also under other names."""
    found, others = set[int](), set[int]()
    for kernel in reversed(kernels):
        is_name = kernel.is_alias and len(kernel.uses) == 1
        is_read_so = is_name and any(one in found and one not in others for one in kernel.results)
        into = found if kernel.shape.is_matmul or is_read_so else others
        into.update(use.value for use in kernel.uses)
    return frozenset(found - others)


def _is_narrow(kernel: Kernel) -> bool:
    return all(dtype_bits(type_.dtype) <= _NARROW_BITS for type_ in kernel.shape.results)


def _made_with_reductions(kernels: Sequence[Kernel], made: Mapping[int, Kernel]) -> dict[int, frozenset[int]]:
    """Values that come out of a product together with a reduction of them, and what is evaluated from them in place of a buffer; of which.

    What is made of another reduction is none of them, but exponentials, whose maximum is taken as the product leaves the matrix unit.
    """
    readers = Counter(use.value for kernel in kernels for use in kernel.uses)
    reductions = [kernel for kernel in kernels if kernel.shape.name == _REDUCE]
    reduced = {result for kernel in reductions for result in kernel.results}
    seen: set[int] = set()
    pending = [use.value for kernel in reductions for use in kernel.uses]
    while pending:
        value = pending.pop()
        kernel = made.get(value)
        if kernel is None or value in seen:
            continue
        is_behind_sum = any(use.value in reduced for use in kernel.uses)
        if is_behind_sum and kernel.shape.name != _EXPONENTIAL:
            continue
        if kernel.shape.is_matmul:
            seen.add(value)
        elif kernel.is_in_place or kernel.is_alias:
            seen.add(value)
            shape = kernel.shape.results[0].shape
            operands = zip(kernel.uses, kernel.shape.operands, strict=True)
            pending.extend(use.value for use, type_ in operands if type_.shape == shape)
    found = {value: frozenset({value}) for value in seen if readers[value] > 1}
    for kernel in kernels:
        behind = [found[use.value] for use in kernel.uses if use.value in found] if kernel.is_alias else []
        if behind:
            found.update(dict.fromkeys(kernel.results, frozenset[int]().union(*behind)))
    return found
