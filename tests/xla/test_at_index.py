"""Slices and updates at an index along a dimension that is split: what is predicted is what XLA's partitioner emits."""

import importlib.util

import pytest

import autoshard
from autoshard import pipeline
from autoshard.plans import emitted_bytes

CACHE, ROWS = (8, 1024, 8, 128), 1024
TARGETS = ["cpu:4"] + ["tpu:v5e:2x2"] * (importlib.util.find_spec("libtpu") is not None)
ALONG_ROWS, ALSO_HEADS = '[{}, {"x"}, {}, {}]', '[{}, {"x"}, {"y"}, {}]'
WHOLE = "[{}, {}, {}, {}]"


def tensor(shape: tuple[int, ...]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def updated(split: str, update: tuple[int, ...], *, rows_as: str = WHOLE, index: str = "%i") -> str:
    """Rows are written from a position on that is told when it runs, or from a constant one."""
    cache, rows = tensor(CACHE), tensor(update)
    types = f"{cache}, {rows}, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>"
    return _module(
        split,
        split,
        f"%u: {rows} {{sdy.sharding = #sdy.sharding<@mesh, {rows_as}>}}, ",
        f"%r = stablehlo.dynamic_update_slice %c, %u, %z, {index}, %z, %z : ({types}) -> {cache}",
        cache,
    )


def sliced(split: str, returned: str, rows: tuple[int, ...]) -> str:
    types = f"{tensor(CACHE)}, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>"
    sizes = f"sizes = [{', '.join(map(str, rows))}]"
    op = f"%r = stablehlo.dynamic_slice %c, %z, %i, %z, %z, {sizes} : ({types}) -> {tensor(rows)}"
    return _module(split, returned, "", op, tensor(rows))


def _module(split: str, returned: str, update: str, op: str, result: str) -> str:
    return f"""module {{
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(%c: {tensor(CACHE)} {{sdy.sharding = #sdy.sharding<@mesh, {split}>}}, {update}%i: tensor<i32>)
      -> ({result} {{sdy.sharding = #sdy.sharding<@mesh, {returned}>}}) {{
    %z = stablehlo.constant dense<0> : tensor<i32>
    {op}
    return %r : {result}
  }}
}}
"""


MODULES = {
    "one row is written where it lies": updated(ALONG_ROWS, (8, 1, 8, 128)),
    "of several the cache is gathered": updated(ALONG_ROWS, (8, 64, 8, 128)),
    "heads stay split": updated(ALSO_HEADS, (8, 64, 8, 128)),
    "what is written is gathered too": updated(ALONG_ROWS, (8, 64, 8, 128), rows_as=ALONG_ROWS),
    "from the first row on": updated(ALONG_ROWS, (8, 600, 8, 128), rows_as=ALONG_ROWS, index="%z"),
    "few first rows are written where they lie": updated(ALONG_ROWS, (8, 64, 8, 128), index="%z"),
    "few first rows are gathered alone": updated(ALONG_ROWS, (8, 64, 8, 128), rows_as=ALONG_ROWS, index="%z"),
    "rows are whole as it is": updated('[{"x"}, {}, {"y"}, {}]', (8, 64, 8, 128)),
    "sliced whole": sliced(ALONG_ROWS, WHOLE, (8, 64, 8, 128)),
    "sliced and split": sliced(ALONG_ROWS, ALONG_ROWS, (8, 64, 8, 128)),
    "sliced, heads stay split": sliced(ALSO_HEADS, '[{}, {}, {"y"}, {}]', (8, 1, 8, 128)),
}
GATHERED = {
    "of several the cache is gathered", "heads stay split", "what is written is gathered too", "from the first row on",
    "few first rows are gathered alone",
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODULES)
def test_collectives_are_those_of_the_partitioner(name: str, target: str) -> None:
    module = MODULES[name].encode()
    predicted = emitted_bytes(autoshard.price(module, hardware="tpu-v5e").price)
    compiled = autoshard.compile_planned(module, target).totals()
    assert {kind.replace("_", "-"): bytes_ for kind, bytes_ in predicted.items()} == {
        kind: total.operand_bytes for kind, total in compiled.items()
    }
    assert bool(predicted) == (name in GATHERED or name.startswith("sliced"))


@pytest.mark.parametrize("name", sorted(GATHERED))
def test_a_plan_is_carried_out_as_it_is_written(name: str) -> None:
    """It gathers the rows before the update, or splits something else meanwhile."""
    loaded = pipeline.load_module(MODULES[name].encode(), pipeline.Request(hardware="tpu-v5e"))
    plan = pipeline.plan_loaded(loaded)
    compiled = autoshard.compile_planned(pipeline.write_planned(loaded, plan).encode(), "cpu:4").totals()
    predicted = emitted_bytes(plan.price)
    assert predicted
    assert {kind.replace("_", "-"): bytes_ for kind, bytes_ in predicted.items()} == {
        kind: total.operand_bytes for kind, total in compiled.items()
    }
