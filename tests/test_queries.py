"""Cost queries: a reshard from Python and from the command line."""

import json

import numpy as np
import pytest

import autoshard
from autoshard import AutoshardError, pipeline
from autoshard.queries import parse_type
from autoshard.sharding import TensorType
from tests.test_cli import Terminal
from tests.test_cli import autoshard as terminal

__all__ = ["terminal"]  # the fixture

MESH = {"x": 4, "y": 4}
ASKED = ("--shape", "8192x8192xbf16", "--from", '[{"x"}, {}]', "--to", '[{}, {"y"}]', "--mesh", "x=4,y=4")
PAIRS = [
    ('[{"x"}, {}]', '[{}, {"y"}]'),
    ('[{"x"}, {}]', '[{}, {"x"}]'),
    ('[{"x", "y"}, {}]', '[{}, {}]'),
    ('[{}, {}]', '[{"y"}, {"x"}]'),
    ('[{"x"}, {"y"}]', '[{"y"}, {"x"}]'),
    ('[{"x"}, {"y"}]', '[{}, {}]'),
    ('[{"x":(1)2}, {}]', '[{"x":(2)2}, {"y"}]'),
]  # fmt: skip


def test_the_sequence_is_shardy_s() -> None:
    """Rows over x to columns over y: each device cuts its columns out, then gathers the rows of a quarter of the bytes."""
    found = autoshard.reshard("8192x8192xbf16", '[{"x"}, {}]', '[{}, {"y"}]', mesh=MESH, hardware="tpu-v5e")
    assert [(step.kind, step.axes, step.bytes) for step in found.steps] == [
        ("all_slice", ("y",), 8192 * 8192 * 2 // 16),
        ("all_gather", ("x",), 8192 * 8192 * 2 // 4),
    ]
    assert found.steps[-1].sharding == '[{}, {"y"}]'
    assert found.ns == sum(step.ns for step in found.steps) > 0


@pytest.mark.parametrize("form", ["xla", "shardy"])
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_price_is_the_planner_s(before: str, after: str, form: str, terminal: Terminal) -> None:
    """A module that does nothing but the reshard is priced the same by `autoshard cost`."""
    if "(" in before:
        pytest.skip("a function's arguments have no sub-axes")
    text = f"""
        sdy.mesh @mesh = <["x"=4, "y"=4]>
        func.func @main(%a: tensor<64x96xf32> {{sdy.sharding = #sdy.sharding<@mesh, {before}>}})
            -> (tensor<64x96xf32> {{sdy.sharding = #sdy.sharding<@mesh, {after}>}}) {{
          %0 = sdy.reshard %a <@mesh, {after}> : tensor<64x96xf32>
          return %0 : tensor<64x96xf32>
        }}"""
    done = terminal("cost", terminal.write("m.mlir", text), "--json", "--form", form)
    assert done.status == 0, done.err
    found = autoshard.reshard(
        "64x96xf32", before, after, mesh=MESH, form="xla" if form == "xla" else "shardy"
    )
    assert json.loads(done.out)["predicted"]["communication_ns"] == found.ns


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ("100x37", '[{"x"}, {}]', '[{}, {"x"}]'),
        ("52x64", '[{"x"}, {}]', '[{"x", "y"}, {}]'),
        ("197x52", '[{"x", "y"}, {}]', '[{"x"}, {"y"}]'),
        ("512x1", '[{"x", "y"}, {}]', "[{}, {}]"),
        ("2x2048", '[{"x"}, {"y"}]', "[{}, {}]"),
        ("3x64", '[{"x", "y"}, {}]', '[{}, {"x"}]'),
    ],
)
def test_the_price_of_what_does_not_divide_is_the_planner_s(shape: str, before: str, after: str) -> None:
    """Padded parts, moved rows, short vectors and few elements for many parts are carried out otherwise, by the rules of plans."""
    text = f"""
        sdy.mesh @mesh = <["x"=4, "y"=4]>
        func.func @main(%a: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
          %0 = stablehlo.tanh %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {before}>]>}} : tensor<{shape}xf32>
          %1 = sdy.sharding_constraint %0 <@mesh, {after}> : tensor<{shape}xf32>
          %2 = stablehlo.add %1, %1 : tensor<{shape}xf32>
          return %2 : tensor<{shape}xf32>
        }}"""
    price = pipeline.cost_loaded(pipeline.load_module(text.encode(), pipeline.Request())).price
    found = autoshard.reshard(f"{shape}xf32", before, after, mesh=MESH)
    assert [(s.kind, s.bytes, s.ns, s.emitted) for s in found.steps] == [
        (c.kind, c.bytes, c.ns, c.emitted) for c in price.collectives
    ]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_many_shapes_at_once(before: str, after: str) -> None:
    """The array of prices is the price of each shape, padded ones too."""
    between = autoshard.resharder(before, after, mesh=MESH, hardware="tpu-v5e")
    shapes = np.array([[64, 64], [4096, 128], [100, 37], [8192, 8192]])
    prices = between.ns(shapes, "bf16")
    assert prices.dtype == np.int64
    assert prices.tolist() == [between.reshard(TensorType((int(m), int(n)), "bf16")).ns for m, n in shapes]


def test_nothing_to_do_is_free() -> None:
    """Equal shardings, open or closed, need no collective."""
    found = autoshard.reshard("8x8xf32", '[{"x"}, {?}]', '[{"x", ?}p1, {}]', mesh=MESH)
    assert (found.steps, found.ns, len(found.to_pandas())) == ((), 0, 0)


def test_table() -> None:
    """One row a step."""
    table = autoshard.reshard("64x64xf32", '[{"x"}, {}]', "[{}, {}]", mesh=MESH).to_pandas()
    assert list(table.columns) == ["kind", "axes", "bytes", "ns", "sharding"]
    assert table.loc[0, "kind"] == "all_gather"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2x3xbf16", ((2, 3), "bf16")), ("tensor<4xi1>", ((4,), "i1")), ("f32", ((), "f32"))],
)
def test_shapes(text: str, expected: tuple[tuple[int, ...], str]) -> None:
    """As MLIR writes a type, with or without `tensor<>`."""
    assert parse_type(text) == TensorType(*expected)


def test_command(terminal: Terminal) -> None:
    """The sequence with kind, axes, bytes and time, and the price; the same as JSON."""
    done = terminal("cost", "reshard", *ASKED, "--hardware", "tpu-v5e")
    assert done.status == 0
    found = autoshard.reshard("8192x8192xbf16", '[{"x"}, {}]', '[{}, {"y"}]', mesh=MESH, hardware="tpu-v5e")
    for word in (
        "tpu-v5e 4x4",
        "placement x=1,y=0",
        "all_slice",
        "all_gather",
        "33.6 MB",
        f"{found.ns} ns, 2 collectives",
    ):
        assert word in done.out
    data = json.loads(terminal("cost", "reshard", *ASKED, "--json").out)
    assert (data["ns"], data["mesh"], len(data["steps"])) == (found.ns, MESH, 2)
    assert (data["topology"], data["slices"], data["placement"]) == ([4, 4], 1, "x=1,y=0")


def test_cost_of_a_module_called_as_before(terminal: Terminal) -> None:
    """`cost FILE` is `cost module FILE`, wherever the options stand; a file called reshard is ./reshard."""
    terminal.write("reshard", (terminal.folder / "model.mlir").read_bytes())
    outs = [
        terminal("cost", *words, "--mesh", "x=4", "--json")
        for words in (
            ["model.mlir"],
            ["module", "model.mlir"],
            ["--form", "xla", "model.mlir"],
            ["./reshard"],
        )
    ]
    assert [done.status for done in outs] == [0] * 4
    assert len({json.loads(done.out)["predicted"]["step_ns"] for done in outs}) == 1


BAD = {
    "rank of the shape": ({"--shape": "8xf32"}, "has 2 dimensions, tensor<8xf32> has 1"),
    "ranks of the two": ({"--to": "[{}]"}, 'has 2 dimensions, [{}] has 1'),
    "unknown axis": ({"--to": '[{"z"}, {}]'}, 'unknown mesh axis "z"'),
    "axis without quotes": ({"--to": "[{}, {y}]"}, "with its axes in quotes"),
    "axis twice": ({"--to": '[{"y"}, {"y"}]'}, 'uses "y" twice'),
    "sub-axis and its axis": ({"--to": '[{"y":(1)2}, {"y"}]'}, 'uses "y" twice'),
    "sub-axes that are one": ({"--to": '[{"y":(1)2, "y":(2)2}, {}]'}, 'write [{"y"}, {}]'),
    "sub-axis that does not divide": ({"--to": '[{"y":(3)2}, {}]'}, "does not divide"),
    "sub-axis of nothing": ({"--to": '[{"y":(1)0}, {}]'}, "cannot read the sharding"),
    "no shape": ({"--shape": "8192"}, "cannot read the shape '8192'"),
    "size 0": ({"--shape": "0x8xf32"}, "cannot read the shape"),
    "dynamic": ({"--shape": "?x8xf32"}, "cannot read the shape"),
    "element type": ({"--shape": "8x8xbf17"}, '"bf17" is not a known element type'),
    "mesh": ({"--mesh": "x4"}, "cannot read the mesh"),
    "mesh to be searched": ({"--mesh": "auto"}, "--mesh auto is for autoshard plan"),
    "hardware": ({"--hardware": "tpu-v99"}, "tpu-v99"),
    "topology": ({"--topology": "2x2"}, "the mesh has 16 devices"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, terminal: Terminal) -> None:
    """Exit status 2 and one block that says what is wrong."""
    changed, fragment = BAD[case]
    asked = dict(zip(ASKED[::2], ASKED[1::2], strict=True)) | changed
    done = terminal("cost", "reshard", *[word for pair in asked.items() for word in pair])
    assert (done.status, done.out) == (2, "")
    assert fragment in done.err
    assert "Traceback" not in done.err


def test_shapes_of_another_rank() -> None:
    """The array is [N, rank]."""
    with pytest.raises(AutoshardError, match=r"shapes of form \(3,\)"):
        autoshard.resharder('[{"x"}]', "[{}]", mesh=MESH).ns([1, 2, 3], "f32")


@pytest.mark.parametrize("shape", ["99999999999999999999x8xbf16", "9999999999x9999999999xbf16"])
def test_shapes_beyond_any_memory_are_refused(shape: str) -> None:
    """They would overflow, and be priced below nothing."""
    with pytest.raises(AutoshardError, match="is more than 1000 TB"):
        autoshard.reshard(shape, '[{"x"}, {}]', '[{}, {"x"}]', mesh={"x": 4})
    many = autoshard.resharder('[{"x"}, {}]', '[{}, {"x"}]', mesh={"x": 4})
    for shapes in ([[8, 8], [10**10, 10**10]], [[8, 8], [0, 8]], [[8, 8], [-8, 8]]):
        with pytest.raises(AutoshardError, match="shape 1"):
            many.ns(shapes, "bf16")
