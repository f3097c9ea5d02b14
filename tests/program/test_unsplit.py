"""Random numbers, eigendecompositions and updates of several rows are whole where XLA runs the plan, and split by Shardy's rule alone."""

import pytest

import autoshard
from autoshard.mlir.forms import Form
from autoshard.program import with_whole_ops
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
    listing = with_whole_ops(listed(MIXED))
    rule = listing.ops[0].rule
    assert rule is not None
    assert {factor.kind for factor in rule.factors} == {FactorKind.NEED_REPLICATION}
    assert listing.ops[1:] == listed(MIXED).ops[1:]
    (warning,) = listing.warnings
    assert "1 rng_bit_generator" in warning and "threefry" in warning


def test_programs_without_generators_stay_as_they_are() -> None:
    listing = listed(main_of("return %a : tensor<8x16xf32>"))
    assert with_whole_ops(listing) is listing


@pytest.mark.parametrize(("form", "least", "most"), [("xla", ALL, 2 * ALL), ("shardy", 2 * PART, ALL)])
def test_memory_holds_what_each_device_makes(form: Form, least: int, most: int) -> None:
    plan = autoshard.plan(MIXED.encode(), hardware="tpu-v5e", form=form)
    assert plan.status == "optimal"
    assert least <= plan.price.peak_bytes < most


MATRICES = "tensor<256x24x24xf32>"
EIGENVALUES = main_of(
    f"""
  %0:2 = stablehlo.custom_call @Eigh(%a) {{backend_config = "1,1,100,1e-6"}} : ({MATRICES}) -> ({MATRICES}, tensor<256x24xf32>)
  return %0#1 : tensor<256x24xf32>""",
    f'%a: {MATRICES} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x", "y", "z"}}, {{}}, {{}}]>}}',
    'tensor<256x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>}',
)


def test_eigendecompositions_gather_all_matrices() -> None:
    plan = autoshard.plan(EIGENVALUES.encode(), hardware="tpu-v5e")
    assert "all_gather" in {one.kind for one in plan.price.collectives}
    assert any("Eigh" in warning and "shard_map" in warning for warning in plan.warnings)
    assert not autoshard.plan(EIGENVALUES.encode(), hardware="tpu-v5e", form="shardy").price.collectives


@pytest.mark.parametrize(
    ("index", "rows", "whole"),
    [
        ("%i", 1, {1}),
        ("%i", 16, {16, 1024}),
        ("%i", 1024, set[int]()),
        ("%z", 512, {512, 1024}),
        ("%c64", 64, {64, 1024}),
        ("%z", 64, {64}),  # of sixteen devices the first has these rows, however they are split
    ],
)
def test_updates_of_several_rows_take_the_dimension_whole(index: str, rows: int, whole: set[int]) -> None:
    """One row is written where it lies, and an update of all rows leaves nothing to be found."""
    cache, update = "tensor<8x1024xf32>", f"tensor<8x{rows}xf32>"
    body = f"""%z = stablehlo.constant dense<0> : tensor<i32>
  %c64 = stablehlo.constant dense<64> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %c, %u, %z, {index} : ({cache}, {update}, tensor<i32>, tensor<i32>) -> {cache}
  return %0 : {cache}"""
    listing = with_whole_ops(listed(main_of(body, f"%c: {cache}, %u: {update}, %i: tensor<i32>", cache)))
    rule = next(op.rule for op in listing.ops if op.name == "stablehlo.dynamic_update_slice")
    assert rule is not None
    assert {one.size for one in rule.factors if one.kind is FactorKind.NEED_REPLICATION} == whole
    assert not listing.warnings
