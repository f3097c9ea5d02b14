"""Hidden values that are stored where what goes back to them lies otherwise, and residual sums that are there in both orders."""

import numpy as np
import pytest

from autoshard.program import Program, build_program
from autoshard.program.beside import Beside
from autoshard.program.records import XLA_TPU, Compiler, Whole
from autoshard.program.turned import MANY
from tests.mlir.modules import listed, main_of

MIXED = "contracting_dims = [2] x [0]"
OVER_ROWS = "contracting_dims = [0, 1] x [0, 1]"


def mixer_text(
    blocks: int,
    *,
    turns: bool = True,
    is_narrow: bool = False,
    images: int = 64,
    rows: int = 196,
    width: int = 16,
    dtype: str = "f32",
    is_gelu: bool = False,
) -> str:
    """Blocks of a branch that is transposed and one with a hidden value, whose gradients read the sums and the hidden values again."""
    one = "stablehlo.constant dense<1.0>"
    x, mixed, wide = (
        f"tensor<{images}x{shape}x{dtype}>"
        for shape in (f"{rows}x{width}", f"{width}x{rows}", f"{rows}x{2 * width}")
    )
    m, u, w, v = (
        f"tensor<{shape}x{dtype}>"
        for shape in (
            f"{rows}x{rows}",
            f"{width}x{width}",
            f"{width}x{2 * width}",
            f"{2 * width}x{width}",
        )
    )
    lines = [f"%s0 = stablehlo.negate %x : {x}"]
    for n in range(blocks):
        turned = [
            f"%t{n} = stablehlo.transpose %s{n}, dims = [0, 2, 1] : ({x}) -> {mixed}",
            f"%q{n} = stablehlo.dot_general %t{n}, %m, {MIXED} : ({mixed}, {m}) -> {mixed}",
            f"%b{n} = stablehlo.transpose %q{n}, dims = [0, 2, 1] : ({mixed}) -> {x}",
        ]
        plain = [f"%b{n} = stablehlo.dot_general %s{n}, %u, {MIXED} : ({x}, {u}) -> {x}"]
        lines += [
            *(turned if turns else plain),
            f"%a{n} = stablehlo.add %s{n}, %b{n} : {x}",
            *([f"%n{n} = stablehlo.multiply %a{n}, %a{n} : {x}"] if is_narrow else []),
            f"%p{n} = stablehlo.dot_general %{'n' if is_narrow else 'a'}{n}, %w, {MIXED} : ({x}, {w}) -> {wide}",
            f"%e{n} = {f'chlo.erfc %p{n} : {wide} -> {wide}' if is_gelu else f'{one} : {wide}'}",
            f"%h{n} = {f'stablehlo.multiply %p{n}, %e{n}' if is_gelu else f'stablehlo.tanh %p{n}'} : {wide}",
            f"%o{n} = stablehlo.dot_general %h{n}, %v, {MIXED} : ({wide}, {v}) -> {x}",
            f"%s{n + 1} = stablehlo.add %a{n}, %o{n} : {x}",
        ]
    results: list[str] = []
    for n in range(blocks):
        lines += [
            f"%g{n} = stablehlo.dot_general %h{n}, %s{blocks}, {OVER_ROWS} : ({wide}, {x}) -> {v}",
            f"%d{n} = stablehlo.dot_general %a{n}, %v, contracting_dims = [2] x [1] : ({x}, {v}) -> {wide}",
            f"%f{n} = stablehlo.subtract %p{n}, %e{n} : {wide}",
            f"%y{n} = stablehlo.multiply %f{n}, %d{n} : {wide}",
            f"%z{n} = stablehlo.dot_general %s{blocks}, %y{n}, {OVER_ROWS} : ({x}, {wide}) -> {w}",
            f"%k{n} = stablehlo.dot_general %a{n}, %s{blocks}, {OVER_ROWS} : ({x}, {x}) -> {u}",
        ]
        results += [f"%g{n}", f"%z{n}", f"%k{n}"]
    types = ", ".join([v, w, u] * blocks)
    lines.append(f"return {', '.join(results)} : {types}")
    return main_of("\n".join(lines), f"%x: {x}, %m: {m}, %u: {u}, %w: {w}, %v: {v}", types)


def mixer(blocks: int, *, turns: bool = True, is_narrow: bool = False) -> Program:
    return build_program(listed(mixer_text(blocks, turns=turns, is_narrow=is_narrow)), compiler=XLA_TPU)


def besides(program: Program) -> tuple[list[Whole], list[Whole]]:
    """Hidden values that are stored besides, and sums."""
    wholes = [whole for each in program.wholes.values() for whole in each]
    return [one for one in wholes if one.beside is not None], [one for one in wholes if one.beside is None]


def test_hidden_values_are_there_from_their_products_to_their_gradients() -> None:
    program = mixer(2)
    hidden, sums = besides(program)
    made = [op.results[0] for op in program.listing.ops]
    ends = [
        time + 1
        for time, op in enumerate(program.listing.ops)
        if op.is_matmul
        and (type_ := program.listing.values[op.results[0]].type) is not None
        and type_.shape == (32, 16)
    ]
    begins = [made.index(op.operands[0]) for op in program.listing.ops if op.name == "stablehlo.tanh"]
    assert [(one.begin, one.end) for one in hidden] == list(zip(begins, ends, strict=True))
    assert {one.type.shape for one in hidden} == {(64, 196, 32)}
    assert {one.beside for one in hidden} == {Beside(0, 1, is_padded_least=False)}
    assert {one.type.shape for one in sums} == {(64, 196, 16)}


@pytest.mark.parametrize("blocks", [2, MANY])
def test_error_functions_are_not_packed_beside_stored_hidden_values(blocks: int) -> None:
    """Those of few images are stored in many blocks of rows that do not fill tiles."""
    compiler = Compiler(is_xla_tpu=True, repeats_packed_erfc=True)
    text = mixer_text(blocks, is_narrow=True, images=16, dtype="bf16", is_gelu=True)
    assert len(build_program(listed(text), compiler=compiler).packed) == (2 if blocks == 2 else 0)


def test_without_transposed_branches_nothing_is_there_besides() -> None:
    assert besides(mixer(2, turns=False)) == ([], [])


@pytest.mark.parametrize(("blocks", "is_narrow"), [(MANY, False), (MANY - 1, True), (MANY, True)])
def test_many_sums_that_are_read_as_they_are_lie_with_the_least_padding(blocks: int, is_narrow: bool) -> None:
    (beside,) = {one.beside for one in besides(mixer(blocks, is_narrow=is_narrow))[0]}
    assert beside == Beside(0, 1, is_padded_least=blocks == MANY and is_narrow)


@pytest.mark.parametrize(
    ("images", "patches", "stored", "stored_in_many"),
    [
        *[(16, 196, False, True), (64, 196, False, True), (96, 196, False, True), (15, 196, False, False)],
        *[(104, 196, True, False), (112, 196, True, False), (128, 196, True, False), (136, 196, False, True)],
        *[(64, 256, False, False), (128, 256, False, False), (64, 49, True, False), (256, 196, True, False)],
    ],
)
def test_where_what_goes_back_lies_otherwise(
    images: int, patches: int, stored: bool, stored_in_many: bool
) -> None:
    """As compiled for v5e 8x8, but for 15 images."""
    shapes = np.asarray([[images, patches, 4096]])
    for is_padded_least, expected in ((False, stored), (True, stored_in_many)):
        assert Beside(0, 1, is_padded_least).holds(shapes).tolist() == [expected]


def test_a_dimension_of_one_element_that_a_product_of_columns_adds_is_turned() -> None:
    """It is in no operand of the kernel: the other factor is made where it is read."""
    t, column, turned, out = (f"tensor<64x{shape}xf32>" for shape in ("3", "3x1", "1x3", "128"))
    apart = "batching_dims = [0] x [0], contracting_dims = [] x []"
    program = build_program(
        listed(
            main_of(
                f"""%t = stablehlo.tanh %a : {t}
                %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<64x1xf32>
                %0 = stablehlo.dot_general %t, %b, {apart} : ({t}, tensor<64x1xf32>) -> {column}
                %1 = stablehlo.transpose %0, dims = [0, 2, 1] : ({column}) -> {turned}
                %2 = stablehlo.dot_general %1, %w, contracting_dims = [1, 2] x [0, 1] : ({turned}, tensor<1x3x128xf32>) -> {out}
                return %2 : {out}""",
                f"%a: {t}, %s: tensor<f32>, %w: tensor<1x3x128xf32>",
                out,
            )
        ),
        compiler=XLA_TPU,
    )
    (kernel,) = (one for one in program.kernels if one.shape.name == "stablehlo.transpose")
    assert [program.listing.ops[op].name for op in kernel.ops[-2:]] == [
        "stablehlo.dot_general",
        "stablehlo.transpose",
    ]
    assert kernel.shape.results[0].shape == (64, 1, 3)
