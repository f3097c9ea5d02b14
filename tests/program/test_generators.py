"""Random numbers are made whole where XLA runs the plan, and split where Shardy's rule alone counts."""

import pytest

import autoshard
from autoshard.mlir.forms import Form
from autoshard.program import with_whole_generators
from autoshard.sharding import FactorKind
from tests.mlir.modules import listed, main_of

T = "tensor<16384x16384xui32>"
SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>}'
MIXED = main_of(
    f"""
  %s, %b = stablehlo.rng_bit_generator %state, algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, {T})
  %0 = stablehlo.and %a, %b : {T}
  return %0 : {T}""",
    f"%state: tensor<2xui64>, %a: {T} {SPLIT}",
    f"{T} {SPLIT}",
)
ALL, PART = 4 * 16384**2, 4 * 16384**2 // 16


def test_no_dimension_of_what_is_generated_is_split() -> None:
    listing = with_whole_generators(listed(MIXED))
    rule = listing.ops[0].rule
    assert rule is not None
    assert {factor.kind for factor in rule.factors} == {FactorKind.NEED_REPLICATION}
    assert listing.ops[1:] == listed(MIXED).ops[1:]
    (warning,) = listing.warnings
    assert "1 rng_bit_generator" in warning and "threefry" in warning


def test_programs_without_generators_stay_as_they_are() -> None:
    listing = listed(main_of("return %a : tensor<8x16xf32>"))
    assert with_whole_generators(listing) is listing


@pytest.mark.parametrize(("form", "least", "most"), [("xla", ALL, 2 * ALL), ("shardy", 2 * PART, ALL)])
def test_memory_holds_what_each_device_makes(form: Form, least: int, most: int) -> None:
    plan = autoshard.plan(MIXED.encode(), hardware="tpu-v5e", form=form)
    assert plan.status == "optimal"
    assert least <= plan.price.peak_bytes < most
