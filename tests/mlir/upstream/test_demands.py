"""Modules annotated in upstream's dialect are read as demands, in every notation that mlir-opt has printed."""

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir.read import read
from autoshard.mlir.source import load, resolve_mesh

T = "tensor<8x16xf32>"


def module(body: str, mesh: str = "mesh.mesh @m(shape = 2x4)") -> str:
    return f"""{mesh}
func.func @main(%a: {T}) -> {T} {{
{body}
}}"""


ATTRIBUTE = f"""%0 = mesh.shard %a to <@m, [[0]]> : {T}
%1 = mesh.shard %0 to <@m, [[], [1]]> annotate_for_users : {T}
%2 = stablehlo.tanh %1 : {T}
%3 = mesh.shard %2 to <@m, [[0, 1]], partial = sum[]> : {T}
return %3 : {T}"""
VALUE = f"""%s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
%u = mesh.sharding @m split_axes = [[], [1]] halo_sizes = [1, 1] : !mesh.sharding
%t = mesh.sharding @m
  split_axes = [[0, 1]] : !mesh.sharding
%0 = mesh.shard %a to %s : {T} loc("here")
%1 = mesh.shard %0 to %u annotate_for_users : {T} // for the user
%2 = "stablehlo.tanh"(%1) : ({T}) -> {T}
%3 = mesh.shard %2 to %t : {T}
return %3 : {T}"""
GENERIC = f"""%s = "mesh.sharding"() <{{mesh = @m, split_axes = #mesh.axisarray<[[0]]>}}> : () -> !mesh.sharding
%u = "mesh.sharding"() <{{mesh = @m, split_axes = #mesh.axisarray<[[], [1]]>, static_halo_sizes = array<i64: 1, 1>}}> : () -> !mesh.sharding
%0 = "mesh.shard"(%a, %s) : ({T}, !mesh.sharding) -> {T}
%1 = "mesh.shard"(%0, %u) <{{annotate_for_users}}> : ({T}, !mesh.sharding) -> {T}
%2 = "stablehlo.tanh"(%1) : ({T}) -> {T}
%3 = "mesh.shard"(%2) <{{shard = #mesh.shard<@m, [[0, 1]]>}}> : ({T}) -> {T}
return %3 : {T}"""
RENAMED = VALUE.replace("mesh.shard", "shard.shard").replace("!mesh", "!shard")
WRITTEN = {
    "LLVM 19": module(ATTRIBUTE),
    "LLVM 20": module(VALUE),
    "LLVM 22": module(RENAMED, 'shard.grid @m (shape = 2x4) {sym_visibility = "private"}'),
    "generic": module(GENERIC, '"mesh.mesh"() <{shape = array<i64: 2, 4>, sym_name = "m"}> : () -> ()'),
}


@pytest.mark.parametrize("notation", WRITTEN)
def test_annotations_are_demands(notation: str) -> None:
    """On the value where it is made, and on its users; axes are numbered as the mesh has them."""
    source = load(WRITTEN[notation].encode())
    mesh = resolve_mesh(source, None)
    listing, _ = read(source, mesh)
    assert [(axis.name, axis.size) for axis in mesh.axes] == [("axis0", 2), ("axis1", 4)]
    assert str(listing.arguments[0].demand) == '[{"axis0"}, {}]'
    assert [(op.name, str(op.demand)) for op in listing.ops] == [
        ("sdy.sharding_constraint", '[{}, {"axis1"}]'),
        ("stablehlo.tanh", '[{"axis0", "axis1"}, {}]'),
    ]


def test_lines_keep_their_numbers() -> None:
    source = load(module(VALUE).encode())
    listing, _ = read(source, resolve_mesh(source, None))
    assert listing.ops[1].location == "<bytes>:9"


def test_axes_may_have_names_and_returned_values_keep_their_demand() -> None:
    body = f"""%0 = stablehlo.abs %a : {T}
%1 = mesh.shard %0 to <@m, [[0]]> : {T}
%2 = mesh.shard %1 to <@m, [[0]]> annotate_for_users : {T}
return %2 : {T}"""
    source = load(module(body, 'mesh.mesh @m(shape = 2x4) {autoshard.axes = ["data", "model"]}').encode())
    listing, _ = read(source, resolve_mesh(source, [("data", 2), ("model", 4)]))
    assert str(listing.results[0].demand) == '[{"data"}, {}]'
    assert [str(op.demand) for op in listing.ops] == ['[{"data"}, {}]']


REFUSED = {
    "a mesh of unknown size": (module(f"return %a : {T}", "mesh.mesh @m(shape = 2x?)"), "<bytes>:1: mesh @m has an axis of unknown size"),
    "an axis too many": (module(ATTRIBUTE.replace("[0]", "[2]")), r"<bytes>:3: split_axes \[\[2\]\] on a mesh of 2 axes"),
    "another mesh": (module(ATTRIBUTE.replace("<@m", "<@n")), "<bytes>:3: a sharding on no mesh of the module"),
    "two demands": (
        module(ATTRIBUTE.replace("return %3", f"%4 = mesh.shard %2 to <@m, [[1]]> : {T}\nreturn %3")),
        "<bytes>:7: a value demanded as",
    ),
    "a partial sum for users": (
        module(ATTRIBUTE.replace("[[], [1]]>", "[[], [1]], partial = sum[0]>")),
        "<bytes>:4: a partial sum for users",
    ),
    "too many dimensions": (module(ATTRIBUTE.replace("[[], [1]]>", "[[], [1], [0]]>")), "<bytes>:4: a sharding of 3 dimensions"),
    "unequal shards": (
        module(VALUE.replace("halo_sizes = [1, 1]", "sharded_dims_offsets = [0, 3, 8]")),
        "<bytes>:4: shards of unequal size",
    ),
    "a collective": (
        module(f'%0 = "mesh.all_reduce"(%a) {{mesh = @m}} : ({T}) -> {T}\nreturn %0 : {T}'),
        "<bytes>:3: mesh.all_reduce is not supported",
    ),
    "not MLIR": (module("%0 = mesh.shard %a to nothing"), "cannot|is not a StableHLO module"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_demanded_is_refused_where_it_stands(what: str) -> None:
    text, reason = REFUSED[what]
    with pytest.raises(AutoshardError, match=reason):
        resolve_mesh(load(text.encode()), None)
