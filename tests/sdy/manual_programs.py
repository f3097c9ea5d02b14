"""Programs with manual computations on a mesh of data=4 and model=2, as text; JAX's shard_map is lowered to such ops."""

from pathlib import Path

DATA = "[[0, 2, 4, 6], [1, 3, 5, 7]]"
MODEL = "[[0, 1], [2, 3], [4, 5], [6, 7]]"
MESH = 'sdy.mesh @mesh = <["data"=4, "model"=2]>\n'
SUM = """({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %s = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %s : tensor<f32>
        })"""
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


def tensor(*shape: int) -> str:
    return f"tensor<{'x'.join([*map(str, shape), 'f32'])}>"


def grouped(groups: str, is_global: bool = True) -> str:
    """The attributes that JAX gives a collective over these groups of partitions."""
    rows = groups.count("[") - 1
    columns = (groups.count(",") + 1) // rows
    ids = ", use_global_device_ids" if is_global else ""
    return f"{CHANNEL}, replica_groups = dense<{groups}> : tensor<{rows}x{columns}xi64>{ids}"


def all_reduce(result: str, operand: str, type_: str, groups: str) -> str:
    return (
        f'{result} = "stablehlo.all_reduce"({operand}) <{{{grouped(groups)}}}> {SUM} : ({type_}) -> {type_}\n'
    )


def dot(result: str, a: str, b: str, types: tuple[str, str, str]) -> str:
    return f"{result} = stablehlo.dot_general {a}, {b}, contracting_dims = [1] x [0] : ({types[0]}, {types[1]}) -> {types[2]}\n"


def manual(
    operands: str, ins: list[str], outs: list[str], axes: str, arguments: str, body: str, types: str
) -> str:
    """An sdy.manual_computation with these shardings of what enters and of what leaves."""
    entering, leaving = (", ".join(f"<@mesh, {one}>" for one in each) for each in (ins, outs))
    return (
        f"sdy.manual_computation({operands}) in_shardings=[{entering}] out_shardings=[{leaving}] manual_axes={{{axes}}} ({arguments}) {{\n"
        f"{body}\n}} : {types}\n"
    )


def main(arguments: str, results: str, body: str) -> str:
    return f"{MESH}func.func @main({arguments}) -> {results} {{\n{body}}}\n"


def row_parallel(m: int, k: int, n: int, out: str = "[{?}, {?}]") -> str:
    """`x @ w` with both split along what is summed over data=4, and the sum spelled out; the rest is left open."""
    x, w, y, a, b = tensor(m, k), tensor(k, n), tensor(m, n), tensor(m, k // 4), tensor(k // 4, n)
    body = dot("%d", "%a", "%b", (a, b, y)) + all_reduce("%r", "%d", y, DATA) + f"sdy.return %r : {y}"
    ins = ['[{?}, {"data"}]', '[{"data"}, {?}]']
    op = manual("%x, %w", ins, [out], '"data"', f"%a: {a}, %b: {b}", body, f"({x}, {w}) -> {y}")
    return main(f"%x: {x}, %w: {w}", y, f"%0 = {op}return %0 : {y}\n")


def nested() -> str:
    """A computation over model inside one over data, each with its sum, the outer one with a call."""
    x, w, y, u, v = tensor(64, 512), tensor(512, 256), tensor(64, 256), tensor(64, 128), tensor(128, 256)
    a, b = tensor(64, 64), tensor(64, 256)
    end = f"sdy.return %r : {y}"
    product = dot("%d", "%a", "%b", (a, b, y)) + all_reduce("%r", "%d", y, MODEL) + end
    ins = ['[{}, {"model"}]', '[{"model"}, {}]']
    inner = manual("%e, %v", ins, ["[{}, {}]"], '"model"', f"%a: {a}, %b: {b}", product, f"({u}, {v}) -> {y}")
    body = f"%e = func.call @f(%u) : ({u}) -> {u}\n%1 = {inner}" + all_reduce("%r", "%1", y, DATA) + end
    ins = ['[{?}, {"data", ?}]', '[{"data", ?}, {?}]']
    op = manual("%x, %w", ins, ["[{?}, {?}]"], '"data"', f"%u: {u}, %v: {v}", body, f"({x}, {w}) -> {y}")
    called = f"func.func private @f(%a: {u}) -> {u} {{\n%0 = stablehlo.tanh %a : {u}\nreturn %0 : {u}\n}}\n"
    return main(f"%x: {x}, %w: {w}", y, f"%0 = {op}return %0 : {y}\n") + called


def _counted(trips: int, initial: str, type_: str, body: str) -> str:
    """`%l#1`: what `%h`, at first `initial`, is after so many trips of `body`, which makes `%t` of it."""
    return f"""%c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<{trips}> : tensor<i32>
    %l:2 = stablehlo.while(%i = %c, %h = {initial}) : tensor<i32>, {type_}
    cond {{
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      {body}
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %t : tensor<i32>, {type_}
    }}
    """


def inside_a_loop(trips: int = 5) -> str:
    """A loop that enters a manual computation in every trip."""
    x, w, a, b = tensor(64, 512), tensor(512, 512), tensor(64, 128), tensor(128, 512)
    body = dot("%d", "%a", "%b", (a, b, x)) + all_reduce("%r", "%d", x, DATA) + f"sdy.return %r : {x}"
    ins = ['[{?}, {"data"}]', '[{"data"}, {?}]']
    op = manual("%h, %w", ins, ["[{?}, {?}]"], '"data"', f"%a: {a}, %b: {b}", body, f"({x}, {w}) -> {x}")
    loop = _counted(trips, "%x", x, f"%0 = {op}%t = stablehlo.tanh %0 : {x}")
    return main(f"%x: {x}, %w: {w}", x, f"{loop}return %l#1 : {x}\n")


def first_of_all(trips: int = 5) -> str:
    """Two computations that read the arguments before there is any op; each adds up, in a loop, sums that are spelled out."""
    x, w, a, b = tensor(64, 512), tensor(512, 512), tensor(64, 128), tensor(128, 512)
    body = (
        dot("%d", "%a", "%b", (a, b, x))
        + all_reduce("%r", "%d", x, DATA)
        + f"%t = stablehlo.add %h, %r : {x}"
    )
    start = f"%z = stablehlo.constant dense<0.0> : {x}\n"
    loop = start + _counted(trips, "%z", x, body) + f"sdy.return %l#1 : {x}"
    ins = ['[{?}, {"data"}]', '[{"data"}, {?}]']
    op = manual("%x, %w", ins, ["[{?}, {?}]"], '"data"', f"%a: {a}, %b: {b}", loop, f"({x}, {w}) -> {x}")
    return main(
        f"%x: {x}, %w: {w}", x, f"%0 = {op}%1 = {op}%2 = stablehlo.multiply %0, %1 : {x}\nreturn %2 : {x}\n"
    )


def around_a_loop(trips: int = 5) -> str:
    """A manual computation that begins with a loop, with a sum and a constraint on the free axis in every trip."""
    x, w, u, v = tensor(64, 512), tensor(512, 512), tensor(64, 128), tensor(128, 512)
    body = (
        f"%k = sdy.sharding_constraint %h <@mesh, [{{?}}, {{?}}]> : {u}\n"
        + dot("%d", "%k", "%v", (u, v, x))
        + all_reduce("%r", "%d", x, DATA)
        + f"%y = stablehlo.slice %r [0:64, 0:128] : ({x}) -> {u}\n%t = stablehlo.tanh %y : {u}"
    )
    loop = _counted(trips, "%u", u, body) + f"sdy.return %l#1 : {u}"
    ins = ['[{?}, {"data"}]', '[{"data"}, {?}]']
    op = manual("%x, %w", ins, ['[{?}, {"data"}]'], '"data"', f"%u: {u}, %v: {v}", loop, f"({x}, {w}) -> {x}")
    return main(f"%x: {x}, %w: {w}", x, f"%0 = {op}return %0 : {x}\n")


def full(first_groups: str = MODEL) -> str:
    """Every axis manual: nothing is left to plan but the way in; a scalar is summed too."""
    x, w, y, a, b, r = (
        tensor(64, 512), tensor(512, 256), tensor(64, 256), tensor(16, 256), tensor(256, 256), tensor(16, 256),
    )  # fmt: skip
    body = (
        dot("%d", "%a", "%b", (a, b, r))
        + all_reduce("%r", "%d", r, first_groups)
        + "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        + f"%l = stablehlo.reduce(%r init: %z) applies stablehlo.add across dimensions = [0, 1] : ({r}, tensor<f32>) -> tensor<f32>\n"
        + all_reduce("%t", "%l", "tensor<f32>", DATA)
        + f"sdy.return %r, %t : {r}, tensor<f32>"
    )
    ins, outs = ['[{"data"}, {"model"}]', '[{"model"}, {}]'], ['[{"data"}, {}]', "[]"]
    types = f"({x}, {w}) -> ({y}, tensor<f32>)"
    op = manual("%x, %w", ins, outs, '"data", "model"', f"%a: {a}, %b: {b}", body, types)
    return main(
        f"%x: {x}, %w: {w}", f"({y}, tensor<f32>)", f"%0:2 = {op}return %0#0, %0#1 : {y}, tensor<f32>\n"
    )


def with_an_axis_of_one() -> str:
    """`full` with an axis of one device, manual too, in front of the others."""
    return (
        full()
        .replace('"data"=4', '"one"=1, "data"=4')
        .replace('manual_axes={"data"', 'manual_axes={"one", "data"')
        .replace('<@mesh, [{"data"}, {"model"}]>', '<@mesh, [{"data", "one"}, {"model"}]>')
        .replace('out_shardings=[<@mesh, [{"data"}, {}]>', 'out_shardings=[<@mesh, [{"data"}, {"one"}]>')
    )


def all_kinds() -> str:
    """Every kind of collective over data, one after the other."""
    big, t = tensor(32, 64), tensor(8, 64)
    on_data, pairs = grouped(DATA), "[[0, 2], [2, 4], [4, 6], [6, 0], [1, 3], [3, 5], [5, 7], [7, 1]]"
    splits = f"split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, {grouped(DATA, False)}"
    body = f"""%g = "stablehlo.all_gather"(%a) <{{all_gather_dim = 0 : i64, {on_data}}}> : ({t}) -> {big}
      %c = "stablehlo.reduce_scatter"(%g) <{{scatter_dimension = 0 : i64, {on_data}}}> {SUM} : ({big}) -> {t}
      %o = "stablehlo.all_to_all"(%c) <{{{splits}}}> : ({t}) -> {t}
      %m = "stablehlo.collective_permute"(%o) <{{{CHANNEL}, source_target_pairs = dense<{pairs}> : tensor<8x2xi64>}}> : ({t}) -> {t}
      {all_reduce("%r", "%m", t, DATA)}%y = stablehlo.add %r, %a : {t}
      sdy.return %y : {t}"""
    edge = ['[{"data"}, {?}]']
    op = manual("%x", edge, edge, '"data"', f"%a: {t}", body, f"({big}) -> {big}")
    return main(f"%x: {big}", big, f"%0 = {op}return %0 : {big}\n")


def scattered(columns: int) -> str:
    """Rows that are summed over data, of which each device keeps its part."""
    whole, part = tensor(256, columns), tensor(64, columns)
    body = f"""%c = "stablehlo.reduce_scatter"(%a) <{{scatter_dimension = 0 : i64, {grouped(DATA)}}}> {SUM} : ({whole}) -> {part}
      sdy.return %c : {part}"""
    op = manual(
        "%x",
        ["[{}, {}]"],
        ['[{"data"}, {}]'],
        '"data", "model"',
        f"%a: {whole}",
        body,
        f"({whole}) -> {whole}",
    )
    return main(f"%x: {whole}", whole, f"%0 = {op}return %0 : {whole}\n")


def handed_on(axes: str, sharding: str, local: str, x: str = tensor(64, 64)) -> str:
    """A computation that returns what it gets."""
    op = manual(
        "%x", [sharding], [sharding], axes, f"%a: {local}", f"sdy.return %a : {local}", f"({x}) -> {x}"
    )
    return main(f"%x: {x}", x, f"%0 = {op}return %0 : {x}\n")


def without_values() -> str:
    """Computations without operands, and without manual axes."""
    x, edge = tensor(64, 512), ["[{?}, {?}]"]
    body = f"%t = stablehlo.tanh %a : {x}\nsdy.return %t : {x}"
    op = manual("%x", edge, edge, "", f"%a: {x}", body, f"({x}) -> {x}")
    empty = manual("", [], [], "", "", "sdy.return", "() -> ()")
    return main(f"%x: {x}", x, f"{empty}%0 = {op}return %0 : {x}\n")


PROGRAMS = {
    "row parallel": row_parallel(64, 512, 256),
    "nested": nested(),
    "inside a loop": inside_a_loop(),
    "around a loop": around_a_loop(),
    "first of all, twice": first_of_all(),
    "full": full(),
    "all kinds": all_kinds(),
    "handed on": handed_on('"data"', '[{"data", ?}, {?}]', tensor(16, 64)),
    "without values": without_values(),
    "with an axis of one": with_an_axis_of_one(),
    "shard_map": (Path(__file__).parent / "shard_map.mlir").read_text(),  # as jax lowers it
}
