"""Collectives and data-flow edges of the input are demands to the planner, or refused where they stand."""

import pytest

from autoshard.errors import AutoshardError
from tests.mlir.modules import main_of, read_text

DOT = """%s = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
  {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>"""
ARGUMENTS = "%a: tensor<8x16xf32>, %b: tensor<16x16xf32>"


def shown(operand: str, collective: str, out: str) -> str:
    """A module with a collective of a value with the sharding `operand`; it stands on line 5."""
    return main_of(
        f"""%s = stablehlo.abs %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{operand}]>]>}} : tensor<8x16xf32>
        %0 = sdy.{collective.replace("%", "%s")} out_sharding=<@mesh, {out}> : tensor<8x16xf32>
        return %0 : tensor<8x16xf32>"""
    )


@pytest.mark.parametrize(
    ("operand", "collective", "out"),
    [
        ('{"x"}, {"y"}', 'all_gather [{"x"}, {}] %', '[{}, {"y"}]'),
        ('{}, {"y"}', 'all_slice [{"x"}, {}] %', '[{"x"}, {"y"}]'),
        ('{"x"}, {}', 'all_to_all [{"x"}: 0->1] %', '[{}, {"x"}]'),
        ('{"y", "x"}, {}', "collective_permute %", '[{"x", "y"}, {}]'),
    ],
)
def test_a_collective_that_moves_data_is_a_demand_for_its_out_sharding(
    operand: str, collective: str, out: str
) -> None:
    _, listing, handles = read_text(shown(operand, collective, out))
    assert [(op.name, str(op.demand)) for op in listing.ops] == [
        ("stablehlo.abs", f"[{operand}]"),
        ("sdy.reshard", out),
    ]
    assert handles.walked.module.verify()


@pytest.mark.parametrize(
    ("collective", "out"),
    [('all_reduce {"y"} %s', '[{"x"}, {}]'), ('reduce_scatter [{}, {"y"}] %s', '[{"x"}, {"y"}]')],
)
def test_the_sum_after_a_contraction_is_the_one_that_its_sharding_implies(collective: str, out: str) -> None:
    body = f"{DOT}\n%0 = sdy.{collective} out_sharding=<@mesh, {out}> : tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>"
    _, listing, _ = read_text(main_of(body, ARGUMENTS))
    assert [(op.name, str(op.demand)) for op in listing.ops][1:] == [("sdy.reshard", out)]


@pytest.mark.parametrize(
    ("collective", "out", "reason"),
    [
        ('all_reduce {"y"} %', '[{"x"}, {}]', "sdy.all_reduce of a value that is no partial sum"),
        ('reduce_scatter [{}, {"y"}] %', '[{"x"}, {"y"}]', "sdy.reduce_scatter of a value that is no partial sum"),
    ],
)  # fmt: skip
def test_other_collectives_are_refused_where_they_stand(collective: str, out: str, reason: str) -> None:
    with pytest.raises(AutoshardError, match=f"<bytes>:5: {reason}"):
        read_text(shown('{"x"}, {}', collective, out))


def test_a_data_flow_edge_hands_its_sharding_to_its_op() -> None:
    text = main_of(
        """%0 = stablehlo.optimization_barrier %a : tensor<8x16xf32>
        %1 = sdy.data_flow_edge %0 sharding=<@mesh, [{"x"}, {?}]> : tensor<8x16xf32>
        return %1 : tensor<8x16xf32>"""
    )
    _, listing, _ = read_text(text)
    assert [str(flow.demand) for flow in listing.data_flows] == ['[{"x"}, {?}]']
    assert not listing.ops


def test_a_data_flow_edge_of_an_argument_hands_its_sharding_to_the_argument() -> None:
    edge = '%0 = sdy.data_flow_edge %a sharding=<@mesh, [{"x"}, {?}]> : tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>'
    _, listing, _ = read_text(main_of(edge))
    assert str(listing.arguments[0].demand) == '[{"x"}, {?}]'
    assert not listing.data_flows
