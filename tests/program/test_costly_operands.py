"""What a compiler stores in 16 bits for several products because it takes long to work out (`Tiles.keeps_costly_operands`)."""

import pytest

from autoshard.program import Compiler, build_program
from tests.mlir.modules import listed, main_of

W = "tensor<16x16xbf16>"
ACTIVATIONS = {
    "logistic": ("%y = stablehlo.logistic %h : {t}", True),
    "written out": (
        """
      %n = stablehlo.negate %h : {t}
      %e = stablehlo.exponential %n : {t}
      %d = stablehlo.add %e, %one : {t}
      %s = stablehlo.divide %one, %d : {t}
      %y = stablehlo.multiply %h, %s : {t}""",
        True,
    ),
    "softmax": (
        """
      %e = stablehlo.exponential %h : {t}
      %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<{d}>) -> tensor<64x{d}>
      %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<64x{d}>) -> {t}
      %y = stablehlo.divide %e, %b : {t}""",
        True,
    ),
    "an exponential alone": (
        """
      %e = stablehlo.exponential %h : {t}
      %y = stablehlo.multiply %h, %e : {t}""",
        False,
    ),
    "a division alone": (
        """
      %a1 = stablehlo.abs %h : {t}
      %d = stablehlo.add %a1, %one : {t}
      %y = stablehlo.divide %h, %d : {t}""",
        False,
    ),
    "a hyperbolic tangent": ("%y = stablehlo.tanh %h : {t}", False),
}


def stored(text: str, name: str, compiler: Compiler) -> bool:
    """Whether what the last op of that name makes has a buffer where memory is ample."""
    program = build_program(listed(text), compiler=compiler)
    (*_, made) = (k for k in program.kernels if program.listing.ops[k.time].name == name)
    return program.ample_lifetimes[made.results[0]].is_own_buffer


def perceptron(activation: str, dtype: str, columns: int = 4) -> str:
    """A product, an activation function, and two products that read it; the first product's result is read again."""
    t, w, v = (f"tensor<{shape}x{dtype}>" for shape in ("64x16", "16x16", f"16x{columns}"))
    made, turned = f"tensor<64x{columns}x{dtype}>", f"tensor<{columns}x16x{dtype}>"
    body = f"""
      %one = stablehlo.constant dense<1.0> : {t}
      %zero = stablehlo.constant dense<0.0> : tensor<{dtype}>
      %h = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      {ACTIVATIONS[activation][0].format(t=t, d=dtype)}
      %1 = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] : ({t}, {v}) -> {made}
      %2 = stablehlo.dot_general %1, %y, contracting_dims = [0] x [0] : ({made}, {t}) -> {turned}
      %3 = stablehlo.dot_general %1, %h, contracting_dims = [0] x [0] : ({made}, {t}) -> {turned}
      return %1, %2, %3 : {made}, {turned}, {turned}"""
    return main_of(body, f"%a: {t}, %w: {w}, %v: {v}", f"{made}, {turned}, {turned}")


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_quotients_of_exponentials(activation: str, dtype: str, keeps: bool) -> None:
    """libtpu 0.0.52 stores them for v4 and TPU7x: six perceptrons with silu take 1743 and 1885 MB, 1072 and 1214 with tanh; on v5p 1071."""
    compiler = Compiler(is_xla_tpu=True, keeps_costly_operands=keeps)
    is_dear = ACTIVATIONS[activation][1]
    ends = {"logistic": "logistic", "written out": "multiply", "an exponential alone": "multiply"}
    name = "stablehlo." + ends.get(activation, "tanh" if "tangent" in activation else "divide")
    assert stored(perceptron(activation, dtype), name, compiler) is (keeps and is_dear and dtype == "bf16")


@pytest.mark.parametrize(("columns", "is_stored"), [(16, False), (8, False), (7, True)])
def test_quotients_of_which_products_make_much(columns: int, is_stored: bool) -> None:
    """Six perceptrons of as many or twice as many hidden values take 0.96 of what is said without, of two and a half times 1.41 (v4)."""
    compiler = Compiler(is_xla_tpu=True, keeps_costly_operands=True)
    assert stored(perceptron("logistic", "bf16", columns), "stablehlo.logistic", compiler) is is_stored


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_scaled_by_a_few_quotients_is_none(keeps: bool) -> None:
    """By one logistic function a row, as gates of channels and routers are: 0.82 of what is said without, 0.55 with (v4)."""
    t, row, v, made, turned = (f"tensor<{shape}xbf16>" for shape in ("64x16", "64x1", "16x4", "64x4", "4x16"))
    body = f"""
      %h = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {W}) -> {t}
      %l = stablehlo.logistic %r : {row}
      %s = stablehlo.broadcast_in_dim %l, dims = [0, 1] : ({row}) -> {t}
      %y = stablehlo.multiply %h, %s : {t}
      %1 = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] : ({t}, {v}) -> {made}
      %2 = stablehlo.dot_general %1, %y, contracting_dims = [0] x [0] : ({made}, {t}) -> {turned}
      %3 = stablehlo.dot_general %1, %h, contracting_dims = [0] x [0] : ({made}, {t}) -> {turned}
      return %1, %2, %3 : {made}, {turned}, {turned}"""
    text = main_of(body, f"%a: {t}, %w: {W}, %v: {v}, %r: {row}", f"{made}, {turned}, {turned}")
    assert not stored(text, "stablehlo.multiply", Compiler(is_xla_tpu=True, keeps_costly_operands=keeps))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_quotient_of_stored_exponentials_under_another_name(keeps: bool) -> None:
    """As torch's attention reshapes it for batched products: a training step of GPT-2 on v4 takes 11.7 GB, 8.4 without its quotients."""
    t, merged, v = "tensor<2x8x16xbf16>", "tensor<16x16xbf16>", "tensor<16x4xbf16>"
    made, turned = "tensor<16x4xbf16>", "tensor<4x16xbf16>"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({merged}, {W}) -> {merged}
      %h = stablehlo.reshape %p : ({merged}) -> {t}
      %e = stablehlo.exponential %h : {t}
      %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : ({t}, tensor<bf16>) -> tensor<2x8xbf16>
      %b = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<2x8xbf16>) -> {t}
      %y = stablehlo.divide %e, %b : {t}
      %r = stablehlo.reshape %y : ({t}) -> {merged}
      %1 = stablehlo.dot_general %r, %v, contracting_dims = [1] x [0] : ({merged}, {v}) -> {made}
      %2 = stablehlo.dot_general %1, %r, contracting_dims = [0] x [0] : ({made}, {merged}) -> {turned}
      return %1, %2, %e : {made}, {turned}, {t}"""
    text = main_of(body, f"%a: {merged}, %w: {W}, %v: {v}", f"{made}, {turned}, {t}")
    compiler = Compiler(is_xla_tpu=True, keeps_costly_operands=keeps)
    assert stored(text, "stablehlo.divide", compiler) is keeps


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("function", "is_dear"), [("tanh", True), ("negate", False)])
def test_gates_of_many_instructions(function: str, is_dear: bool, keeps: bool) -> None:
    """Of two products' results with an addition between: kept for v4 with GELU (2594 MB), not with a rectifier (2058), for v5p neither."""
    t = "tensor<8x16xbf16>"
    body = f"""
      %one = stablehlo.constant dense<1.0> : {t}
      %g = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {W}) -> {t}
      %h = stablehlo.dot_general %a, %v, contracting_dims = [1] x [0] : ({t}, {W}) -> {t}
      %f = stablehlo.{function} %g : {t}
      %p = stablehlo.add %f, %one : {t}
      %y = stablehlo.multiply %p, %h : {t}
      %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : ({t}, {W}) -> {t}
      %2 = stablehlo.dot_general %1, %y, contracting_dims = [0] x [0] : ({t}, {t}) -> {W}
      %3 = stablehlo.dot_general %g, %h, contracting_dims = [0] x [0] : ({t}, {t}) -> {W}
      return %1, %2, %3 : {t}, {W}, {W}"""
    text = main_of(body, f"%a: {t}, %w: {W}, %v: {W}", f"{t}, {W}, {W}")
    compiler = Compiler(is_xla_tpu=True, keeps_narrow_operands=True, keeps_costly_operands=keeps)
    assert stored(text, "stablehlo.multiply", compiler) is (keeps and is_dear)


def test_what_a_comparison_leaves_of_no_quotient() -> None:
    """Softplus picks what it makes of an exponential, too: not stored for v5p (six perceptrons 1071 MB, as with tanh)."""
    t = "tensor<8x16xbf16>"
    body = f"""
      %one = stablehlo.constant dense<1.0> : {t}
      %h = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {W}) -> {t}
      %n = stablehlo.add %h, %one : {t}
      %e = stablehlo.exponential %n : {t}
      %l = stablehlo.multiply %e, %h : {t}
      %c = stablehlo.compare NE, %h, %h : ({t}, {t}) -> tensor<8x16xi1>
      %y = stablehlo.select %c, %n, %l : tensor<8x16xi1>, {t}
      %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : ({t}, {W}) -> {t}
      %2 = stablehlo.dot_general %1, %y, contracting_dims = [0] x [0] : ({t}, {t}) -> {W}
      %3 = stablehlo.dot_general %h, %1, contracting_dims = [0] x [0] : ({t}, {t}) -> {W}
      return %1, %2, %3 : {t}, {W}, {W}"""
    text = main_of(body, f"%a: {t}, %w: {W}", f"{t}, {W}, {W}")
    assert not stored(text, "stablehlo.select", Compiler(is_xla_tpu=True, keeps_narrow_operands=True))
