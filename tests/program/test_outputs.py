"""What products read widened, and what was widened for them."""

from itertools import pairwise

import pytest

from autoshard.program import moved_for_products
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
