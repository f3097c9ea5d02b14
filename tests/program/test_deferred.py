"""What products read whose sums loops scatter, where these run last."""

import pytest

from autoshard.program import Compiler, Deferring, Program, build_program
from tests.mlir.modules import counted_loop, listed, main_of

X, W = "tensor<8x16xbf16>", "tensor<16x16xbf16>"
MAIN = f"""
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  %first = stablehlo.dot_general %x, %a, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
  %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  %c = stablehlo.tanh %b : {X}
  %second = stablehlo.dot_general %c, %a, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
  %d = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  %third = stablehlo.dot_general %d, %d, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
  %e = stablehlo.dot_general %d, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}"""
RETURNED = f"""
  return %first, %second, %third, %e : {W}, {W}, {W}, {X}"""


def step(*, scatters_last: bool, behind: str = "") -> Program:
    compiler = Compiler(is_xla_tpu=True, scatters_last=scatters_last)
    text = MAIN + behind + RETURNED
    return build_program(listed(main_of(text, f"%x: {X}, %w: {W}", f"{W}, {W}, {W}, {X}")), compiler=compiler)


def products(program: Program) -> list[int]:
    """Their results, in program order: a, first, b, second, d, third, e."""
    return [kernel.results[0] for kernel in program.kernels if kernel.shape.is_matmul]


def test_operands_of_all_but_the_first_stay_to_the_last_product() -> None:
    """What is worked out for a loop is handed to it until then, instead of what it is worked out from."""
    program = step(scatters_last=True)
    a, first, b, second, d, third, e = products(program)
    lives, before = (
        Deferring(program).lives(program.ample_lifetimes, dict.fromkeys((first, second, third), True)),
        program.ample_lifetimes,
    )
    end = next(kernel.time for kernel in program.kernels if e in kernel.results) + 1
    assert (lives.of_values[a].end, lives.of_values[d].end) == (end, end)
    assert before[a].end < end
    assert lives.of_values[b] == before[b]
    times = {value: kernel.time for kernel in program.kernels for value in kernel.results}
    assert lives.end_of_handed(times[second]) == end
    assert lives.end_of_handed(times[first]) == times[first] + 1


@pytest.mark.parametrize(("scatters_last", "scattered"), [(False, (1, 3, 5)), (True, (1,)), (True, ())])
def test_others_run_in_their_place(scatters_last: bool, scattered: tuple[int, ...]) -> None:
    """Of other compilers, and where there is one at most."""
    program = step(scatters_last=scatters_last)
    values = [products(program)[number] for number in scattered]
    lives = Deferring(program).lives(program.ample_lifetimes, dict.fromkeys(values, True))
    assert lives.of_values == program.ample_lifetimes
    assert not lives.handed


def test_what_is_copied_for_its_update_runs_in_its_place() -> None:
    program = step(scatters_last=True)
    _, first, _, second, d, third, _ = products(program)
    lives = Deferring(program).lives(program.ample_lifetimes, {first: True, second: False, third: True})
    times = {value: kernel.time for kernel in program.kernels for value in kernel.results}
    assert lives.handed.keys() == {times[third]}
    assert lives.of_values[d].end == lives.end_of_handed(times[third])


SQUARE = f"""
  %q = stablehlo.add %second, %w : {W}
  %square = stablehlo.dot_general %q, %q, contracting_dims = [1] x [0] : ({W}, {W}) -> {W}
  %last = stablehlo.dot_general %w, %square, contracting_dims = [1] x [0] : ({W}, {W}) -> {W}"""
BARRED = f"""
  %b0 = stablehlo.optimization_barrier %second : {W}
  %square = stablehlo.dot_general %b0, %w, contracting_dims = [1] x [0] : ({W}, {W}) -> {W}
  %last = stablehlo.dot_general %w, %square, contracting_dims = [1] x [0] : ({W}, {W}) -> {W}"""
SQUARED = f"""
  %square = stablehlo.dot_general %s, %s, contracting_dims = [1] x [0] : ({W}, {W}) -> {W}"""


LOOPED = "\n" + counted_loop(4, (("%s", "%second", W),), SQUARED, ("%square",))


@pytest.mark.parametrize("behind", [SQUARE, BARRED, LOOPED])
def test_no_loop_is_put_off_behind_a_product_that_waits_for_it(behind: str) -> None:
    """Of an optimizer that multiplies gradients; the third is not waited for and runs last."""
    program = step(scatters_last=True, behind=behind)
    a, first, _, second, d, third, _, square, *last = products(program)
    lives = Deferring(program).lives(program.ample_lifetimes, dict.fromkeys((first, second, third), True))
    times = {value: kernel.time for kernel in program.kernels for value in kernel.results}
    assert lives.end_of_handed(times[second]) == times[square]
    assert lives.of_values[a].end == times[square]
    assert lives.end_of_handed(times[third]) == times[[square, *last][-1]] + 1
    assert lives.of_values[d].end == times[[square, *last][-1]] + 1


@pytest.mark.parametrize(
    ("between", "is_turned"),
    [
        ("%r = stablehlo.tanh %g : tensor<4x6xf32>", False),
        ("%r = stablehlo.transpose %g, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>", True),
        (
            "%c = stablehlo.convert %g : (tensor<4x6xf32>) -> tensor<4x6xbf16>\n"
            "%r = stablehlo.transpose %c, dims = [1, 0] : (tensor<4x6xbf16>) -> tensor<6x4xbf16>",
            True,
        ),
        (
            "%t = stablehlo.transpose %g, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>\n"
            "%r = stablehlo.transpose %t, dims = [1, 0] : (tensor<6x4xf32>) -> tensor<4x6xf32>",
            False,
        ),
        ("%r = stablehlo.add %g, %g : tensor<4x6xf32>", False),
        (
            "%k = stablehlo.constant dense<1> : tensor<4x6xi32>\n"
            "%l = stablehlo.convert %k : (tensor<4x6xi32>) -> tensor<4x6xf32>\n"
            "%r = stablehlo.add %g, %l : tensor<4x6xf32>",
            False,
        ),
        (
            "%n = stablehlo.reshape %g : (tensor<4x6xf32>) -> tensor<24xf32>\n"
            "%r = stablehlo.transpose %g, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>",
            True,
        ),
    ],
)
def test_gradients_that_are_turned_for_their_update(between: str, is_turned: bool) -> None:
    """As JAX's are; torch's are turned twice, as its weights are turned for their product."""
    product = "%g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>"
    result = between.rpartition("tensor")[1] + between.rpartition("tensor")[2]
    text = f"{product}\n{between}\nreturn %r : {result}"
    program = build_program(listed(main_of(text, "%x: tensor<8x4xf32>, %y: tensor<8x6xf32>", result)))
    (gradient,) = products(program)
    assert Deferring(program).is_turned(gradient) == is_turned


def scanned_step(*, scatters_last: bool, trips: int = 1) -> Program:
    """A product in front of a loop of two, the first in a loop of its own if that has several trips, and one behind it."""
    product = f"stablehlo.dot_general %s, %s, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}"
    inner = counted_loop(
        trips, (("%k", "%t", W),), f"%g = {product}\n%j = stablehlo.add %k, %g : {W}", ("%j",), "q", "n"
    )
    body = f"""
      {inner if trips > 1 else f"%g = {product}"}
      %h = stablehlo.add %t, {"%q#1" if trips > 1 else "%g"} : {W}
      %u = stablehlo.dot_general %s, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
      %v = stablehlo.tanh %u : {X}"""
    text = f"""
      %first = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
      %y = stablehlo.cosine %x : {X}
      {counted_loop(4, (("%s", "%y", X), ("%t", "%w", W)), body, ("%v", "%h"))}
      %z = stablehlo.dot_general %r#1, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
      return %first, %z, %r#2 : {W}, {X}, {W}"""
    compiler = Compiler(is_xla_tpu=True, scatters_last=scatters_last)
    return build_program(listed(main_of(text, f"%x: {X}, %w: {W}", f"{W}, {X}, {W}")), compiler=compiler)


@pytest.mark.parametrize(
    ("scatters_last", "as_made", "are_late"),
    [(True, True, (True, True)), (True, False, (False, False)), (False, False, (True, True))],
)
def test_in_a_loop_they_run_behind_its_other_products(
    scatters_last: bool, as_made: bool, are_late: tuple[bool, bool]
) -> None:
    """And what is in front of such a loop behind it."""
    program = scanned_step(scatters_last=scatters_last)
    first, inside, within, behind = products(program)
    scattered = dict.fromkeys((first, inside), as_made)
    handed = Deferring(program).lives(program.ample_lifetimes, scattered).handed
    times = {value: kernel.time for kernel in program.kernels for value in kernel.results}
    ends = {times[first]: times[behind] + 1, times[inside]: times[within] + 1}
    assert handed == {at: end for (at, end), late in zip(ends.items(), are_late, strict=True) if late}


def test_in_the_innermost_loop() -> None:
    """And where no loop that scatters follows, the first runs in its place."""
    program = scanned_step(scatters_last=True, trips=3)
    first, inside, _, behind = products(program)
    deferring = Deferring(program)
    times = {value: kernel.time for kernel in program.kernels for value in kernel.results}
    handed = deferring.lives(program.ample_lifetimes, {first: True, inside: True}).handed
    assert handed == {times[first]: times[behind] + 1, times[inside]: times[inside] + 1}
    assert deferring.lives(program.ample_lifetimes, {first: True}).handed == {}
    assert deferring.lives(program.ample_lifetimes, {inside: True, behind: True}).handed == {
        times[inside]: times[inside] + 1
    }


def tied_step(later: str, also: str = "") -> Program:
    """A product of one, then another, then what is added to the first."""
    text = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<bf16>) -> {W}
      %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : ({X}, {W}) -> {X}
      %g = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
      %t = stablehlo.transpose %g, dims = [1, 0] : ({W}) -> {W}
      %u = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
      {later}
      %sum = stablehlo.add %t, %s : {W}
      {also}
      return %sum : {W}"""
    main = main_of(text, f"%x: {X}, %w: {W}, %i: tensor<8x1xi32>", W)
    return build_program(listed(main), compiler=Compiler(is_xla_tpu=True))


LOOKED_UP = f"""%s = "stablehlo.scatter"(%zeros, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
          ^bb0(%l: tensor<bf16>, %m: tensor<bf16>):
            %n = stablehlo.add %l, %m : tensor<bf16>
            stablehlo.return %n : tensor<bf16>
        }}) : ({W}, tensor<8x1xi32>, {X}) -> {W}"""


@pytest.mark.parametrize(
    ("later", "also", "waits"),
    [
        (LOOKED_UP, "", True),
        (
            "%s = stablehlo.dot_general %u, %u, contracting_dims = [0] x [0] : " + f"({X}, {X}) -> {W}",
            "",
            False,
        ),
        (LOOKED_UP, f"%o = stablehlo.abs %t : {W}\n%p = stablehlo.add %o, %sum : {W}", False),
    ],
)
def test_a_product_waits_for_the_scatter_that_is_added_to_it(later: str, also: str, *, waits: bool) -> None:
    """As the gradient of a table that words are looked up in and predicted with; what it reads stays."""
    program = tied_step(later, also)
    _, product, *_ = products(program)
    deferring, times = Deferring(program), {v: k.time for k in program.kernels for v in k.results}
    lives = deferring.lives(program.ample_lifetimes, {})
    (added,) = [
        op.results[0]
        for op in program.listing.ops
        if op.name == "stablehlo.add" and op.operands[1] != op.operands[0]
    ][:1]
    (read,) = {use.value for kernel in program.kernels if product in kernel.results for use in kernel.uses}
    assert lives.waiting == ({times[product]: times[added]} if waits else {})
    assert (lives.of_values[read].end == times[added] + 1) == waits
    assert deferring.lives(program.ample_lifetimes, {}, {product}).waiting == {}
    assert deferring.lives(program.ample_lifetimes, {product: True}).waiting == {}
