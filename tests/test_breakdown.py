"""`autoshard cost MODULE --explain`: the parts add up to the whole, and each says why it is there."""

import json
from typing import Any

import pytest

from tests.sdy.manual_programs import scattered
from tests.test_cli import Terminal
from tests.test_cli import autoshard as terminal

__all__ = ["terminal"]  # the fixture

MESH = 'sdy.mesh @mesh = <["x"=4]>\n'


def matmul(a: str, b: str, result: str) -> str:
    def sharded(text: str) -> str:
        return f"{{sdy.sharding = #sdy.sharding<@mesh, {text}>}}"

    return f"""{MESH}
    func.func @main(%a: tensor<64x32xf32> {sharded(a)}, %b: tensor<32x16xf32> {sharded(b)})
        -> (tensor<64x16xf32> {sharded(result)}) {{
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      return %0 : tensor<64x16xf32>
    }}"""


def explained(terminal: Terminal, text: str, *more: str) -> dict[str, Any]:
    done = terminal("cost", terminal.write("m.mlir", text), "--explain", "--json", *more)
    assert done.status == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("form", ["xla", "shardy"])
def test_the_parts_add_up(form: str, terminal: Terminal) -> None:
    """Kernels make the compute and collectives the communication of a plan for the embedded example."""
    mesh = ("--mesh", "data=2,model=2", "--form", form)
    assert terminal("plan", *mesh, "--time-limit", "2", "-o", "out.mlir").status == 0
    found = explained(terminal, (terminal.folder / "out.mlir").read_text(), "--form", form)
    figures = found["predicted"]
    assert sum(group["ns"] * group["count"] for group in found["kernels"]) == figures["compute_ns"] > 0
    assert sum(c["ns"] * c["repeat"] for c in found["explained"]) == figures["communication_ns"] > 0
    assert sum(row["share"] for row in found["kernels"] + found["explained"]) == pytest.approx(1)
    assert {group["bound"] for group in found["kernels"]} <= {"matrix", "vector", "memory", "overhead"}
    assert all(c["why"] and c["op"] for c in found["explained"] if c["ns"])


def test_the_users_own(terminal: Terminal) -> None:
    """What is written in a manual computation is there as that."""
    (one,) = explained(terminal, scattered(512))["explained"]
    assert (one["kind"], one["axes"], one["why"]) == (
        "reduce_scatter",
        ["data"],
        "the user wrote reduce_scatter",
    )


def test_a_split_contraction_is_summed(terminal: Terminal) -> None:
    """The all-reduce is there because the contracted dimension is split."""
    found = explained(terminal, matmul('[{}, {"x"}]', '[{"x"}, {}]', "[{}, {}]"))
    (reduce,) = found["explained"]
    assert (reduce["kind"], reduce["axes"], reduce["op"]) == ("all_reduce", ["x"], "dot_general")
    assert "what dot_general sums over is split over x" in reduce["why"]
    (product,) = found["kernels"]
    assert product["work"] == "[64, 8] by [8, 16]"
    assert (product["flops"], product["bytes"]) == (2 * 64 * 8 * 16, 4 * (64 * 8 + 8 * 16 + 64 * 16))
    assert product["bound"] == "overhead"


def test_work_that_its_readers_do_has_no_launch(terminal: Terminal) -> None:
    """A tanh between two products runs in the second: the vector unit bounds it, not a launch that it does not pay."""
    text = f"""{MESH}
    func.func @main(%a: tensor<512x512xf32>) -> tensor<512x512xf32> {{
      %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
        : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
      %1 = stablehlo.tanh %0 : tensor<512x512xf32>
      %2 = stablehlo.dot_general %1, %a, contracting_dims = [1] x [0]
        : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
      return %2 : tensor<512x512xf32>
    }}"""
    (tanh,) = [group for group in explained(terminal, text)["kernels"] if group["op"] == "tanh"]
    assert (tanh["bytes"], tanh["bound"]) == (0, "vector")


def test_a_reshard_names_who_reads_what(terminal: Terminal) -> None:
    """Arguments that are not read as they come: name, sharding, and the one that they are read with."""
    whys = {
        c["why"] for c in explained(terminal, matmul('[{"x"}, {}]', "[{}, {}]", '[{}, {"x"}]'))["explained"]
    }
    assert whys == {
        'arg0 is [{"x"}, {}], read as operand 0 as [{}, {}]',
        'arg1 is [{}, {}], read as operand 1 as [{}, {"x"}]',
    }


def test_tables_for_people(terminal: Terminal) -> None:
    """The tables come after the summary, and only when asked for."""
    terminal.write("m.mlir", matmul('[{}, {"x"}]', '[{"x"}, {}]', "[{}, {}]"))
    plain, explained = terminal("cost", "m.mlir").out, terminal("cost", "m.mlir", "--explain").out
    assert explained.startswith(plain)
    for word in (
        "kernels on one device",
        "FLOP/byte",
        "[64, 8] by [8, 16]",
        "why each collective",
        "partial sums",
        "memory at its peak",
    ):
        assert word in explained.removeprefix(plain)


def test_nothing_moves(terminal: Terminal) -> None:
    """Without collectives it says so."""
    terminal.write("m.mlir", matmul('[{"x"}, {}]', "[{}, {}]", '[{"x"}, {}]'))
    assert "no collectives to explain" in terminal("cost", "m.mlir", "--explain").out
