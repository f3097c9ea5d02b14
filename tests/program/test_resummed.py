"""Residual sums that are added up a second time, transposed."""

import pytest

from autoshard.program import Program, build_program
from autoshard.program.records import XLA_TPU
from tests.mlir.modules import listed, main_of

ROWS, COLUMNS = "tensor<4x16x8xf32>", "tensor<4x8x16xf32>"
PLAIN = f"({ROWS}, tensor<8x8xf32>) -> {ROWS}"
SQUARE = f"({COLUMNS}, tensor<16x16xf32>) -> {COLUMNS}"
ADDED = {
    "product": f"%s0 = stablehlo.dot_general %x, %v, contracting_dims = [2] x [0] : {PLAIN}",
    "argument": f"%s0 = stablehlo.add %x, %x : {ROWS}",
}
Life = tuple[int, int]


def residual_text(kinds: str, *, start: str = "product", is_kept: bool = False, work: str = "") -> str:
    """A branch for each of the kinds: `t` turns the sum before it is multiplied and turns that back, `n` multiplies it as it is. Behind
    the last the sum is turned for a product; with `is_kept` a product reads the first of the sums after that; `work` makes `%r` of each
    sum `%a`."""
    lines = [ADDED[start], f"%zeros = stablehlo.constant dense<0.0> : {ROWS}"]
    for n, kind in enumerate(kinds):
        turned = [
            f"%t{n} = stablehlo.transpose %s{n}, dims = [0, 2, 1] : ({ROWS}) -> {COLUMNS}",
            f"%p{n} = stablehlo.dot_general %t{n}, %w, contracting_dims = [2] x [0] : {SQUARE}",
            f"%b{n} = stablehlo.transpose %p{n}, dims = [0, 2, 1] : ({COLUMNS}) -> {ROWS}",
        ]
        plain = [f"%b{n} = stablehlo.dot_general %s{n}, %v, contracting_dims = [2] x [0] : {PLAIN}"]
        added = f"{'a' if work else 's'}{n + 1}"
        lines += [*(turned if kind == "t" else plain), f"%{added} = stablehlo.add %s{n}, %b{n} : {ROWS}"]
        if work:
            lines.append(f"{work.format(n=n + 1).replace(f'%r{n + 1}', f'%s{n + 1}')} : {ROWS}")
    lines += [
        f"%t = stablehlo.transpose %s{len(kinds)}, dims = [0, 2, 1] : ({ROWS}) -> {COLUMNS}",
        f"%p = stablehlo.dot_general %t, %w, contracting_dims = [2] x [0] : {SQUARE}",
        f"%q = stablehlo.dot_general {'%s1' if is_kept else '%x'}, %v, contracting_dims = [2] x [0] : {PLAIN}",
        f"return %p, %q : {COLUMNS}, {ROWS}",
    ]
    arguments = f"%x: {ROWS}, %v: tensor<8x8xf32>, %w: tensor<16x16xf32>"
    return main_of("\n".join(lines), arguments, f"{COLUMNS}, {ROWS}")


def residual(kinds: str, *, start: str = "product", is_kept: bool = False) -> Program:
    return build_program(listed(residual_text(kinds, start=start, is_kept=is_kept)), compiler=XLA_TPU)


def branches(program: Program, count: int) -> list[Life]:
    """The lives of so many branches, as products make them."""
    made = [kernel.results[0] for kernel in program.kernels if kernel.shape.is_matmul]
    lives = program.ample_lifetimes
    return [(lives[value].begin, lives[value].end) for value in made[-2 - count : -2]]


def last_turn(program: Program) -> int:
    """When the sum is turned for the last time, half-open."""
    ops = program.listing.ops
    return max(time for time, op in enumerate(ops) if op.name == "stablehlo.transpose") + 1


def test_all_branches_wait_for_the_one_that_reads_the_sum_turned() -> None:
    program = residual("tnnn")
    assert [end for _, end in branches(program, 4)] == [last_turn(program)] * 4
    assert not program.wholes


def test_every_second_reader_stores_what_it_adds_up() -> None:
    """The first that reads a branch, and the third, which is the last; the one between takes both where they are."""
    program = residual("ttt")
    ops = program.listing.ops
    (sum_, *_) = (op.results[0] for op in ops if op.name == "stablehlo.add")
    first = next(t for t, op in enumerate(ops) if op.name == "stablehlo.transpose" and sum_ in op.operands)
    assert [end for _, end in branches(program, 3)] == [first + 1, last_turn(program), last_turn(program)]
    ((whole,),) = program.wholes.values()
    assert (whole.begin, whole.end) == (first, last_turn(program))


@pytest.mark.parametrize(
    ("kinds", "start", "is_kept"),
    [("nnn", "product", False), ("tnn", "argument", False), ("tnn", "product", True)],
)
def test_not_where_nothing_is_undone_or_the_sums_are_there(kinds: str, start: str, is_kept: bool) -> None:
    """No branch is turned, the sum begins with what would have to be turned, or a backward pass keeps it."""
    program = residual(kinds, start=start, is_kept=is_kept)
    assert min(end for _, end in branches(program, len(kinds))) < last_turn(program)
    assert not program.wholes


def first_life(program: Program) -> Life:
    """Of the product that the sums begin with."""
    value = next(kernel.results[0] for kernel in program.kernels if kernel.shape.is_matmul)
    return program.ample_lifetimes[value].begin, program.ample_lifetimes[value].end


def test_what_the_sums_begin_with_waits_too() -> None:
    program = residual("tnn")
    assert first_life(program) == (0, last_turn(program))


def test_the_sum_before_the_last_ends_with_its_last_other_read() -> None:
    """It is read by the last branch, and not for the sum behind that, which nothing reads as it is."""
    program = residual("tnn")
    ops = program.listing.ops
    sums = [op.results[0] for op in ops if op.name == "stablehlo.add"]
    read = max(time for time, op in enumerate(ops) if op.is_matmul and sums[1] in op.operands)
    assert program.ample_lifetimes[sums[1]].end == read + 1


def test_sums_inside_work_that_is_stored() -> None:
    """What is stored transposed goes by the result of the kernel that has the sum in it."""
    text = residual_text("tttt", work="%r{n} = stablehlo.maximum %a{n}, %zeros")
    program = build_program(listed(text), compiler=XLA_TPU)
    made = {value for kernel in program.kernels for value in kernel.results}
    assert program.wholes
    assert made.issuperset(program.wholes)


def test_branches_that_a_transpose_costs() -> None:
    """One that is worked out of two values lies as they do."""
    text = residual_text("tn").replace(
        "%b1 = stablehlo.dot_general %s1, %v", "%c1 = stablehlo.dot_general %s1, %v"
    )
    text = text.replace("%s2 = ", f"%b1 = stablehlo.multiply %c1, %x : {ROWS}\n%s2 = ")
    program = build_program(listed(text), compiler=XLA_TPU)
    assert first_life(program)[1] < last_turn(program)
