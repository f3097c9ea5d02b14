"""Collectives that the user wrote in a manual computation: what they send, and what that costs."""

import pytest

from autoshard import pipeline
from autoshard.mlir.forms import Form

PART, WHOLE = "tensor<256x1024xf32>", "tensor<1024x1024xf32>"
PERMUTE = f"""%m = "stablehlo.collective_permute"(%s) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}}> : ({PART}) -> {PART}"""
GROUPS = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"
EXCHANGE = f"""%e = "stablehlo.all_to_all"(%s) <{{{GROUPS}, split_dimension = 1 : i64, concat_dimension = 0 : i64,
    split_count = 4 : i64}}> : ({PART}) -> tensor<1024x256xf32>
  %m = stablehlo.reshape %e : (tensor<1024x256xf32>) -> {PART}"""
GATHER = f"""%g = "stablehlo.all_gather"(%s) <{{{GROUPS}, all_gather_dim = 0 : i64, use_global_device_ids}}> : ({PART}) -> {WHOLE}
  %m = stablehlo.slice %g [0:256, 0:1024] : ({WHOLE}) -> {PART}"""
SUM = f"""%m = "stablehlo.all_reduce"(%s) <{{{GROUPS}, use_global_device_ids}}> ({{
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %c = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %c : tensor<f32>}}) : ({PART}) -> {PART}"""
BY_PRODUCT = (
    f"""%y = stablehlo.dot_general %m, %w, contracting_dims = [1] x [0] : ({PART}, {WHOLE}) -> {PART}"""
)
BY_CONVERSION = f"""%n = stablehlo.convert %m : ({PART}) -> tensor<256x1024xbf16>
  %y = stablehlo.convert %n : (tensor<256x1024xbf16>) -> {PART}"""
AS_IT_IS = f"%y = stablehlo.tanh %m : {PART}"
PART_BYTES = 256 * 1024 * 4


def module(moved: str, read: str) -> str:
    """Each of four devices makes a part of what is moved."""
    split = '<@mesh, [{"x"}, {}]>'
    return f"""sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: {WHOLE}, %v: {WHOLE}) -> {WHOLE} {{
      %0 = sdy.manual_computation(%a, %v) in_shardings=[{split}, <@mesh, [{{}}, {{}}]>] out_shardings=[{split}]
          manual_axes={{"x"}} (%p: {PART}, %w: {WHOLE}) {{
        %s = stablehlo.sine %p : {PART}
        {moved}
        {read}
        sdy.return %y : {PART}
      }} : ({WHOLE}, {WHOLE}) -> {WHOLE}
      return %0 : {WHOLE}
    }}"""


def sent(text: str, form: Form = "xla") -> list[tuple[str, int, int]]:
    """Kind, and bytes as a plan has them and of the operand on one device; the checker agrees on both."""
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), pipeline.Request(form=form)))
    report = pipeline.check_plan(text.encode(), plan)
    assert report.passed, report.to_text()
    return [(one.kind, one.bytes, emitted.bytes) for one in plan.price.collectives for emitted in one.emitted]


@pytest.mark.parametrize("read", [BY_PRODUCT, BY_CONVERSION], ids=["product", "conversion"])
@pytest.mark.parametrize(
    ("moved", "kind", "bytes_"),
    [
        (PERMUTE, "collective_permute", PART_BYTES),
        (EXCHANGE, "all_to_all", PART_BYTES),
        (GATHER, "all_gather", 4 * PART_BYTES),
    ],
    ids=["permute", "exchange", "gather"],
)
def test_what_is_moved_travels_as_narrow_as_it_is_read(moved: str, kind: str, bytes_: int, read: str) -> None:
    """As bf16 where nobody sees the difference, by compilations for v5e 4x4; the plan's bytes are the user's."""
    assert sent(module(moved, read)) == [(kind, bytes_, PART_BYTES // 2)]


def test_what_is_read_wide_or_summed_travels_as_it_is() -> None:
    assert sent(module(PERMUTE, AS_IT_IS)) == [("collective_permute", PART_BYTES, PART_BYTES)]
    assert sent(module(SUM, BY_PRODUCT)) == [("all_reduce", PART_BYTES, PART_BYTES)]


def test_shardys_own_lowering_narrows_nothing() -> None:
    assert sent(module(PERMUTE, BY_PRODUCT), "shardy") == [("collective_permute", PART_BYTES, PART_BYTES)]


def test_one_permute_behind_another_is_narrow_too() -> None:
    """The first hands on to the second what a product reads of that."""
    first = PERMUTE.replace("%m =", "%s1 =").replace("handle = 1", "handle = 2")
    both = module(f"{first}\n{PERMUTE.replace('(%s)', '(%s1)')}", BY_PRODUCT)
    assert sent(both) == [("collective_permute", PART_BYTES, PART_BYTES // 2)] * 2
