"""What products read is stored where reading what it is made of each time moves more bytes."""

import pytest

from tests.mlir.modules import main_of
from tests.program.modules import program_of

WIDE, NARROW = "tensor<64x16xf32>", "tensor<64x16xbf16>"
BYTES = "tensor<64x16xi8>"
CAST = f"%h = stablehlo.convert %a : ({WIDE}) -> {NARROW}"
GATE = f"%g = stablehlo.multiply %a, %b : {WIDE}\n%h = stablehlo.convert %g : ({WIDE}) -> {NARROW}"
NARROW_GATE = f"%h = stablehlo.multiply %c, %d : {NARROW}"
SCALED = f"%h = stablehlo.add %c, %c : {NARROW}"
WIDENED = f"%h = stablehlo.convert %i : ({BYTES}) -> {NARROW}"


def is_stored(work: str, products: int, *, twice: str = "") -> bool:
    """Whether `work`, which makes %h, has a buffer; `twice`: of the products the last one reads that instead."""
    square = "tensor<64x64xf32>"
    read = ["%h"] * (products - bool(twice)) + ["%other"] * bool(twice)
    dots = "\n".join(
        f"%p{i} = stablehlo.dot_general {one}, %w{i}, contracting_dims = [1] x [1] : ({NARROW}, {NARROW}) -> {square}"
        for i, one in enumerate(read)
    )
    weights = ", ".join(f"%w{i}: {NARROW}" for i in range(products))
    made = ", ".join(f"%p{i}" for i in range(products))
    arguments = f"%a: {WIDE}, %b: {WIDE}, %c: {NARROW}, %d: {NARROW}, %i: {BYTES}, {weights}"
    results = ", ".join([square] * products)
    program = program_of(main_of(f"{work}\n{twice}\n{dots}\nreturn {made} : {results}", arguments, results))
    by_product = {kernel.uses[0].value for kernel in program.kernels if kernel.shape.is_matmul}
    by_product -= {argument.value for argument in program.listing.arguments}
    return any(program.ample_lifetimes[value].is_own_buffer for value in by_product)


@pytest.mark.parametrize(
    ("work", "products", "stored"),
    [
        (CAST, 3, False),
        (CAST, 4, True),
        (GATE, 2, True),
        (NARROW_GATE, 3, False),
        (NARROW_GATE, 4, True),
        (SCALED, 6, False),
        (WIDENED, 6, False),
    ],
)
def test_reading_again_and_again(work: str, products: int, stored: bool) -> None:
    """As in 45 small programs of libtpu 0.0.51 for v5e, 8192 x 2048 of activations or 2048 x 2048 of weights."""
    assert is_stored(work, products) is stored


def test_equal_casts_are_one() -> None:
    again = f"%other = stablehlo.convert %a : ({WIDE}) -> {NARROW}"
    assert is_stored(CAST, 4, twice=again)
    assert not is_stored(CAST, 3, twice=again)
