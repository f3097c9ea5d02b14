"""Values travel as wide as their readers take them."""

import pytest

from autoshard.program.widths import Widths
from tests.mlir.modules import counted_loop, listed, main_of

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


PICKED = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
%m = stablehlo.reduce(%v init: %z) applies stablehlo.maximum across dimensions = [0] : ({T}, tensor<f32>) -> tensor<16xf32>
%r = stablehlo.convert %m : (tensor<16xf32>) -> tensor<16xbf16>"""
SUMMED = PICKED.replace("maximum", "add")
TO_INTEGERS = f"%r = stablehlo.convert %v : ({T}) -> tensor<8x16xi8>"
JOINED = f"""%t = stablehlo.concatenate %v, %a, dim = 0 : ({T}, {T}) -> tensor<16x16xf32>
%r = stablehlo.convert %t : (tensor<16x16xf32>) -> tensor<16x16xbf16>"""
WRITTEN = f"""%o = stablehlo.constant dense<0> : tensor<i32>
%t = stablehlo.dynamic_update_slice BUFFER, %v, %o, %o : ({T}, {T}, tensor<i32>, tensor<i32>) -> {T}
%r = stablehlo.convert %t : ({T}) -> {N}"""
CASES = {
    "convert": (NARROW, "bf16"),
    "product": (PRODUCT, "bf16"),
    "highest": (EXACT, "f32"),
    "transposed": (TURNED, "bf16"),
    "added": (ADDED, "f32"),
    "two": (TWO, "f32"),
    "picked": (PICKED, "bf16"),
    "summed": (SUMMED, "f32"),
    "to_integers": (TO_INTEGERS, "f32"),
    "joined": (JOINED, "bf16"),
    "written into an argument": (WRITTEN.replace("BUFFER", "%a"), "f32"),
    "written into a result": (WRITTEN.replace("BUFFER", "%v"), "bf16"),
}


@pytest.mark.parametrize(("readers", "expected"), CASES.values(), ids=CASES)
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


def test_a_complex_number_is_wider_than_its_magnitude() -> None:
    """A gather of it sends both parts, in float32."""
    values = "tensor<8x16xcomplex<f32>>"
    listing = listed(
        f"""sdy.mesh @mesh = <["x"=2]>
        func.func @main(%a: {values}) -> {N} {{
          %v = stablehlo.abs %a : ({values}) -> {T}
          {NARROW}
          return %r : {N}
        }}"""
    )
    assert Widths(listing).of_value(listing.arguments[0].value).dtype == "complex<f32>"


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


def loop_of(after: str) -> str:
    """A loop that writes rows of a value into a stack, which is read after it."""
    written = (
        f"%u = stablehlo.dynamic_update_slice %s, %v, %i, %i : ({T}, {T}, tensor<i32>, tensor<i32>) -> {T}"
    )
    return f"""%v = stablehlo.tanh %a : {T}
%stack = stablehlo.constant dense<0.0> : tensor<8x16xf32>
{counted_loop(2, [("%s", "%stack", T)], written, ["%u"], "w")}
{after}
return %a : {T}"""


@pytest.mark.parametrize(
    ("after", "expected"),
    [(NARROW, "bf16"), (f"%r = stablehlo.add %v, %v : {T}", "f32")],
    ids=["narrowed", "as it is"],
)
def test_what_a_loop_carries_is_looked_through(after: str, expected: str) -> None:
    """The stack reads itself, which decides nothing."""
    listing = listed(main_of(loop_of(after.replace("%v", "%w#1"))))
    assert Widths(listing).of_value(listing.ops[0].results[0]).dtype == expected
