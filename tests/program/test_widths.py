"""Values travel as wide as their readers take them."""

import pytest

from autoshard.program.widths import Widths
from tests.mlir.modules import listed, main_of

T, N = "tensor<8x16xf32>", "tensor<8x16xbf16>"
DOT = "(tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>"
NARROW = f"%r = stablehlo.convert %v : ({T}) -> {N}"
PRODUCT = f"%r = stablehlo.dot_general %v, %v, contracting_dims = [1] x [1] : {DOT}"
EXACT = (
    f"%r = stablehlo.dot_general %v, %v, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : {DOT}"
)
TURNED = f"""%t = stablehlo.transpose %v, dims = [1, 0] : ({T}) -> tensor<16x8xf32>
%r = stablehlo.convert %t : (tensor<16x8xf32>) -> tensor<16x8xbf16>"""
ADDED = f"%w = stablehlo.add %v, %v : {T}\n%r = stablehlo.convert %w : ({T}) -> {N}"
TWO = f"%s = stablehlo.cosine %v : {T}\n{NARROW}"


@pytest.mark.parametrize(
    ("readers", "expected"),
    [(NARROW, "bf16"), (PRODUCT, "bf16"), (EXACT, "f32"), (TURNED, "bf16"), (ADDED, "f32"), (TWO, "f32")],
    ids=["convert", "product", "highest", "transposed", "added", "two"],
)
def test_a_value_travels_as_wide_as_its_readers_take_it(readers: str, expected: str) -> None:
    body = f"%v = stablehlo.tanh %a : {T}\n{readers}\nreturn %a : {T}"
    listing = listed(main_of(body))
    value = listing.ops[0].results[0]
    assert Widths(listing).of_value(value).dtype == expected


def test_a_copy_for_some_readers_travels_as_they_take_it() -> None:
    """Whatever the others do."""
    listing = listed(main_of(f"%v = stablehlo.tanh %a : {T}\n{TWO}\nreturn %a : {T}"))
    value = listing.ops[0].results[0]
    widths = Widths(listing)
    assert [widths.of_use(value, ((op, 0),)).dtype for op in (1, 2)] == ["f32", "bf16"]


def test_what_is_returned_travels_as_it_is() -> None:
    listing = listed(main_of(f"{NARROW.replace('%v', '%a')}\nreturn %a : {T}"))
    assert Widths(listing).of_value(listing.arguments[0].value).dtype == "f32"


def test_a_long_chain_of_moves_is_looked_through() -> None:
    """Longer than Python calls go deep."""
    square = "tensor<16x16xf32>"
    turns = "\n".join(
        f"%v{i + 1} = stablehlo.transpose %v{i}, dims = [1, 0] : ({square}) -> {square}" for i in range(1500)
    )
    narrowed = f"%r = stablehlo.convert %v1500 : ({square}) -> tensor<16x16xbf16>"
    text = f'sdy.mesh @mesh = <["x"=2]>\nfunc.func @main(%v0: {square}) -> {square} {{\n{turns}\n{narrowed}\nreturn %v0 : {square}\n}}'
    listing = listed(text)
    assert Widths(listing).of_value(listing.ops[0].results[0]).dtype == "bf16"
