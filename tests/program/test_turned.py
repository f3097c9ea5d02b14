"""Hidden values that are stored where what goes back to them lies otherwise, and residual sums that are there in both orders."""

import numpy as np
import pytest

from autoshard.program import Program, build_program
from autoshard.program.records import XLA_TPU, Beside, Whole
from autoshard.program.turned import MANY
from tests.mlir.modules import listed, main_of

ROWS, COLUMNS, WIDE = "tensor<64x196x16xf32>", "tensor<64x16x196xf32>", "tensor<64x196x32xf32>"
MIXED = "contracting_dims = [2] x [0]"
OVER_ROWS = "contracting_dims = [0, 1] x [0, 1]"


def mixer(blocks: int, *, turns: bool = True, is_narrow: bool = False) -> Program:
    """Blocks of a branch that is transposed and one with a hidden value, whose gradients read the sums and the hidden values again."""
    lines = ["%s0 = stablehlo.negate %x : " + ROWS]
    for n in range(blocks):
        turned = [
            f"%t{n} = stablehlo.transpose %s{n}, dims = [0, 2, 1] : ({ROWS}) -> {COLUMNS}",
            f"%q{n} = stablehlo.dot_general %t{n}, %m, {MIXED} : ({COLUMNS}, tensor<196x196xf32>) -> {COLUMNS}",
            f"%b{n} = stablehlo.transpose %q{n}, dims = [0, 2, 1] : ({COLUMNS}) -> {ROWS}",
        ]
        plain = [f"%b{n} = stablehlo.dot_general %s{n}, %u, {MIXED} : ({ROWS}, tensor<16x16xf32>) -> {ROWS}"]
        read = [f"%n{n} = stablehlo.multiply %a{n}, %a{n} : {ROWS}"] if is_narrow else []
        given = f"%{'n' if is_narrow else 'a'}{n}"
        lines += [
            *(turned if turns else plain),
            f"%a{n} = stablehlo.add %s{n}, %b{n} : {ROWS}",
            *read,
            f"%p{n} = stablehlo.dot_general {given}, %w, {MIXED} : ({ROWS}, tensor<16x32xf32>) -> {WIDE}",
            f"%h{n} = stablehlo.tanh %p{n} : {WIDE}",
            f"%o{n} = stablehlo.dot_general %h{n}, %v, {MIXED} : ({WIDE}, tensor<32x16xf32>) -> {ROWS}",
            f"%s{n + 1} = stablehlo.add %a{n}, %o{n} : {ROWS}",
        ]
    results: list[str] = []
    for n in range(blocks):
        lines += [
            f"%g{n} = stablehlo.dot_general %h{n}, %s{blocks}, {OVER_ROWS} : ({WIDE}, {ROWS}) -> tensor<32x16xf32>",
            f"%y{n} = stablehlo.negate %p{n} : {WIDE}",
            f"%z{n} = stablehlo.dot_general %s{blocks}, %y{n}, {OVER_ROWS} : ({ROWS}, {WIDE}) -> tensor<16x32xf32>",
            f"%k{n} = stablehlo.dot_general %a{n}, %s{blocks}, {OVER_ROWS} : ({ROWS}, {ROWS}) -> tensor<16x16xf32>",
        ]
        results += [f"%g{n}", f"%z{n}", f"%k{n}"]
    types = ", ".join(["tensor<32x16xf32>", "tensor<16x32xf32>", "tensor<16x16xf32>"] * blocks)
    lines.append(f"return {', '.join(results)} : {types}")
    arguments = f"%x: {ROWS}, %m: tensor<196x196xf32>, %u: tensor<16x16xf32>, %w: tensor<16x32xf32>, %v: tensor<32x16xf32>"
    return build_program(listed(main_of("\n".join(lines), arguments, types)), compiler=XLA_TPU)


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
        if op.is_matmul and op.results and program.listing.values[op.results[0]].type.shape == (32, 16)
    ]
    begins = [made.index(op.operands[0]) for op in program.listing.ops if op.name == "stablehlo.tanh"]
    assert [(one.begin, one.end) for one in hidden] == list(zip(begins, ends, strict=True))
    assert {one.type.shape for one in hidden} == {(64, 196, 32)}
    assert {one.beside for one in hidden} == {Beside(0, 1, is_padded_least=False)}
    assert {one.type.shape for one in sums} == {(64, 196, 16)}


def test_without_transposed_branches_nothing_is_there_besides() -> None:
    assert besides(mixer(2, turns=False)) == ([], [])


@pytest.mark.parametrize(("blocks", "is_narrow"), [(MANY, False), (MANY - 1, True), (MANY, True)])
def test_many_sums_that_are_read_as_they_are_lie_with_the_least_padding(blocks: int, is_narrow: bool) -> None:
    """Here without a backward pass of their own, so twice as many."""
    (beside,) = {one.beside for one in besides(mixer(2 * blocks, is_narrow=is_narrow))[0]}
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
