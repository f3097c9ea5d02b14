"""When values take memory of their own. Times are positions of ops; an interval is half-open."""

import sys

import pytest

from autoshard.errors import AutoshardError
from autoshard.program import Compiler, FlowKind, Lifetime, Program, build_program
from tests.mlir.modules import listed, main_of
from tests.program.modules import LOOP, program_of

T, W = "tensor<8x16xf32>", "tensor<16x16xf32>"
STEP = f"""
  %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
  %g = stablehlo.dot_general %b, %a, contracting_dims = [0] x [0] : ({T}, {T}) -> {W}
  %u = stablehlo.subtract %w, %g : {W}
  return %u : {W}"""


def step(a: str = "", w: str = "", carry: list[tuple[int, int]] | None = None) -> Program:
    """`w - (a @ w)^T @ a`, ops at times 0, 1 and 2, with attributes on the arguments."""
    return program_of(main_of(STEP, f"%a: {T} {a}, %w: {W} {w}", W), carry)


def lives(program: Program) -> list[Lifetime]:
    """Of the arguments and of every kernel's first result, in program order."""
    values = [a.value for a in program.listing.arguments] + [k.results[0] for k in program.kernels]
    return [program.lifetimes[value] for value in values]


END = 4  # three ops and the return


def test_values_live_from_their_op_to_their_last_reader() -> None:
    """A matmul's operands exist beside its result."""
    _, _, product, gradient, result = lives(step())
    assert (product.begin, product.end) == (0, 2)
    assert gradient.begin == 1
    assert product.is_own_buffer and result.is_own_buffer
    assert not gradient.is_own_buffer  # the subtraction turns it into the result in the result's memory


def test_operand_dies_as_an_elementwise_result_is_born() -> None:
    """The subtraction writes into the gradient's buffer."""
    *_, gradient, _ = lives(step())
    assert gradient.end == 2


@pytest.mark.parametrize("ends_products_in_place", [False, True])
@pytest.mark.parametrize(
    ("reduced", "made", "read_by", "is_apart"),
    [
        ("%a", "bf16", "products", (False, False)),
        ("%0", "bf16", "products", (False, True)),
        ("%0", "f32", "products", (False, False)),
        ("%0", "bf16", "a sum too", (True, True)),
        ("%0", "f32", "a sum too", (False, False)),
    ],
)
def test_pairs_of_products_and_their_reductions_are_not_written_over(
    ends_products_in_place: bool, reduced: str, made: str, read_by: str, is_apart: tuple[bool, bool]
) -> None:
    """Of two products that come out with their row sums something is made that has 16-bit memory beside them where it is stored.

    What products alone read is made anew in each of them by a compiler whose products write over nothing.
    """
    t, w, sums = (f"tensor<{shape}x{made}>" for shape in ("8x16", "16x16", "8"))
    also = f"""
      %7 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<{made}>) -> {sums}"""
    results = ["%1", "%3", "%5", "%6", *(["%7"] if read_by == "a sum too" else [])]
    types = ", ".join([sums, sums, w, t, *([sums] if read_by == "a sum too" else [])])
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<{made}>
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      %1 = stablehlo.reduce({reduced} init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<{made}>) -> {sums}
      %2 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [1] : ({t}, {w}) -> {t}
      %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<{made}>) -> {sums}
      %4 = stablehlo.multiply %0, %2 : {t}
      %5 = stablehlo.dot_general %4, %a, contracting_dims = [0] x [0] : ({t}, {t}) -> {w}
      %6 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}{also if read_by == "a sum too" else ""}
      return {", ".join(results)} : {types}"""
    compiler = Compiler(is_xla_tpu=True, ends_products_in_place=ends_products_in_place)
    program = build_program(listed(main_of(body, f"%a: {t}, %w: {w}", types)), compiler=compiler)
    kernel = next(k for k in program.kernels if k.shape.name == "stablehlo.multiply")
    operands = [program.lifetimes[use.value].end for use in kernel.uses]
    assert operands == [kernel.time + is_apart[ends_products_in_place]] * 2


def test_what_is_made_of_pairs_may_have_many_names() -> None:
    """More than the interpreter has frames."""
    t, u, w, sums = "tensor<8x16xbf16>", "tensor<16x8xbf16>", "tensor<16x16xbf16>", "tensor<8xbf16>"
    names, types = 2 * sys.getrecursionlimit(), (t, u)
    renamed = "\n".join(
        f"%n{i + 1} = stablehlo.reshape %n{i} : ({types[i % 2]}) -> {types[1 - i % 2]}" for i in range(names)
    )
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<bf16>) -> {sums}
      %2 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [1] : ({t}, {w}) -> {t}
      %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<bf16>) -> {sums}
      %n0 = stablehlo.multiply %0, %2 : {t}
      {renamed}
      %4 = stablehlo.dot_general %n{names}, %a, contracting_dims = [0] x [0] : ({t}, {t}) -> {w}
      return %1, %3, %4 : {sums}, {sums}, {w}"""
    text = main_of(body, f"%a: {t}, %w: {w}", f"{sums}, {sums}, {w}")
    program = build_program(listed(text), compiler=Compiler(is_xla_tpu=True, ends_products_in_place=True))
    made = next(k for k in program.kernels if k.shape.name == "stablehlo.multiply")
    assert [program.lifetimes[use.value].end for use in made.uses] == [made.time + 1] * 2


def test_results_are_there_from_the_start() -> None:
    """A result that takes over no argument's buffer is allocated with the arguments; behind a reshape it is what was reshaped."""
    *_, result = lives(step())
    assert (result.begin, result.end) == (0, END)
    body = f"""
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %1 = stablehlo.reshape %0 : ({T}) -> tensor<2x4x16xf32>
      return %1 : tensor<2x4x16xf32>"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}", "tensor<2x4x16xf32>"))
    product, reshaped = (program.lifetimes[program.kernels[i].results[0]] for i in (0, 1))
    assert (product.begin, product.end, product.is_own_buffer) == (0, 3, True)
    assert not reshaped.is_own_buffer


def test_arguments_stay() -> None:
    """An argument that is not donated belongs to the caller for the whole program."""
    a, w, *_ = lives(step())
    assert (a.begin, a.end) == (w.begin, w.end) == (0, END)


def test_donated_argument_dies() -> None:
    """A donated argument that no result takes over exists up to its last reader."""
    a, *_ = lives(step(a="{jax.buffer_donor = true}"))
    assert (a.begin, a.end) == (0, 2)


@pytest.mark.parametrize(("w", "carry"), [("{tf.aliasing_output = 0 : i32}", None), ("", [(0, 1)])])
def test_carried_state_is_held_once(w: str, carry: list[tuple[int, int]] | None) -> None:
    """The successor of a donated argument, or of one that `carry` names, takes its buffer, which stays."""
    program = step(w=w, carry=carry)
    state, result = lives(program)[1], lives(program)[4]
    assert (state.begin, state.end, state.is_own_buffer) == (0, END, True)
    assert not result.is_own_buffer
    assert program.carried_pairs == ((0, 1),)


def test_carried_state_is_one_flow() -> None:
    """The argument is fed by the result, and there is no result flow beside it."""
    flows = step(w="{tf.aliasing_output = 0 : i32}").flows
    assert [(flow.kind, len(flow.sources)) for flow in flows] == [
        (FlowKind.ARGUMENT, 0),
        (FlowKind.ARGUMENT, 1),
    ]
    kinds = [flow.kind for flow in step(w="{tf.aliasing_output = 0 : i32}", carry=[]).flows]
    assert kinds == [FlowKind.ARGUMENT, FlowKind.ARGUMENT, FlowKind.RESULT]


def test_state_that_is_still_read_is_not_overwritten() -> None:
    """Where the old state has readers after the new one is made, both take memory."""
    body = f"""
      %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %u = stablehlo.dot_general %b, %a, contracting_dims = [0] x [0] : ({T}, {T}) -> {W}
      %c = stablehlo.dot_general %a, %w, contracting_dims = [1] x [1] : ({T}, {W}) -> {T}
      %d = stablehlo.dot_general %c, %u, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      return %u, %d : {W}, {T}"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W} {{tf.aliasing_output = 0 : i32}}", f"{W}, {T}"))
    successor = program.lifetimes[program.listing.results[0].value]
    assert successor.is_own_buffer


def test_reshape_has_no_buffer() -> None:
    """A reshape's result is its operand, which lives as long as the reshaped value is read."""
    body = f"""
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %1 = stablehlo.reshape %0 : ({T}) -> tensor<2x4x16xf32>
      %2 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1] : ({T}, {T}) -> tensor<8x8xf32>
      %3 = stablehlo.dot_general %1, %w, contracting_dims = [2] x [0] : (tensor<2x4x16xf32>, {W}) -> tensor<2x4x16xf32>
      return %2, %3 : tensor<8x8xf32>, tensor<2x4x16xf32>"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}", "tensor<8x8xf32>, tensor<2x4x16xf32>"))
    product, reshaped = (program.lifetimes[program.kernels[i].results[0]] for i in (0, 1))
    assert not reshaped.is_own_buffer
    assert product.end == 4


def test_cheap_work_is_repeated() -> None:
    """An elementwise function of one buffer that outlives it takes no memory: its readers repeat it."""
    body = f"""
      %0 = stablehlo.exponential %a : {T}
      %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : ({T}, {T}) -> tensor<8x8xf32>
      return %2 : tensor<8x8xf32>"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}", "tensor<8x8xf32>"))
    assert not program.lifetimes[program.kernels[0].results[0]].is_own_buffer


@pytest.mark.parametrize("is_reshaped", [False, True])
@pytest.mark.parametrize("is_table_stored", [False, True])
def test_what_a_gather_reads_is_stored(is_table_stored: bool, is_reshaped: bool) -> None:
    """A table that is made of arguments is not made anew row by row; what is made of a stored value is."""
    table, wide = "tensor<64x16xf32>", "tensor<128x8xf32>"
    first = f"stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : ({table}, {W}) -> {table}"
    source, columns = ("%2", 8) if is_reshaped else ("%1", 16)
    body = f"""
      %0 = {first if is_table_stored else f"stablehlo.abs %t : {table}"}
      %1 = stablehlo.negate %0 : {table}
      %2 = stablehlo.reshape %1 : ({table}) -> {wide}
      %3 = "stablehlo.gather"({source}, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false,
        slice_sizes = array<i64: 1, {columns}>}}> : ({wide if is_reshaped else table}, tensor<8x1xi32>) -> tensor<8x{columns}xf32>
      %4 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [1] : ({table}, {table}) -> tensor<64x64xf32>
      return %3, %4 : tensor<8x{columns}xf32>, tensor<64x64xf32>"""
    results = f"tensor<8x{columns}xf32>, tensor<64x64xf32>"
    program = program_of(main_of(body, f"%t: {table}, %w: {W}, %i: tensor<8x1xi32>", results))
    (made,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.negate")
    for lives in (program.lifetimes, program.ample_lifetimes):
        assert lives[made.results[0]].is_own_buffer is not is_table_stored


@pytest.mark.parametrize(
    ("op", "dtype", "is_kept"),
    [
        ("stablehlo.tanh %0", "f32", False),
        ("stablehlo.tanh %0", "bf16", False),
        ("chlo.erf %0", "f32", False),
        ("chlo.erf %0", "bf16", True),
    ],
)
def test_long_work_is_kept_while_there_is_memory(op: str, dtype: str, is_kept: bool) -> None:
    """A polynomial that is worked out in float32 and narrowed has a buffer where several kernels read it, and none where the compiler is
    short of memory; products repeat what costs less."""
    t, w, square = f"tensor<8x16x{dtype}>", f"tensor<16x16x{dtype}>", f"tensor<8x8x{dtype}>"
    arrow = f"{t} -> {t}" if op.startswith("chlo") else t
    body = f"""
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      %1 = {op} : {arrow}
      %2 = stablehlo.negate %0 : {t}
      %3 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      %4 = stablehlo.dot_general %2, %3, contracting_dims = [1] x [1] : ({t}, {t}) -> {square}
      %5 = stablehlo.dot_general %1, %2, contracting_dims = [1] x [1] : ({t}, {t}) -> {square}
      return %4, %5 : {square}, {square}"""
    program = program_of(main_of(body, f"%a: {t}, %w: {w}", f"{square}, {square}"))
    worked_out, negated = (program.kernels[i].results[0] for i in (1, 2))
    assert program.ample_lifetimes[worked_out].is_own_buffer is is_kept
    assert not program.lifetimes[worked_out].is_own_buffer
    assert not program.ample_lifetimes[negated].is_own_buffer


@pytest.mark.parametrize("kind", ["function", "softmax", "loss"])
def test_wide_work_that_is_narrowed(kind: str) -> None:
    """Of a function worked out in float32 products repeat all, and of a loss, which asks for the logarithms of the sums; what is made of
    the sums of a softmax's exponentials is stored. A loss by one-hot labels, 8192 logits of 8192 words a device: 187 MB (337 with them).
    """
    t, n, square = "tensor<8x16xf32>", "tensor<8x16xbf16>", "tensor<8x8xbf16>"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({n}, tensor<16x16xbf16>) -> {n}
      %1 = stablehlo.convert %0 : ({n}) -> {t}
      %2 = stablehlo.exponential %1 : {t}
      %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<f32>) -> tensor<8xf32>
      %4 = stablehlo.broadcast_in_dim {"%v" if kind == "function" else "%3"}, dims = [0] : (tensor<8xf32>) -> {t}
      %5 = stablehlo.divide %2, %4 : {t}
      %6 = stablehlo.convert %5 : ({t}) -> {n}
      %7 = stablehlo.dot_general %6, %w, contracting_dims = [1] x [0] : ({n}, tensor<16x16xbf16>) -> {n}
      %8 = stablehlo.dot_general %6, %7, contracting_dims = [1] x [1] : ({n}, {n}) -> {square}
      %9 = stablehlo.{"log" if kind == "loss" else "negate"} %3 : tensor<8xf32>
      return %8, %9 : {square}, tensor<8xf32>"""
    arguments = f"%a: {n}, %w: tensor<16x16xbf16>, %v: tensor<8xf32>"
    program = program_of(main_of(body, arguments, f"{square}, tensor<8xf32>"))
    (made,) = (k for k in program.kernels if k.time == 7)
    assert program.ample_lifetimes[made.results[0]].is_own_buffer is (kind == "softmax")


@pytest.mark.parametrize(("is_permuted", "begin"), [(False, 16), (True, 16), (False, 15)])
def test_slices_are_cut_where_they_are_read(is_permuted: bool, begin: int) -> None:
    """Fusions and products cut slices out of what these are all of, which lives as long as they are read; others want buffers."""
    wide, half, square = "tensor<8x32xf32>", T, "tensor<8x8xf32>"
    last = (
        f'"stablehlo.sort"(%1) <{{dimension = 1 : i64}}> ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): %c = stablehlo.compare LT, %x, %y '
        f": (tensor<f32>, tensor<f32>) -> tensor<i1> stablehlo.return %c : tensor<i1> }}) : ({half}) -> {half}"
        if is_permuted
        else f"stablehlo.negate %1 : {half}"
    )
    body = f"""
      %0 = stablehlo.dot_general %a, %v, contracting_dims = [1] x [0] : ({T}, tensor<16x32xf32>) -> {wide}
      %1 = stablehlo.slice %0 [0:8, 0:16] : ({wide}) -> {half}
      %r = stablehlo.slice %0 [0:8, {begin}:32] : ({wide}) -> tensor<8x{32 - begin}xf32>
      %2 = stablehlo.dot_general %r, %r, contracting_dims = [1] x [1] : (tensor<8x{32 - begin}xf32>, tensor<8x{32 - begin}xf32>) -> {square}
      %3 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : ({half}, {W}) -> {T}
      %4 = {last}
      return %2, %3, %4 : {square}, {T}, {half}"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}, %v: tensor<16x32xf32>", f"{square}, {T}, {half}"))
    cut = next(k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.slice")
    assert cut.is_alias is not (is_permuted or begin < 16)


@pytest.mark.parametrize("is_used_later", [False, True])
def test_costly_work_takes_the_place_of_what_it_is_made_of(is_used_later: bool) -> None:
    """An exponential that only reductions and elementwise kernels read is kept instead of what it is made of, but not beside it."""
    last = "%0" if is_used_later else "%a"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %1 = stablehlo.exponential %0 : {T}
      %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : ({T}, tensor<f32>) -> tensor<8xf32>
      %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<8xf32>) -> {T}
      %4 = stablehlo.divide %1, %3 : {T}
      %5 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %6 = stablehlo.dot_general {last}, %5, contracting_dims = [1] x [1] : ({T}, {T}) -> tensor<8x8xf32>
      return %6 : tensor<8x8xf32>"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}", "tensor<8x8xf32>"))
    (made,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.exponential")
    assert program.ample_lifetimes[made.results[0]].is_own_buffer is not is_used_later


@pytest.mark.parametrize(
    ("made", "is_stored"),
    [
        ("stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : (W, W) -> W", True),
        ("stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> W", False),
        ("stablehlo.iota dim = 0 : W", True),
    ],
)
def test_what_a_loop_carries_unchanged(made: str, is_stored: bool) -> None:
    """It is the buffer that the loop was given, kept to the loop's end; constants are not stored, what is made of an iota is."""
    body = f"""
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1.0> : tensor<f32>
      %e = {made.replace("W", W)}
      %r:3 = stablehlo.while(%x = %a, %f = %e, %i = %zero) : {T}, {W}, tensor<i32>
      cond {{
        %five = stablehlo.constant dense<5> : tensor<i32>
        %p = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }} do {{
        %y = stablehlo.dot_general %x, %f, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
        %next = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %next : tensor<i32>
        stablehlo.return %y, %f, %j : {T}, {W}, tensor<i32>
      }}
      return %r#0 : {T}"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}", T))
    (carried,) = (f for f in program.flows if f.kind is FlowKind.CARRIED and str(f.type) == W)
    given = carried.sources[0].value
    lives = program.lifetimes
    held = [v for v in (given, carried.value) if v in lives and lives[v].is_own_buffer]
    assert len(held) == is_stored
    assert all(lives[v].end >= lives[carried.value].end for v in held)


@pytest.mark.parametrize("is_carried", [False, True])
def test_a_slice_of_what_a_loop_steps_through_has_no_buffer(is_carried: bool) -> None:
    """Its readers cut it out, whether the loop reads the whole from outside or carries it unchanged."""
    stack = "tensor<5x16x16xf32>"
    read = "%c" if is_carried else "%s"
    body = f"""
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:3 = stablehlo.while(%x = %a, %c = %s, %i = %zero) : {T}, {stack}, tensor<i32>
      cond {{
        %five = stablehlo.constant dense<5> : tensor<i32>
        %p = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }} do {{
        %no = stablehlo.constant dense<0> : tensor<i32>
        %1 = stablehlo.dynamic_slice {read}, %i, %no, %no, sizes = [1, 16, 16]
          : ({stack}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x16xf32>
        %2 = stablehlo.reshape %1 : (tensor<1x16x16xf32>) -> {W}
        %y = stablehlo.dot_general %x, %2, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
        %next = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %next : tensor<i32>
        stablehlo.return %y, %c, %j : {T}, {stack}, tensor<i32>
      }}
      return %r#0 : {T}"""
    program = program_of(main_of(body, f"%a: {T}, %s: {stack}", T))
    (cut,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.dynamic_slice")
    for lives in (program.lifetimes, program.ample_lifetimes):
        assert not lives[cut.results[0]].is_own_buffer


def test_results_lend_their_memory() -> None:
    """Until a result is made, the largest values lie where it goes, one at a time; what is larger than it, or lives longer, does not.

    With memory to spare none does.
    """
    wide = "tensor<8x64xf32>"
    body = f"""
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : ({T}, tensor<16x64xf32>) -> {wide}
      %3 = stablehlo.dot_general %2, %v, contracting_dims = [1] x [1] : ({wide}, tensor<16x64xf32>) -> {T}
      %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      return %4 : {T}"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}, %v: tensor<16x64xf32>", T))
    first, second, larger, last, result = (kernel.results[0] for kernel in program.kernels)
    for lives in (program.lifetimes, program.lent_lifetimes):
        own = {v: lives[v].is_own_buffer for v in (first, second, larger, last, result)}
        assert own == {first: False, second: True, larger: True, last: True, result: True}
    assert all(program.ample_lifetimes[v].is_own_buffer for v in (first, second, larger, last, result))


def test_matmul_reads_a_transposed_operand_as_it_lies() -> None:
    """A transpose whose readers are matmuls alone is done by them."""
    body = f"""
      %0 = stablehlo.transpose %w, dims = [1, 0] : ({W}) -> {W}
      %1 = stablehlo.dot_general %a, %0, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      return %1 : {T}"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}", T))
    assert not program.lifetimes[program.kernels[0].results[0]].is_own_buffer


def test_minor_dimensions() -> None:
    """A matrix unit writes one dimension of each operand as the minor two, never a batch dimension, and reads a contracted one there."""
    q = "tensor<2x4x8x16xf32>"
    body = f"""
      %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : ({q}, {q}) -> tensor<2x4x8x8xf32>
      return %0 : tensor<2x4x8x8xf32>"""
    program = program_of(main_of(body, f"%q: {q}, %k: {q}", "tensor<2x4x8x8xf32>"))
    (scores,) = program.kernels[0].results
    assert program.minor_dims[scores] == ((2,), (3,), False)
    assert program.minor_dims[program.listing.arguments[0].value] == ((2,), (3,), False)


def test_loop() -> None:
    """A loop holds what it carries and what it reads from outside to its end, and writes the new value over the old."""
    program = program_of(LOOP)
    (carried,) = (flow for flow in program.flows if flow.kind is FlowKind.CARRIED)
    outside, product, successor, _ = (kernel.results[0] for kernel in program.kernels)
    times = {kernel.results[0]: kernel.time for kernel in program.kernels}
    loop = program.lifetimes[carried.value]
    assert loop.begin <= times[product] < times[successor] < loop.end
    assert program.lifetimes[outside].end >= loop.end - 1
    (result,) = (one.value for one in program.listing.results)
    assert program.lifetimes[product] == Lifetime(times[product], times[successor], False, result)
    assert not program.lifetimes[successor].is_own_buffer
    assert loop.is_own_buffer


def test_loop_flow() -> None:
    """What a loop carries is one flow with two sources: the first value once, the body's as often as it runs."""
    program = program_of(LOOP)
    (carried,) = (flow for flow in program.flows if flow.kind is FlowKind.CARRIED)
    assert [source.repeat for source in carried.sources] == [1, 5]
    assert [kernel.repeat for kernel in program.kernels] == [1, 5, 5, 1]
    assert not carried.must_divide


@pytest.mark.parametrize(
    ("carry", "reason"),
    [
        ([(1, 0)], "the module has 1 results and 2 arguments"),
        ([(0, 2)], "the module has 1 results and 2 arguments"),
        ([(0, 0)], "result .* is tensor<16x16xf32>, argument .* is tensor<8x16xf32>"),
        ([(0, 1), (0, 1)], "this argument is fed by two results"),
    ],
)
def test_bad_carry(carry: list[tuple[int, int]], reason: str) -> None:
    """Pairs that cannot be say why, with the pair."""
    with pytest.raises(AutoshardError, match=reason) as caught:
        step(carry=carry)
    assert caught.value.where == f"carry {list(carry[-1])}"


class TestManualComputations:
    """What one manual computation keeps for another, as the forward pass of a `shard_map` does for its backward pass."""

    SPLIT = '[<@mesh, [{"x"}, {}]>]'
    PART = "tensor<4x16xf32>"

    def program(self, between: str = "", kept: str = "%1#1") -> Program:
        """A product and its tanh leave; a second manual computation multiplies them and a product reads that."""
        part, split = self.PART, self.SPLIT
        both = split.replace("]>]", ']>, <@mesh, [{"x"}, {}]>]')
        return program_of(
            main_of(
                f"""
        %1:2 = sdy.manual_computation(%a, %w) in_shardings=[<@mesh, [{{"x"}}, {{}}]>, <@mesh, [{{}}, {{}}]>] out_shardings={both}
            manual_axes={{"x"}} (%p: {part}, %v: {W}) {{
          %h = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : ({part}, {W}) -> {part}
          %t = stablehlo.tanh %h : {part}
          sdy.return %h, %t : {part}, {part}
        }} : ({T}, {W}) -> ({T}, {T})
        %g = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : ({W}, {W}) -> {W}
        {between}
        %2 = sdy.manual_computation(%1#0, {kept}, %g) in_shardings={both[:-1]}, <@mesh, [{{}}, {{}}]>] out_shardings={split}
            manual_axes={{"x"}} (%h: {part}, %t: {part}, %v: {W}) {{
          %m = stablehlo.multiply %h, %t : {part}
          %r = stablehlo.dot_general %m, %v, contracting_dims = [1] x [0] : ({part}, {W}) -> {part}
          sdy.return %r : {part}
        }} : ({T}, {T}, {W}) -> {T}
        return %2 : {T}""",
                f"%a: {T}, %w: {W}",
            )
        )

    def own(self, program: Program) -> list[str]:
        """Ops that make a buffer."""
        return [
            program.listing.ops[kernel.time].name.partition(".")[2]
            for kernel in program.kernels
            if program.lifetimes[kernel.results[0]].is_own_buffer
        ]

    def test_the_second_repeats_elementwise_work_of_the_first(self) -> None:
        assert self.own(self.program()) == ["dot_general"] * 3

    def test_what_is_read_on_the_way_is_stored(self) -> None:
        between = f"%k = stablehlo.cosine %1#1 : {T}\n%n = stablehlo.multiply %k, %1#1 : {T}"
        assert "tanh" in self.own(self.program(between, "%n"))

    def test_what_is_exchanged_between_them_is_stored(self) -> None:
        """Parts of the same shape, of other devices: a permute has an operand."""
        part = "tensor<8x4xf32>"
        by_x, by_y = '<@mesh, [{"x"}, {"y"}]>', '<@mesh, [{"y"}, {"x"}]>'
        found: list[list[str]] = []
        for entering in (by_x, by_y):
            program = program_of(
                main_of(
                    f"""
        %1:2 = sdy.manual_computation(%a) in_shardings=[{by_x}] out_shardings=[{by_x}, {by_x}] manual_axes={{"x", "y"}} (%p: {part}) {{
          %h = stablehlo.cosine %p : {part}
          %s = stablehlo.add %h, %p : {part}
          %t = stablehlo.abs %s : {part}
          sdy.return %h, %t : {part}, {part}
        }} : (tensor<16x8xf32>) -> (tensor<16x8xf32>, tensor<16x8xf32>)
        %2 = sdy.manual_computation(%1#0, %1#1) in_shardings=[{by_x}, {entering}] out_shardings=[{by_x}] manual_axes={{"x", "y"}}
            (%h: {part}, %t: {part}) {{
          %m = stablehlo.dot_general %h, %t, contracting_dims = [0] x [0] : ({part}, {part}) -> tensor<4x4xf32>
          %r = stablehlo.dot_general %t, %m, contracting_dims = [1] x [0] : ({part}, tensor<4x4xf32>) -> {part}
          sdy.return %r : {part}
        }} : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
        return %2 : tensor<16x8xf32>""",
                    "%a: tensor<16x8xf32>",
                    "tensor<16x8xf32>",
                )
            )
            found.append(self.own(program))
        assert ["abs" in own for own in found] == [False, True]


SCORES, SUMS, V = "tensor<8x8xf32>", "tensor<8xf32>", "tensor<8x16xbf16>"


@pytest.mark.parametrize(
    ("inside", "behind", "is_kept"),
    [
        ("convert %1", "negate %6", False),
        ("multiply %2, %2", "negate %6", True),
        ("convert %1", "log %6", False),
    ],
)
def test_an_attentions_scores_that_are_just_widened(inside: str, behind: str, is_kept: bool) -> None:
    """Training steps of four layers (bfloat16 scores of 512 x 512) take 387 MB on v5e, and 639 where a float32 mask lies between.

    Of a loss no exponentials are kept that are wider than the logits: 4096 x 8192 a device take 215 MB on v5p (308 with them).
    """
    widened = (
        f"stablehlo.{inside} : {SCORES}"
        if inside[0] == "m"
        else f"stablehlo.{inside} : (tensor<8x8xbf16>) -> {SCORES}"
    )
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %1 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : ({V}, {V}) -> tensor<8x8xbf16>
      %2 = stablehlo.convert %1 : (tensor<8x8xbf16>) -> {SCORES}
      %3 = {widened}
      %4 = stablehlo.reduce(%3 init: %low) applies stablehlo.maximum across dimensions = [1] : ({SCORES}, tensor<f32>) -> {SUMS}
      %m = stablehlo.broadcast_in_dim %4, dims = [0] : ({SUMS}) -> {SCORES}
      %s = stablehlo.subtract %3, %m : {SCORES}
      %5 = stablehlo.exponential %s : {SCORES}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [1] : ({SCORES}, tensor<f32>) -> {SUMS}
      %7 = stablehlo.broadcast_in_dim %6, dims = [0] : ({SUMS}) -> {SCORES}
      %8 = stablehlo.divide %5, %7 : {SCORES}
      %9 = stablehlo.convert %8 : ({SCORES}) -> tensor<8x8xbf16>
      %10 = stablehlo.dot_general %9, %a, contracting_dims = [1] x [0] : (tensor<8x8xbf16>, {V}) -> {V}
      %11 = stablehlo.dot_general %9, %b, contracting_dims = [0] x [0] : (tensor<8x8xbf16>, {V}) -> {V}
      %12 = stablehlo.{behind} : {SUMS}
      %13 = stablehlo.multiply %5, %g : {SCORES}
      %14 = stablehlo.reduce(%13 init: %zero) applies stablehlo.add across dimensions = [1] : ({SCORES}, tensor<f32>) -> {SUMS}
      return %10, %11, %12, %14 : {V}, {V}, {SUMS}, {SUMS}"""
    program = program_of(main_of(body, f"%a: {V}, %b: {V}, %g: {SCORES}", f"{V}, {V}, {SUMS}, {SUMS}"))
    found = [
        program.listing.ops[kernel.time].name.removeprefix("stablehlo.")
        for kernel in program.kernels
        for value in kernel.results
        if program.ample_lifetimes[value].is_own_buffer
        and (type_ := program.listing.values[value].type) is not None
        and type_.shape == (8, 8)
    ]
    assert found == ["dot_general", "exponential"][: 1 + is_kept]


def test_an_attentions_scores_that_are_narrowed() -> None:
    """Exponentials of bfloat16 take the place of float32 scores, and are none of scores that are just widened."""
    narrow = "tensor<8x8xbf16>"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %low = stablehlo.constant dense<0xFF80> : tensor<bf16>
      %1 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : ({V}, {V}) -> {SCORES}
      %2 = stablehlo.convert %1 : ({SCORES}) -> {narrow}
      %4 = stablehlo.reduce(%2 init: %low) applies stablehlo.maximum across dimensions = [1] : ({narrow}, tensor<bf16>) -> tensor<8xbf16>
      %m = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<8xbf16>) -> {narrow}
      %s = stablehlo.subtract %2, %m : {narrow}
      %5 = stablehlo.exponential %s : {narrow}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [1] : ({narrow}, tensor<bf16>) -> tensor<8xbf16>
      %7 = stablehlo.broadcast_in_dim %6, dims = [0] : (tensor<8xbf16>) -> {narrow}
      %8 = stablehlo.divide %5, %7 : {narrow}
      %10 = stablehlo.dot_general %8, %a, contracting_dims = [1] x [0] : ({narrow}, {V}) -> {V}
      %11 = stablehlo.dot_general %8, %b, contracting_dims = [0] x [0] : ({narrow}, {V}) -> {V}
      %13 = stablehlo.multiply %5, %g : {narrow}
      %14 = stablehlo.reduce(%13 init: %zero) applies stablehlo.add across dimensions = [1] : ({narrow}, tensor<bf16>) -> tensor<8xbf16>
      return %10, %11, %14 : {V}, {V}, tensor<8xbf16>"""
    program = program_of(main_of(body, f"%a: {V}, %b: {V}, %g: {narrow}", f"{V}, {V}, tensor<8xbf16>"))
    (made,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.exponential")
    assert program.ample_lifetimes[made.results[0]].is_own_buffer


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("gate", "is_apart"), [("%g", True), ("%h", False)])
def test_what_several_products_read_of_two_buffers(keeps: bool, gate: str, is_apart: bool) -> None:
    """libtpu 0.0.51 stores a gated activation of bfloat16 for v5p, not for v5e (four layers of 16384 x 4096: 2.27 and 1.82 GB)."""
    t, w = "tensor<8x16xbf16>", "tensor<16x16xbf16>"
    body = f"""
      %g = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      %h = stablehlo.dot_general %a, %v, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      %n = stablehlo.negate {gate} : {t}
      %0 = stablehlo.multiply %n, %h : {t}
      %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}
      %2 = stablehlo.dot_general %1, %0, contracting_dims = [0] x [0] : ({t}, {t}) -> {w}
      %3 = stablehlo.dot_general %g, %h, contracting_dims = [0] x [0] : ({t}, {t}) -> {w}
      return %1, %2, %3 : {t}, {w}, {w}"""
    text = main_of(body, f"%a: {t}, %w: {w}, %v: {w}", f"{t}, {w}, {w}")
    program = build_program(listed(text), compiler=Compiler(is_xla_tpu=True, keeps_narrow_operands=keeps))
    (gated,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.multiply")
    assert program.ample_lifetimes[gated.results[0]].is_own_buffer is (keeps and is_apart)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("masked", "dropped"), [(True, True), (True, False), (False, True)])
def test_what_is_left_of_a_softmax_by_dropout(keeps: bool, masked: bool, dropped: bool) -> None:
    """libtpu 0.0.51 stores it for v5p where scores are masked, not for v5e (four layers: 723 and 348 MB; without dropout 531)."""
    t, sums = "tensor<8x8xbf16>", "tensor<8xbf16>"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %zeros = stablehlo.constant dense<0.0> : {t}
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : ({V}, {V}) -> {t}
      %1 = stablehlo.{"add %0, %mask" if masked else "negate %0"} : {t}
      %2 = stablehlo.exponential %1 : {t}
      %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : ({t}, tensor<bf16>) -> {sums}
      %4 = stablehlo.broadcast_in_dim %3, dims = [0] : ({sums}) -> {t}
      %5 = stablehlo.divide %2, %4 : {t}
      %6 = stablehlo.compare GT, %bits, %zeros : ({t}, {t}) -> tensor<8x8xi1>
      %7 = stablehlo.select {"%6, %5, %zeros" if dropped else "%i, %5, %zeros"} : tensor<8x8xi1>, {t}
      %8 = stablehlo.dot_general %7, %a, contracting_dims = [1] x [0] : ({t}, {V}) -> {V}
      %9 = stablehlo.dot_general %7, %b, contracting_dims = [0] x [0] : ({t}, {V}) -> {V}
      return %8, %9 : {V}, {V}"""
    given = f"%a: {V}, %b: {V}, %mask: {t}, %bits: {t}, %i: tensor<8x8xi1>"
    compiler = Compiler(is_xla_tpu=True, keeps_narrow_operands=keeps)
    program = build_program(listed(main_of(body, given, f"{V}, {V}")), compiler=compiler)
    (left,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.select")
    assert program.ample_lifetimes[left.results[0]].is_own_buffer is (keeps and masked and dropped)


def test_what_passes_a_barrier_keeps_its_buffer() -> None:
    """Weights that a recomputed layer reads again behind the barrier are there once, until their last use behind it."""
    text = f"""
  %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
  %c:2 = stablehlo.optimization_barrier %b, %w : {T}, {W}
  %d = stablehlo.dot_general %c#0, %c#1, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
  %e = stablehlo.tanh %d : {T}
  %f = stablehlo.dot_general %e, %c#1, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
  return %f : {T}"""
    program = program_of(main_of(text, f"%a: {T} {{tf.aliasing_output = 0 : i32}}, %w: {W}", T))
    behind = [flow.value for flow in program.flows if flow.kind is FlowKind.CARRIED]
    products = [kernel.results[0] for kernel in program.kernels if kernel.shape.is_matmul]
    times = {value: kernel.time for kernel in program.kernels for value in kernel.results}
    assert [program.lifetimes[value].is_own_buffer for value in behind] == [False, False]
    assert program.lifetimes[products[0]].end == times[products[1]] + 1
    assert all(flow.is_handed_on for flow in program.flows if flow.value in behind)


@pytest.mark.parametrize(
    "made",
    [
        f"%i = stablehlo.iota dim = 0 : {W}",
        f"%i = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<16xf32>) -> {W}",
        f"%h = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<16xf32>) -> {W}\n"
        f"%i = stablehlo.transpose %h, dims = [1, 0] : ({W}) -> {W}",
    ],
)
def test_what_has_no_buffer_is_stored_behind_a_barrier(made: str) -> None:
    """XLA does not make it in its readers there."""
    text = f"""
  {made}
  %c = stablehlo.optimization_barrier %i : {W}
  %d = stablehlo.dot_general %a, %c, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
  return %d : {T}"""
    program = program_of(main_of(text, f"%a: {T}, %s: tensor<16xf32>", T))
    (behind,) = [flow.value for flow in program.flows if flow.kind is FlowKind.CARRIED]
    assert program.lifetimes[behind].is_own_buffer


@pytest.mark.parametrize("behind", ["", "%b = stablehlo.optimization_barrier %w : "])
def test_an_argument_returned_as_the_state_keeps_its_buffer(behind: str) -> None:
    """It is not the state's, which is donated."""
    text = f"""
  {behind + W if behind else ""}
  return {"%b" if behind else "%w"} : {W}"""
    program = program_of(main_of(text, f"%a: {W} {{tf.aliasing_output = 0 : i32}}, %w: {W}", W), [(0, 0)])
    held = [program.lifetimes[argument.value].is_own_buffer for argument in program.listing.arguments]
    assert held == [True, True]
