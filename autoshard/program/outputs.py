"""Elementwise work that a compiler does while a product runs, on its result, and that other kernels would otherwise repeat."""

from autoshard.program.fusion import is_elementwise
from autoshard.program.prefetch import prefetchable
from autoshard.program.records import Program


def repeated_origins(program: Program) -> dict[int, int]:
    """Values that each reader evaluates for itself -> the elementwise result behind them, under whatever name."""
    found: dict[int, int] = {}
    for kernel in program.kernels:
        if not kernel.is_alias or not kernel.results:
            continue
        (value, *_) = kernel.results
        if is_elementwise(program.listing.ops[kernel.time]):
            found[value] = value
        elif kernel.uses and kernel.uses[0].value in found:
            found[value] = found[kernel.uses[0].value]
    return found


def made_with_products(program: Program) -> frozenset[int]:
    """Elementwise results of nothing but results of products and what is there ahead of time."""
    early = prefetchable(program)
    found: set[int] = set()
    products = {value for kernel in program.kernels if kernel.shape.is_matmul for value in kernel.results}
    for kernel in program.kernels:
        made = [use.value for use in kernel.uses if use.value not in early]
        if (
            made
            and is_elementwise(program.listing.ops[kernel.time])
            and all(v in products or v in found for v in made)
        ):
            found.update(kernel.results)
    return frozenset(found)
