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


def test_equal_casts_that_are_read_once_each_are_one() -> None:
    again = "\n".join(f"%h{i} = stablehlo.convert %a : ({WIDE}) -> {NARROW}" for i in range(4))
    square = "tensor<64x64xf32>"
    dots = "\n".join(
        f"%p{i} = stablehlo.dot_general %h{i}, %c, contracting_dims = [1] x [1] : ({NARROW}, {NARROW}) -> {square}"
        for i in range(4)
    )
    arguments, results = f"%a: {WIDE}, %c: {NARROW}", [square] * 4

    def stored(returned: str) -> int:
        """How many of the casts have a buffer."""
        types = ", ".join([*results, *([NARROW] if returned else [])])
        body = f"{again}\n{dots}\nreturn %p0, %p1, %p2, %p3{returned} : {types}"
        program = program_of(main_of(body, arguments, types))
        casts = [kernel.results[0] for kernel in program.kernels if not kernel.shape.is_matmul]
        return sum(program.ample_lifetimes[value].is_own_buffer for value in casts)

    assert stored("") == 1
    assert stored(", %h3") == 1  # three are left, which are not stored, and the result
    assert stored(", %h0") == 1


def test_a_demanded_cast_of_a_constant_reads_nothing() -> None:
    demand = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}'
    cast = f"%k = stablehlo.iota dim=0 : {WIDE}\n%h = stablehlo.convert %k {demand} : ({WIDE}) -> {NARROW}"
    (kernel,) = program_of(main_of(f"{cast}\nreturn %h : {NARROW}", "", NARROW)).kernels
    assert kernel.uses == ()


def test_a_long_chain_of_cheap_work() -> None:
    """Each step is read by a product and is evaluated in it from the one before."""
    steps, made = 1200, "tensor<64x4xf32>"
    work = "\n".join(
        f"""%x{i + 1} = stablehlo.tanh %x{i} : {WIDE}
        %p{i} = stablehlo.dot_general %x{i + 1}, %w, contracting_dims = [1] x [0] : ({WIDE}, tensor<16x4xf32>) -> {made}
        %s{i + 1} = stablehlo.add %s{i}, %p{i} : {made}"""
        for i in range(steps)
    )
    start = f"%x0 = stablehlo.tanh %a : {WIDE}\n%s0 = stablehlo.constant dense<0.0> : {made}"
    text = main_of(f"{start}\n{work}\nreturn %s{steps} : {made}", f"%a: {WIDE}, %w: tensor<16x4xf32>", made)
    assert sum(kernel.shape.is_matmul for kernel in program_of(text).kernels) == steps
