"""Sums behind which demands are drawn at random, against Shardy's own passes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import pipeline
from autoshard.mlir.forms import Form

_MESHES = ('"x"=2, "y"=2', '"x"=2, "y"=4', '"x"=2, "y"=4, "z"=2', '"x"=4, "y"=2, "z"=2')


def _sharding(rows: list[str], columns: list[str]) -> str:
    return f"[{{{', '.join(rows)}}}, {{{', '.join(columns)}}}]"


def _drawn_sharding(draw: random.Random, axes: list[str]) -> str:
    shuffled = draw.sample(axes, len(axes))
    dims: tuple[list[str], ...] = ([], [], [])  # the last one is left out
    for axis in shuffled:
        draw.choice(dims).append(axis)
    return _sharding(dims[0], dims[1])


def _summed(seed: int) -> bytes:
    """A product that is summed over some axes and split over others, one demand or more on the way, and a result."""
    draw = random.Random(seed)
    mesh = draw.choice(_MESHES)
    axes = [f'"{axis}"' for axis in "xyz" if f'"{axis}"' in mesh]
    shuffled = draw.sample(axes, len(axes))
    summed = draw.randint(1, len(axes))
    over, rest = shuffled[:summed], shuffled[summed:]
    rows, columns = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    made, size = _sharding(rows, columns), draw.choice((1024, 48))
    result, left, right = (f"tensor<{a}x{b}xf32>" for a, b in ((size, size), (size, 4096), (4096, size)))

    def demanded() -> str:
        return draw.choice((made, _drawn_sharding(draw, axes)))

    own = (
        f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {demanded()}>]>}}" if draw.random() < 0.5 else ""
    )
    body = [
        f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {own} : ({left}, {right}) -> {result}"
    ]
    for number in range(draw.randint(0 if own else 1, 2)):
        body.append(f"%{number + 1} = sdy.sharding_constraint %{number} <@mesh, {demanded()}> : {result}")
    if draw.random() < 0.5:
        body.append(f"%{len(body)} = stablehlo.exponential %{len(body) - 1} : {result}")
    lines = "\n".join(body)
    return f"""
      sdy.mesh @mesh = <[{mesh}]>
      func.func @main(%a: {left} {{sdy.sharding = #sdy.sharding<@mesh, {_sharding(rows, over)}>}},
          %b: {right} {{sdy.sharding = #sdy.sharding<@mesh, {_sharding(over, columns)}>}})
          -> ({result} {{sdy.sharding = #sdy.sharding<@mesh, {_drawn_sharding(draw, axes)}>}}) {{
        {lines}
        return %{len(body) - 1} : {result}
      }}""".encode()


@pytest.mark.parametrize(("hardware", "form"), [("h100", "xla"), ("tpu-v5e", "shardy")])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_plan_pays_for_what_shardys_passes_make_of_a_sum(hardware: str, form: Form, seed: int) -> None:
    """Whatever changes of sharding follow it, and whoever asks for them; and so does what prices the written module."""
    module, request = _summed(seed), pipeline.Request(hardware=hardware, form=form)
    loaded = pipeline.load_module(module, request)
    plan = pipeline.plan_loaded(loaded)
    report = pipeline.check_plan(module, plan, deep=True)
    assert report.passed, report.to_text()
    written = pipeline.write_planned(loaded, plan).encode()
    again = pipeline.cost_loaded(pipeline.load_module(written, request))
    assert again.price.communication_ns == plan.price.communication_ns
