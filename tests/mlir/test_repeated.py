"""Values that equal ops compute again are known by the first of them, since XLA computes them once."""

import pytest

from autoshard import pipeline
from tests.mlir.modules import counted_loop

X = "tensor<8x16xf32>"
FIRST = f"%b = stablehlo.negate %a : {X}\n  %c = stablehlo.multiply %b, %a : {X}"
CASES = {
    "equal": (f"stablehlo.negate %a : {X}", True),
    "another op": (f"stablehlo.tanh %a : {X}", False),
    "another operand": (f"stablehlo.negate %c : {X}", False),
    "another attribute": (f"stablehlo.slice %w [8:16, 0:16] : (tensor<16x16xf32>) -> {X}", False),
}


@pytest.mark.parametrize(("again", "is_known"), CASES.values(), ids=CASES)
def test_equal_ops_of_equal_operands(again: str, is_known: bool) -> None:
    """Also what is made of values that are the same."""
    text = f"""func.func @main(%a: {X}, %w: tensor<16x16xf32>) -> ({X}, {X}, {X}) {{
  {FIRST}
  %s = stablehlo.slice %w [0:8, 0:16] : (tensor<16x16xf32>) -> {X}
  %d = {again}
  %e = stablehlo.multiply %d, %a : {X}
  return %c, %e, %s : {X}, {X}, {X}
}}"""
    listing = pipeline.load_module(text.encode(), pipeline.Request((("x", 4),))).listing
    (b, c, *_), (d, e) = ([op.results[0] for op in ops] for ops in (listing.ops[:2], listing.ops[3:]))
    assert dict(listing.firsts) == ({d: b, e: c} if is_known else {})


def test_what_changes_nothing() -> None:
    """A reverse of one element is its operand; with a sharding of the user's it stays, known as that."""
    kernel = "tensor<1x1x8x16xf32>"
    given = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {}, {"x"}]>]>}'
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: {kernel}) -> ({kernel}, {kernel}, {kernel}, {kernel}) {{
  %b = stablehlo.negate %a : {kernel}
  %c = stablehlo.reverse %b, dims = [0, 1] : {kernel}
  %d = stablehlo.reverse %b, dims = [0, 2] : {kernel}
  %e = stablehlo.reverse %b, dims = [0, 1] {given} : {kernel}
  return %b, %c, %d, %e : {kernel}, {kernel}, {kernel}, {kernel}
}}"""
    listing = pipeline.load_module(text.encode(), pipeline.Request()).listing
    b, _, e = (op.results[0] for op in listing.ops)
    assert [result.value for result in listing.results][:2] == [b, b]
    assert dict(listing.firsts) == {e: b}


@pytest.mark.parametrize(
    ("op", "value", "is_mask"),
    [("and", "true", True), ("or", "false", True), ("and", "false", False), ("or", "true", False)],
)
def test_masks_that_are_true_besides_are_the_masks(op: str, value: str, is_mask: bool) -> None:
    """On either side, also of a constant that is spread; numbers are none."""
    mask, row, whole = "tensor<8x16xi1>", "tensor<16xi1>", "tensor<8x16xi32>"
    text = f"""func.func @main(%a: {mask}, %n: {whole}) -> ({mask}, {mask}, {whole}) {{
  %one = stablehlo.constant dense<{value}> : {row}
  %all = stablehlo.broadcast_in_dim %one, dims = [1] : ({row}) -> {mask}
  %ones = stablehlo.constant dense<1> : {whole}
  %b = stablehlo.not %a : {mask}
  %c = stablehlo.{op} %all, %b : {mask}
  %d = stablehlo.{op} %b, %all : {mask}
  %e = stablehlo.and %n, %ones : {whole}
  return %c, %d, %e : {mask}, {mask}, {whole}
}}"""
    listing = pipeline.load_module(text.encode(), pipeline.Request((("x", 4),))).listing
    (b,) = next(op.results for op in listing.ops if op.name == "stablehlo.not")
    assert ([result.value for result in listing.results][:2] == [b, b]) == is_mask
    assert sum(op.name == f"stablehlo.{op_}" for op in listing.ops for op_ in ("and", "or")) == (
        1 if is_mask else 3
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize(
    ("op", "number", "sides"),
    [
        ("multiply", 1, "both"),
        ("add", 0, "both"),
        ("divide", 1, "right"),
        ("subtract", 0, "right"),
        ("multiply", 0, "none"),
        ("add", 1, "none"),
        ("divide", 0, "none"),
        ("maximum", 0, "none"),
    ],
)
def test_factors_of_one_and_addends_of_zero(op: str, number: int, sides: str, dtype: str) -> None:
    """As torch writes its sums: what is beside them is the value, and what is made of it, too."""
    row, whole = f"tensor<16x{dtype}>", f"tensor<8x16x{dtype}>"
    text = f"""func.func @main(%a: {whole}) -> ({whole}, {whole}) {{
  %one = stablehlo.constant dense<{number}{"" if dtype == "i32" else ".0"}> : {row}
  %all = stablehlo.broadcast_in_dim %one, dims = [1] : ({row}) -> {whole}
  %b = stablehlo.abs %a : {whole}
  %c = stablehlo.{op} %all, %b : {whole}
  %d = stablehlo.{op} %b, %all : {whole}
  return %c, %d : {whole}, {whole}
}}"""
    listing = pipeline.load_module(text.encode(), pipeline.Request((("x", 4),))).listing
    (b,) = next(op.results for op in listing.ops if op.name == "stablehlo.abs")
    returned = [result.value == b for result in listing.results]
    assert returned == [sides == "both", sides != "none"]


def test_what_is_in_a_sharding_group_stays() -> None:
    """What it is made of may be split otherwise: an argument in rows, what is in the group in columns."""
    t, rows, columns = "tensor<64x128xf32>", '[{"x"}, {}]', '[{}, {"x"}]'
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: {t} {{sdy.sharding = #sdy.sharding<@mesh, {rows}>}}, %y: {t} {{sdy.sharding = #sdy.sharding<@mesh, {columns}>}})
    -> ({t}, {t}) {{
  %one = stablehlo.constant dense<1.0> : {t}
  %b = stablehlo.multiply %a, %one : {t}
  sdy.sharding_group %b group_id=1 : {t}
  sdy.sharding_group %y group_id=1 : {t}
  %c = stablehlo.tanh %b : {t}
  %e = stablehlo.add %a, %y : {t}
  return %c, %e : {t}, {t}
}}"""
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None)))
    assert plan.price.step_ns > 0


def test_masks_beside_constants_that_are_kept_apart_stay() -> None:
    """Resources of the module, which the bindings do not hand out as elements."""
    mask = "tensor<2x2xi1>"
    text = f"""func.func @main(%a: {mask}) -> {mask} {{
  %c = stablehlo.constant dense_resource<m> : {mask}
  %0 = stablehlo.and %a, %c : {mask}
  return %0 : {mask}
}}
{{-# dialect_resources: {{ builtin: {{ m: "0x0100000001010101" }} }} #-}}"""
    listing = pipeline.load_module(text.encode(), pipeline.Request((("x", 2),))).listing
    assert [op.name for op in listing.ops].count("stablehlo.and") == 1


@pytest.mark.parametrize(("other", "count"), [("(0.0, 1.0)", 1), ("(0.0, 2.0)", 0)])
def test_complex_constants(other: str, count: int) -> None:
    """The bindings do not hand out what they hold, which is read as it is printed."""
    z = "tensor<2xcomplex<f32>>"
    text = f"func.func @main() -> ({z}, {z}) {{\n  %a = stablehlo.constant dense<(0.0, 1.0)> : {z}\n"
    text += f"  %b = stablehlo.constant dense<{other}> : {z}\n  return %a, %b : {z}, {z}\n}}"
    assert len(pipeline.load_module(text.encode(), pipeline.Request((("x", 2),))).listing.firsts) == count


def test_not_in_another_body() -> None:
    """What a loop computes it computes in every trip."""
    body = f"%c = stablehlo.negate %a : {X}\n%y = stablehlo.add %x, %c : {X}"
    text = f"""func.func @main(%a: {X}) -> ({X}, {X}) {{
  %b = stablehlo.negate %a : {X}
  {counted_loop(9, [("%x", "%a", X)], body, ["%y"])}
  return %b, %r#1 : {X}, {X}
}}"""
    assert not pipeline.load_module(text.encode(), pipeline.Request((("x", 4),))).listing.firsts
