"""A complement of an error function takes the room of its pieces where a product reads a slice of each shard."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check

ROWS, INNER, OUTER = 65536, 64, 4096


def perceptron(act: str, dtype: str, read: str) -> str:
    """The product is split over x; what the second one reads is sliced where `read` is split over more."""
    wide, hidden = f"tensor<{ROWS}x{OUTER}x{dtype}>", f"tensor<{ROWS}x{INNER}x{dtype}>"
    first, second = f"tensor<{INNER}x{OUTER}x{dtype}>", f"tensor<{OUTER}x{INNER}x{dtype}>"
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {hidden} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}, %b: {first}, %c: {second}) -> {hidden} {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({hidden}, {first}) -> {wide}
        %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"x"}}]> : {wide}
        %2 = {act} %1 : {wide} -> {wide}
        %3 = stablehlo.multiply %1, %2 : {wide}
        %4 = sdy.sharding_constraint %3 <@mesh, [{{}}, {{"x"}}]> : {wide}
        %5 = sdy.sharding_constraint %4 <@mesh, {read}> : {wide}
        %6 = stablehlo.dot_general %5, %c, contracting_dims = [1] x [0] : ({wide}, {second}) -> {hidden}
        return %6 : {hidden}
      }}"""


def peak(act: str, dtype: str, read: str) -> int:
    """Of the module as it is written."""
    request = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)
    loaded = pipeline.load_module(perceptron(act, dtype, read).encode(), request)
    written = price_as_written(loaded)
    return written.priced.expected_peak(written.choice)


@pytest.mark.parametrize(("dtype", "bytes_"), [("bf16", 17), ("f32", 28)])
def test_pieces_count_where_slices_are_read(dtype: str, bytes_: int) -> None:
    """As many bytes for each element of a shard as XLA:TPU stores, beside what an error function takes."""
    sliced, pieces = '[{}, {"x", "y"}]', ROWS * OUTER // 4 * bytes_
    more = peak("chlo.erfc", dtype, sliced) - peak("chlo.erf", dtype, sliced)
    assert pieces <= more <= 1.1 * pieces
    assert peak("chlo.erfc", dtype, '[{}, {"x"}]') < pieces


def test_the_checker_counts_pieces_too() -> None:
    """A plan for the module has the peak that the check derives."""
    request = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)
    text = perceptron("chlo.erfc", "bf16", '[{}, {"x", "y"}]').encode()
    loaded = pipeline.load_module(text, request)
    plan = pipeline.plan_loaded(loaded)
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
