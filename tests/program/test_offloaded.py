"""What SparseCores gather is there together, and as wide as its table."""

from dataclasses import replace

import pytest

from autoshard.program import Compiler, KernelTimes, Offloading, Program, build_program, gather_kernels
from tests.mlir.modules import counted_loop, listed, main_of

TABLE, ROWS, IDS, W = "tensor<64x16xf32>", "tensor<32x16xf32>", "tensor<32x1xi32>", "tensor<16x16xf32>"
GATHER = (
    "<{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
    "slice_sizes = array<i64: 1, 16>}> : "
)
SPARSE = Compiler(is_xla_tpu=True, gathers_apart=True)


def gather(name: str, table: str, ids: str = "%i0") -> str:
    return f'\n  %{name} = "stablehlo.gather"(%{table}, {ids}) {GATHER}({TABLE}, {IDS}) -> {ROWS}'


def elementwise(op: str, result: str, operands: str) -> str:
    return f"\n  %{result} = stablehlo.{op} {operands} : {ROWS}"


def product(result: str, operand: str, type_: str = ROWS) -> str:
    return f"\n  %{result} = stablehlo.dot_general %{operand}, %w, contracting_dims = [1] x [0] : ({type_}, {W}) -> {type_}"


def program_of(body: str, returned: str, compiler: Compiler = SPARSE) -> Program:
    text = f"{body}\n  return %{returned} : {ROWS}"
    return build_program(
        listed(main_of(text, f"%t: {TABLE}, %u: {TABLE}, %i0: {IDS}, %i1: {IDS}, %w: {W}", ROWS)),
        compiler=compiler,
    )


def gathered(program: Program) -> list[int]:
    return [kernel.results[0] for kernel in program.kernels if kernel.shape.name == "stablehlo.gather"]


FIRST = "".join(gather(f"a{k}", "t", f"%i{k}") for k in range(2)) + elementwise("add", "a", "%a0, %a1")
SECOND = "".join(gather(f"b{k}", "u", f"%i{k}") for k in range(2)) + elementwise("multiply", "b", "%b0, %b1")
READ = product("q", "a"), product("s", "b") + elementwise("add", "r", "%q, %s") + product("p", "r")


GATHER_NS = 10.0


def offloading(program: Program, product_ns: float, ratio: float = 1.0) -> Offloading:
    """Where every gather takes 10 ns, other work next to nothing."""
    times = [
        KernelTimes(product_ns * ratio, 1.0)
        if kernel.shape.is_matmul
        else KernelTimes(0.0, GATHER_NS if kernel.shape.name == "stablehlo.gather" else 0.06)
        for kernel in program.kernels
    ]
    return Offloading(program, times, ratio)


def test_work_is_done_behind_the_beginning_of_a_gather_that_does_not_wait_for_it() -> None:
    """What sums the first two, of four gathers; nothing changes where SparseCores gather one, or none."""
    program = program_of(FIRST + SECOND + "".join(READ), "p")
    values, before = gathered(program), program.ample_lifetimes
    found = offloading(program, 1.0).lives(before, set(values))
    last = max(kernel.time for kernel in gather_kernels(program))
    assert [before[value].end <= last for value in values] == [True, True, False, False]
    assert [found[value].end for value in values[:2]] == [last + 1, last + 1]
    assert [found[value] for value in values[2:]] == [before[value] for value in values[2:]]
    (added,) = (kernel.results[0] for kernel in program.kernels if kernel.time == 2)
    assert (before[added].begin, found[added].begin, found[added].end) == (2, last + 1, before[added].end)
    assert offloading(program, 1.0).lives(before, {values[0]}) == before
    assert not list(gather_kernels(replace(program, gathers_apart=False)))


@pytest.mark.parametrize(("product_ns", "is_behind"), [(9.0, [True, True]), (11.0, [False, True])])
@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_as_much_as_takes_as_long_as_the_gather(
    product_ns: float, is_behind: list[bool], ratio: float
) -> None:
    """The last gather takes a product of the first sum, and that sum where the product is not enough; else the gather before does."""
    program = program_of(FIRST + READ[0] + SECOND + READ[1], "p")
    values = gathered(program)
    found = offloading(program, product_ns, ratio).lives(program.ample_lifetimes, set(values))
    last, before_last = sorted((kernel.time for kernel in gather_kernels(program)), reverse=True)[:2]
    product = next(kernel.results[0] for kernel in program.kernels if kernel.shape.is_matmul)
    assert [found[values[0]].end > last, found[product].begin > last] == is_behind
    assert found[values[0]].end == (last if is_behind[0] else before_last) + 1


def test_a_gather_takes_nothing_from_before_a_loop() -> None:
    loop = counted_loop(3, [("%c", "%a1", ROWS)], f"%n = stablehlo.tanh %c : {ROWS}", ["%n"], name="looped")
    behind = READ[1] + elementwise("add", "x", "%p, %looped#1")
    program = program_of(f"{FIRST}{READ[0]}\n  {loop}{SECOND}{behind}", "x")
    values = gathered(program)
    assert len(values) == 4
    found = offloading(program, 1.0).lives(program.ample_lifetimes, set(values))
    assert found == program.ample_lifetimes


@pytest.mark.parametrize(
    ("compiler", "table", "dtype"),
    [
        (SPARSE, "t", "f32"),  # an argument
        (SPARSE, "n", "f32"),  # another name of one
        (SPARSE, "e", "bf16"),  # stored for products alone
        (Compiler(is_xla_tpu=True), "t", "bf16"),
        (Compiler(is_xla_tpu=True), "e", "bf16"),
    ],
)
def test_what_products_read_is_as_wide_as_its_table(compiler: Compiler, table: str, dtype: str) -> None:
    body = f"\n  %d = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : ({TABLE}, {W}) -> {TABLE}"
    body += f"\n  %e = stablehlo.tanh %d : {TABLE}"
    body += (
        f"\n  %n = stablehlo.transpose %t, dims = [0, 1] : ({TABLE}) -> {TABLE}"
        + gather("a", table)
        + product("p", "a")
    )
    program = program_of(body, "p", compiler)
    assert program.stored.of_value(gathered(program)[0]).dtype == dtype


def test_tables_and_rows_are_in_main_memory() -> None:
    program = program_of(FIRST + READ[0] + product("p", "q"), "p")
    values = gathered(program)
    kept = offloading(program, 1.0).in_main_memory({values[0]})
    table = next(kernel.uses[0].value for kernel in program.kernels if values[0] in kernel.results)
    assert kept == {values[0], table}


def test_branches_keep_their_work() -> None:
    """Nothing is put off from before a choice into a branch, nor out of one, behind the gather that follows."""
    branch = (
        "{{\n    %{0}n = stablehlo.negate %a : " + ROWS + "\n    stablehlo.return %{0}n : " + ROWS + "\n  }}"
    )
    inside = branch.format("y").replace("stablehlo.negate %a :", "stablehlo.tanh %a :")
    chosen = f'\n  %c = "stablehlo.case"(%k) ({branch.format("x")}, {inside}) : (tensor<i32>) -> {ROWS}'
    body = (
        FIRST
        + READ[0]
        + chosen
        + gather("b0", "u")
        + elementwise("add", "r", "%b0, %q")
        + elementwise("add", "o", "%r, %c")
    )
    text = f"{body}\n  return %o : {ROWS}"
    given = f"%t: {TABLE}, %u: {TABLE}, %i0: {IDS}, %i1: {IDS}, %w: {W}, %k: tensor<i32>"
    program = build_program(listed(main_of(text, given, ROWS)), compiler=SPARSE)
    values = gathered(program)
    assert len(values) == 3
    assert offloading(program, 1.0).lives(program.ample_lifetimes, set(values)) == program.ample_lifetimes


def test_what_is_handed_to_a_loop_is_not_put_off() -> None:
    """Though nothing else reads it before the gather that is behind the beginning of the loop."""
    loop = counted_loop(3, [("%c", "%a", ROWS)], f"%n = stablehlo.tanh %c : {ROWS}", ["%n"], name="looped")
    program = program_of(f"{FIRST}\n  {loop}{SECOND}" + elementwise("add", "x", "%b, %looped#1"), "x")
    values = gathered(program)
    found = offloading(program, 1.0).lives(program.ample_lifetimes, set(values[2:]))
    assert found == program.ample_lifetimes


def test_results_are_there_from_the_start_whatever_is_put_off() -> None:
    text = f"{FIRST}{SECOND}\n  return %a, %b : {ROWS}, {ROWS}"
    given = f"%t: {TABLE}, %u: {TABLE}, %i0: {IDS}, %i1: {IDS}, %w: {W}"
    program = build_program(listed(main_of(text, given, f"{ROWS}, {ROWS}")), compiler=SPARSE)
    found = offloading(program, 1.0).lives(program.ample_lifetimes, set(gathered(program)))
    assert {found[value].begin for value in program.returned} == {0}


def test_generated_tables_are_none() -> None:
    body = f"\n  %c = stablehlo.constant dense<1.0> : {TABLE}" + gather("a0", "c") + product("p", "a0")
    assert not list(gather_kernels(program_of(body, "p")))
