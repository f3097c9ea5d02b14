"""Tensor shardings: notation, what one device holds, and which demands they meet."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, new_context
from autoshard.sharding import DimSharding, Mesh, TensorSharding, TensorType, dtype_bits, parse_sharding
from tests.sharding.strategies import meshes, shardings, untimed

MESH = Mesh.of([("x", 4), ("y", 2), ("z", 3)])
CONTEXT = new_context()


def sharding(text: str) -> TensorSharding:
    return parse_sharding(text, MESH)


@untimed
@given(st.data())
def test_text_round_trip(data: st.DataObject) -> None:
    """Every sharding parses back from its text, bare and as the attribute writes it."""
    mesh = data.draw(meshes())
    drawn = data.draw(shardings(mesh))
    assert parse_sharding(str(drawn), mesh) == drawn
    assert parse_sharding(f"#sdy.sharding<@{mesh.name}, {drawn}>", mesh) == drawn


@untimed
@given(st.data())
def test_shardys_verifier_accepts(data: st.DataObject) -> None:
    """What prints is legal to Shardy, and Shardy prints it back as the same sharding."""
    mesh = data.draw(meshes())
    drawn = data.draw(shardings(mesh))
    type_ = TensorType((mesh.num_devices,) * drawn.rank, "f32")
    text = f"""
      sdy.mesh @{mesh.name} = {mesh}
      func.func @main(%a: {type_} {{sdy.sharding = #sdy.sharding<@{mesh.name}, {drawn}>}}) {{ return }}"""
    module = ir.Module.parse(text, CONTEXT)
    assert module.operation.verify()
    main = module.body.operations[1].operation
    (attributes,) = ir.ArrayAttr(main.attributes["arg_attrs"])
    assert parse_sharding(str(ir.DictAttr(attributes)["sdy.sharding"]), mesh) == drawn


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[{}]",
        '[{"x"}, {}]',
        '[{"x", "y"}, {?}]',
        '[{"x":(1)2, ?}p0, {"x":(2)2}p3]',
        '[{?}p1], replicated={"x", "z"}',
        '[{"y"}], replicated={"x"}, unreduced={"z"}',
    ],
)
def test_notation(text: str) -> None:
    """The notation of Shardy's documentation, character by character."""
    assert str(sharding(text)) == text


def test_priority_and_openness_are_read() -> None:
    """`?` opens a dimension, `pN` gives it a priority."""
    assert sharding('[{"x", ?}p2, {}]').dims == (
        DimSharding((MESH.axis("x"),), is_closed=False, priority=2),
        DimSharding(),
    )


@pytest.mark.parametrize("text", ["", "replicated", '{"x"}', "]["])
def test_not_a_sharding(text: str) -> None:
    """No list of dimensions is an error that quotes the text."""
    with pytest.raises(AutoshardError, match="not a sharding"):
        sharding(text)


def test_axis_of_another_mesh() -> None:
    """An axis that the mesh lacks is an error that names it."""
    with pytest.raises(AutoshardError, match='unknown mesh axis "q"'):
        sharding('[{"q"}]')


@untimed
@given(st.data())
def test_local_parts_cover_the_tensor(data: st.DataObject) -> None:
    """Local sizes times shards cover each dimension with less than one shard of padding; without padding they divide."""
    mesh = data.draw(meshes())
    drawn = data.draw(shardings(mesh))
    shape = data.draw(st.lists(st.integers(1, 40), min_size=drawn.rank, max_size=drawn.rank))
    local = drawn.local_shape(shape)
    padded = [size * dim.num_shards for size, dim in zip(local, drawn.dims, strict=True)]
    assert all(0 <= p - s < d.num_shards for p, s, d in zip(padded, shape, drawn.dims, strict=True))
    assert drawn.divides(shape) == (padded == shape)
    type_ = TensorType(tuple(shape), "f32")
    assert drawn.local_bytes(type_) == 4 * math.prod(local)
    assert drawn.local_bytes(type_) * drawn.num_shards >= type_.num_bytes


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "local", "bytes_"),
    [
        ("[]", (), "f32", (), 4),
        ('[{"x"}, {}]', (8, 3), "f32", (2, 3), 24),
        ('[{"x"}, {"y"}]', (9, 3), "bf16", (3, 2), 12),
        ('[{"x", "y"}]', (8,), "i1", (1,), 1),
        ('[{"x"}]', (8,), "i4", (2,), 1),
        ('[{"x"}]', (12,), "i4", (3,), 2),
        ('[{"z"}]', (2,), "complex<f64>", (1,), 16),
        ('[{"x"}]', (0,), "f32", (0,), 0),
        ('[{"x":(2)2}]', (8,), "f32", (4,), 16),
    ],
)
def test_local_table(
    text: str, shape: tuple[int, ...], dtype: str, local: tuple[int, ...], bytes_: int
) -> None:
    """Padded up per dimension, packed in bits, rounded up to whole bytes."""
    assert sharding(text).local_shape(shape) == local
    assert sharding(text).local_bytes(TensorType(shape, dtype)) == bytes_


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("i1", 8),
        ("i2", 2),
        ("ui4", 4),
        ("i8", 8),
        ("ui64", 64),
        ("index", 64),
        ("f16", 16),
        ("bf16", 16),
        ("f32", 32),
        ("f64", 64),
        ("f4E2M1FN", 4),
        ("f6E3M2FN", 6),
        ("f8E4M3B11FNUZ", 8),
        ("f8E8M0FNU", 8),
        ("complex<f32>", 64),
        ("complex<f64>", 128),
        ("!quant.uniform<i8:f32, 2.0:1>", 8),
        ("!quant.uniform<u4<0:15>:f32, 0.5>", 4),
        ("!stablehlo.token", 0),
    ],
)
def test_dtype_bits(dtype: str, bits: int) -> None:
    """Storage of one element: a predicate a byte, a complex number two parts, a quantised one its storage type, a token none."""
    assert dtype_bits(dtype) == bits


@pytest.mark.parametrize(
    ("mine", "demand", "met"),
    [
        ('[{"x"}]', '[{"x"}]', True),
        ('[{"x"}]', "[{}]", False),
        ("[{}]", '[{"x"}]', False),
        ('[{"x", "y"}]', '[{"x"}]', False),
        ('[{"x", "y"}]', '[{"x", ?}]', True),
        ('[{"y", "x"}]', '[{"x", ?}]', False),
        ('[{"x"}]', '[{"x", "y", ?}]', False),
        ('[{"x"}]', "[{?}]", True),
        ("[{}]", "[{?}]", True),
        ('[{"x"}]', '[{?}], replicated={"x"}', False),
        ('[{"x"}]', '[{?}], replicated={"y"}', True),
        ('[{"x"}]', '[{?}], replicated={"x":(2)2}', False),
        ('[{"x":(1)2}]', '[{?}], replicated={"x":(2)2}', True),
        ('[{"x"}]', '[{"x"}p3]', True),
        ('[{"x"}, {}]', '[{"x"}]', False),
        ('[{"x"}, {"y"}]', '[{?}, {"y"}]', True),
        ('[{"y"}, {}]', '[{?}, {"y"}]', False),
    ],
)
def test_satisfies(mine: str, demand: str, met: bool) -> None:
    """Closed dimensions are met exactly, open ones by what begins with them, and replicated axes split nothing."""
    assert sharding(mine).satisfies(sharding(demand)) is met


@untimed
@given(st.data())
def test_closing(data: st.DataObject) -> None:
    """The closed form of a sharding splits alike, is final, and is the only closed sharding that meets itself."""
    mesh = data.draw(meshes())
    drawn = data.draw(shardings(mesh))
    closed = drawn.as_closed()
    assert closed.axes == drawn.axes
    assert closed.is_fully_closed
    assert closed.as_closed() == closed
    assert closed.satisfies(drawn)
    other = data.draw(shardings(mesh)).as_closed()
    assert other.satisfies(closed) == (other == closed)


def test_replicated() -> None:
    """Closed without axes on any dimension."""
    whole = TensorSharding.replicated_closed(2)
    assert str(whole) == "[{}, {}]"
    assert whole.is_fully_replicated
    assert whole.num_shards == 1
    assert not sharding('[{}, {"x"}]').is_fully_replicated
