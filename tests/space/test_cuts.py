"""Where axes are cut: what needs a part of one gets it, what is beside it can follow, and nothing else changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.sharding import Mesh, parse_rule
from autoshard.space import Cut, ProgramCuts, find_cuts, strategies
from tests.mlir.modules import main_of
from tests.program.modules import program_of
from tests.programs.attention import attention
from tests.space.custom import kernel_rules, shape_of


def cut(slot: int, size: int, mesh: Mesh, axis: str = "x") -> Cut:
    whole = mesh.axis_size(axis)
    return Cut(slot, mesh.axis(axis, 1, size), mesh.axis(axis, size, whole // size))


def cuts_of(heads: int, axes: list[tuple[str, int]]) -> ProgramCuts:
    mesh = ", ".join(f'"{name}"={size}' for name, size in axes)
    return find_cuts(program_of(attention(mesh, 64, 64, heads, 64)), Mesh.of(axes))


def reshaped(before: str, after: str, mesh: Mesh) -> ProgramCuts:
    text = main_of(
        f"%0 = stablehlo.reshape %a : ({before}) -> {after}\n return %0 : {after}", f"%a: {before}", after
    )
    return find_cuts(program_of(text), mesh)


def heads_and_parts(found: ProgramCuts) -> set[tuple[str, str]]:
    return {(str(c.head), str(c.tail)) for cuts in (*found.kernels, *found.flows) for c in cuts}


@pytest.mark.parametrize("heads", [8, 16, 64])
def test_nothing_is_cut_where_all_divides(heads: int) -> None:
    found = cuts_of(heads, [("x", 8), ("y", 4)])
    assert not any(found.kernels)
    assert not any(found.flows)


def test_nothing_is_cut_where_nothing_is_common() -> None:
    """25 heads, as of GPT-2 XL, and axes of powers of two."""
    assert heads_and_parts(cuts_of(25, [("x", 16), ("y", 16)])) == set()


@pytest.mark.parametrize(("heads", "size"), [(12, 4), (20, 4), (2, 2), (4, 4), (6, 2)])
def test_heads_that_do_not_divide(heads: int, size: int) -> None:
    """The cut is the greatest part that divides the heads, and all ten kernels from the projections to the output have it."""
    found = cuts_of(heads, [("x", 8)])
    assert heads_and_parts(found) == {(f'"x":(1){size}', f'"x":({size}){8 // size}')}
    assert all(len(cuts) == 1 for cuts in found.kernels)


def test_the_first_factor_of_a_compound_dimension_is_filled_first() -> None:
    """32 heads in 8 groups of 4 under an axis of 16: 8 parts to the groups, which leaves 2 for the heads of each."""
    mesh = Mesh.of([("x", 16)])
    found = reshaped("tensor<64x4096xf32>", "tensor<64x8x4x128xf32>", mesh)
    assert heads_and_parts(found) == {('"x":(1)8', '"x":(8)2')}
    shape = program_of(
        main_of("""
      %0 = stablehlo.reshape %a : (tensor<64x4096xf32>) -> tensor<64x8x4x128xf32>
      return %0 : tensor<64x8x4x128xf32>""", "%a: tensor<64x4096xf32>", "tensor<64x8x4x128xf32>")
    ).kernels[0].shape  # fmt: skip
    made = {
        (str(s.operands[0]), str(s.settled[0])) for s in strategies(shape, mesh, found.kernels[0])
    }  # the whole axis on 4096 is what both parts come from
    assert ('[{}, {"x"}]', '[{}, {"x":(1)8}, {"x":(8)2}, {}]') in made


def test_one_of_the_axes_of_one_size_is_cut() -> None:
    """On 16x16 the last, unless demands make that one the batch's."""
    assert {head for head, _ in heads_and_parts(cuts_of(12, [("x", 16), ("y", 16)]))} == {'"y":(1)4'}
    ends = '{sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {}]>}'
    text = attention('"x"=16, "y"=16', 64, 64, 12, 64, ends=ends)
    assert {head for head, _ in heads_and_parts(find_cuts(program_of(text), Mesh.of([("x", 16), ("y", 16)])))} == {
        '"x":(1)4'
    }  # fmt: skip


def test_arguments_and_results_have_whole_axes() -> None:
    """Shardy strips sub-axes there."""
    mesh = Mesh.of([("x", 8)])
    found = cuts_of(12, [("x", 8)])
    assert any(found.kernels)
    assert not any(found.flows)
    whole = reshaped("tensor<64x768xf32>", "tensor<64x12x64xf32>", mesh)
    assert not any(whole.flows)


MATMUL = parse_rule("([i, k], [k, j])->([i, j]) {i=64, j=12, k=64} reduction={k}")


def test_strategies_come_first_as_they_are_without() -> None:
    mesh = Mesh.of([("x", 8), ("y", 4)])
    shape = shape_of(MATMUL, mesh)
    plain, more = strategies(shape, mesh), strategies(shape, mesh, [cut(1, 4, mesh)])
    assert more[: len(plain)] == plain
    assert len(more) > len(plain)


def test_uneven_and_cut_are_both_choices() -> None:
    """12 columns on 8 devices: 2 on each with padding, or 3 on each of 4 and the rest of the axis to the rows."""
    mesh = Mesh.of([("x", 8)])
    found = strategies(shape_of(MATMUL, mesh), mesh, [cut(1, 4, mesh)])
    local = {str(s.produced[0]): s.produced[0].local_shape((64, 12)) for s in found}
    assert local['[{}, {"x"}]'] == (64, 2)
    assert local['[{}, {"x":(1)4}]'] == (64, 3)
    assert local['[{"x":(4)2}, {"x":(1)4}]'] == (32, 3)


def test_a_scattered_sum_grows_an_axis_in_place() -> None:
    """A sum over the rest of an axis, left split by the whole: the strategy says it scatters, and the two parts are one axis."""
    mesh = Mesh.of([("x", 8)])
    found = strategies(shape_of(parse_rule("([i, k], [k, j])->([i, j]) {i=64, j=24, k=64} reduction={k}"), mesh), mesh,
                       [cut(1, 4, mesh)])  # fmt: skip
    grown = [
        s for s in found if str(s.produced[0]) == '[{}, {"x":(1)4}]' and str(s.settled[0]) == '[{}, {"x"}]'
    ]
    assert [list(map(str, s.reduced)) for s in grown] == [['"x":(4)2']]
    assert grown[0].is_scattered


@settings(deadline=None, max_examples=50)
@given(
    kernel_rules(sizes=(2, 3, 4, 6, 8, 12)),
    st.sampled_from([Mesh.of([("x", 8)]), Mesh.of([("y", 2), ("x", 4)]), Mesh.of([("x", 6), ("y", 4), ("z", 2)])]),
    st.data(),
)  # fmt: skip
def test_what_is_cut_is_bounded(rule, mesh: Mesh, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    """A cut adds at most (factors + 1) placements of what is left for each way to place the other axes."""
    shape = shape_of(rule, mesh)
    size = data.draw(
        st.sampled_from([d for d in (2, 3, 4) if mesh.axis_size("x") % d == 0 and d < mesh.axis_size("x")])
    )
    plain = len(strategies(shape, mesh))
    asked = cut(data.draw(st.integers(0, len(rule.factors) - 1)), size, mesh)
    added = strategies(shape, mesh, [asked])[plain:]
    others = sum(axis.size > 1 for axis in mesh.axes) - 1
    rank = max(len(rule.results[0]), 1)
    assert len(added) <= (len(rule.factors) + 1) ** (others + 1) * (1 + rank)
    assert all(any(axis.is_sub_axis for axes in s.factor_axes for axis in axes) for s in added)
