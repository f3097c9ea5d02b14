"""Modules with next to nothing in them are planned as any other: what is said of the plan holds."""

from dataclasses import replace

import pytest

from autoshard import pipeline
from autoshard.mlir.forms import Form

T = "tensor<8x16xf32>"
BODIES = {
    "nothing": ("", "()", "return"),
    "scalars": ("%a: tensor<f32>", "(tensor<f32>)", "return %a : tensor<f32>"),
    "constants": (
        "",
        f"({T})",
        f"%0 = stablehlo.constant dense<1.0> : {T}\nreturn %0 : {T}",
    ),
    "nothing to compute": (
        f"%p: tensor<i1>, %a: {T}, %b: {T}",
        f"({T}, {T})",
        f"""%r:3 = stablehlo.while(%q = %p, %y = %a, %z = %b) : tensor<i1>, {T}, {T}
        cond {{
          stablehlo.return %q : tensor<i1>
        }} do {{
          stablehlo.return %q, %z, %y : tensor<i1>, {T}, {T}
        }}
        return %r#1, %r#2 : {T}, {T}""",
    ),
    "no elements": (
        "%a: tensor<0x16xf32>",
        "(tensor<0x16xf32>)",
        "%0 = stablehlo.tanh %a : tensor<0x16xf32>\nreturn %0 : tensor<0x16xf32>",
    ),
    "rows of no elements": (
        '%a: tensor<64x0xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2, "y"=1]>, [{"x"}, {}]>}',
        '(tensor<64x0xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2, "y"=1]>, [{}, {}]>})',
        "%0 = stablehlo.tanh %a : tensor<64x0xf32>\nreturn %0 : tensor<64x0xf32>",
    ),
}


@pytest.mark.parametrize("form", ["xla", "shardy"])
@pytest.mark.parametrize("name", BODIES)
def test_the_plan_holds(name: str, form: Form) -> None:
    arguments, results, body = BODIES[name]
    text = f"module {{ func.func public @main({arguments}) -> {results} {{\n{body}\n}} }}"
    request = pipeline.Request(mesh=(("x", 2), ("y", 1)), form=form, overlap="async")
    loaded = pipeline.load_module(text.encode(), request)
    plan = pipeline.plan_loaded(loaded, time_limit_s=300)
    report = pipeline.check_plan(text.encode(), plan)
    assert report.passed, report.to_text()


def test_every_result_takes_memory() -> None:
    """Also a constant, an argument (reshaped or not), and a value that is returned twice: XLA:TPU hands each over in memory of its own."""
    wide, flat = "tensor<64x256xf32>", "tensor<16384xf32>"
    text = f"""module {{ func.func public @main(%a: {wide}) -> ({wide}, {wide}, {wide}, {wide}, {flat}) {{
      %zeros = stablehlo.constant dense<0.0> : {wide}
      %sum = stablehlo.add %a, %a : {wide}
      %flat = stablehlo.reshape %a : ({wide}) -> {flat}
      return %sum, %sum, %a, %zeros, %flat : {wide}, {wide}, {wide}, {wide}, {flat}
    }} }}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(mesh=(("x", 2),)))
    replicated = pipeline.plan_loaded(loaded, time_limit_s=300).baselines[0].price
    assert replicated is not None and replicated.peak_bytes == 6 * 64 * 256 * 4
    tight = pipeline.plan_loaded(replace(loaded, memory_bytes=6 * 64 * 256 * 2), time_limit_s=300)
    assert tight.fits
    assert pipeline.check_plan(text.encode(), tight).passed
    assert (
        pipeline.plan_loaded(replace(loaded, memory_bytes=6 * 64 * 256 * 2 - 1), time_limit_s=300).status
        == "infeasible"
    )
