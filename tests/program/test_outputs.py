"""What products read widened, and what was widened for them."""

from itertools import pairwise

import pytest

from autoshard.program import build_program, moved_for_products, product_reads, repeated_values
from tests.mlir.modules import listed, main_of

NARROW, WIDE = "tensor<16x16xbf16>", "tensor<16x16xf32>"
MOVED = f'%k = sdy.sharding_constraint %h <@mesh, [{{}}, {{"x"}}]> : {WIDE}'
ANNOTATED = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>}'


def moved(
    rest: str, results: str = f"%1 : {WIDE}", *, read: str = "%k", noted: str = "", wide: str = WIDE
) -> list[str]:
    body = f"""%n = stablehlo.tanh %w : {NARROW}
      %h = stablehlo.convert %n {noted} : ({NARROW}) -> {wide}
      {rest}
      %1 = stablehlo.dot_general %a, {read}, contracting_dims = [1] x [0] : ({WIDE}, {wide}) -> {WIDE}
      return {results}"""
    listing = listed(main_of(body, f"%a: {WIDE}, %w: {NARROW}", results.split(" : ")[1]))
    made_by = {value: op.name for op in listing.ops for value in op.results}
    return [made_by[narrow] for narrow in moved_for_products(listing).values()]


def test_of_what_is_only_moved() -> None:
    """However often, as long as products alone read it then; what a product reads as it is made, or another op or a result, stays apart."""
    assert moved(MOVED) == ["stablehlo.tanh"]
    assert moved(MOVED, read="%h") == []
    assert moved(MOVED, f"%1, %h : {WIDE}, {WIDE}") == []
    assert moved(MOVED, f"%1, %k : {WIDE}, {WIDE}") == []
    assert moved(f"{MOVED}\n%2 = stablehlo.tanh %h : {WIDE}", f"%1, %2 : {WIDE}, {WIDE}") == []
    assert moved(f"{MOVED}\n%2 = stablehlo.tanh %k : {WIDE}", f"%1, %2 : {WIDE}, {WIDE}") == []


def test_a_long_chain_of_moves() -> None:
    """Each is looked at once, whatever the depth."""
    dims = ('{"x"}, {}', '{}, {"x"}')
    names = ["%h", *(f"%m{number}" for number in range(1200))]
    moves = "\n".join(
        f"{after} = sdy.sharding_constraint {before} <@mesh, [{dims[number % 2]}]> : {WIDE}"
        for number, (before, after) in enumerate(pairwise(names))
    )
    assert moved(moves, read=names[-1]) == ["stablehlo.tanh"]


@pytest.mark.parametrize(("noted", "expected"), [("", 1), (ANNOTATED, 0)])
def test_what_the_user_says_of_a_widened_value_counts(noted: str, expected: int) -> None:
    assert len(moved(MOVED, noted=noted)) == expected


ROWS = "tensor<8x32xbf16>"


@pytest.mark.parametrize(
    ("made", "is_of_little"),
    [
        ("%m = stablehlo.broadcast_in_dim %p, dims = [0] : (tensor<8xbf16>) -> {}", True),
        ("%m = stablehlo.negate %a : {}", False),
    ],
)
def test_what_is_made_of_few_elements(made: str, *, is_of_little: bool) -> None:
    """As one-hot rows are of their indices."""
    body = f"""%q = stablehlo.tanh %i : tensor<8xbf16>
      %p = stablehlo.negate %q : tensor<8xbf16>
      {made.format(ROWS)}
      %h = stablehlo.add %m, %m : {ROWS}
      %1 = stablehlo.dot_general %h, %h, contracting_dims = [0] x [0] : ({ROWS}, {ROWS}) -> tensor<32x32xbf16>
      return %1 : tensor<32x32xbf16>"""
    program = build_program(listed(main_of(body, f"%a: {ROWS}, %i: tensor<8xbf16>", "tensor<32x32xbf16>")))
    (added,) = [op.results[0] for op in program.listing.ops if op.name == "stablehlo.add"]
    assert repeated_values(program)[added].is_of_little == is_of_little


@pytest.mark.parametrize(("second", "are_one"), [("stablehlo.tanh", True), ("stablehlo.sine", False)])
def test_what_is_computed_again_is_one_operand(second: str, *, are_one: bool) -> None:
    body = f"""%n = stablehlo.tanh %w : {WIDE}
      %m = {second} %w : {WIDE}
      %1 = stablehlo.dot_general %a, %n, contracting_dims = [1] x [0] : ({WIDE}, {WIDE}) -> {WIDE}
      %2 = stablehlo.dot_general %a, %m, contracting_dims = [0] x [1] : ({WIDE}, {WIDE}) -> {WIDE}
      return %1, %2 : {WIDE}, {WIDE}"""
    program = build_program(listed(main_of(body, f"%a: {WIDE}, %w: {WIDE}", f"{WIDE}, {WIDE}")))
    others = [others for (value, _), others in product_reads(program).items() if value > 1]
    assert [bool(one) for one in others] == [are_one, are_one]
