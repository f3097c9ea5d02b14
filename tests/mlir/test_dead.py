"""What nobody reads is dropped before planning."""

import pytest

from autoshard.mlir.dead import drop_dead
from autoshard.mlir.listing import Listing
from autoshard.mlir.read import read
from autoshard.mlir.source import resolve_mesh
from tests.mlir.modules import counted_loop, main_of, source_of

T = "tensor<8x16xf32>"


def test_only_what_is_read_or_asked_for_is_planned() -> None:
    """A chain that ends in nothing goes, in loops too; what has a sharding of the user's stays."""
    source = source_of(
        main_of(
            f"""%zero = stablehlo.constant dense<0> : tensor<i32>
            %d0 = stablehlo.tanh %a : {T}
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %d1 = stablehlo.reduce(%d0 init: %z) applies stablehlo.add across dimensions = [1] : ({T}, tensor<f32>) -> tensor<8xf32>
            %k = stablehlo.cosine %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x"}}, {{}}]>]>}} : {T}
            %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {T}
              cond {{ %go = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %go : tensor<i1> }}
              do {{ %w = stablehlo.sine %x : {T} %y = stablehlo.abs %x : {T} stablehlo.return %i, %y : tensor<i32>, {T} }}
            return %r#1 : {T}"""
        )
    )
    mesh = resolve_mesh(source, None)
    listing, _ = read(source, mesh, drops_dead=True)
    names = [op.name.removeprefix("stablehlo.") for op in listing.ops]
    assert names == ["constant", "cosine", "compare", "abs"]
    assert len(read(source, mesh)[0].ops) == len(names) + 4


@pytest.mark.parametrize(
    ("inside", "stays"),
    [
        (f"%y = stablehlo.sine %x : {T}", False),
        (f"%y = stablehlo.custom_call @f(%x) : ({T}) -> {T}", True),
        (f'%y = sdy.sharding_constraint %x <@mesh, [{{"x"}}, {{}}]> : {T}', True),
        (
            f"""%y = "stablehlo.case"(%i) ({{ %o = stablehlo.custom_call @f(%x) : ({T}) -> {T} stablehlo.return %o : {T} }})
              : (tensor<i32>) -> {T}""",
            True,
        ),
    ],
)
def test_loops_whose_results_nobody_reads_are_dropped(inside: str, *, stays: bool) -> None:
    """With what only they read; not where they do more than compute, or hold what has a sharding of the user."""
    source = source_of(
        main_of(
            f"""%zero = stablehlo.constant dense<0> : tensor<i32>
            %b = stablehlo.cosine %a : {T}
            %r:2 = stablehlo.while(%i = %zero, %x = %b) : tensor<i32>, {T}
              cond {{ %go = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %go : tensor<i1> }}
              do {{ {inside} stablehlo.return %i, %y : tensor<i32>, {T} }}
            %s = stablehlo.slice %r#1 [0:4, 0:16] : ({T}) -> tensor<4x16xf32>
            %k = stablehlo.abs %a : {T}
            return %k : {T}"""
        )
    )
    listing, _ = read(source, resolve_mesh(source, None), drops_dead=True)
    names = {op.name for op in listing.ops}
    assert ("stablehlo.cosine" in names) == stays
    assert stays or names == {"stablehlo.abs"}


def once(start: str, limit: str, given: str = "") -> str:
    """A stack of one row, which a loop reads and writes over."""
    one = "tensor<1x8x16xf32>"
    return main_of(
        f"""%p = stablehlo.reshape %a : ({T}) -> {one}
        %begin = stablehlo.constant dense<{start}> : tensor<i32>
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %end = {limit}
        %r:2 = stablehlo.while(%i = %begin, %x = %p) : tensor<i32>, {one} {given}
          cond {{ %go = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %go : tensor<i1> }}
          do {{
            %step = stablehlo.constant dense<1> : tensor<i32>
            %row = stablehlo.dynamic_slice %x, %i, %zero, %zero, sizes = [1, 8, 16]
              : ({one}, tensor<i32>, tensor<i32>, tensor<i32>) -> {one}
            %y = stablehlo.sine %row : {one}
            %w = stablehlo.dynamic_update_slice %x, %y, %i, %zero, %zero
              : ({one}, {one}, tensor<i32>, tensor<i32>, tensor<i32>) -> {one}
            %n = stablehlo.add %i, %step : tensor<i32>
            stablehlo.return %n, %w : tensor<i32>, {one}
          }}
        %k = stablehlo.reshape %r#1 : ({one}) -> {T}
        return %k : {T}"""
    )


CONSTANT = "stablehlo.constant dense<{}> : tensor<i32>"


@pytest.mark.parametrize(
    ("start", "limit", "given", "opens"),
    [
        ("0", CONSTANT.format(1), "", True),
        ("4", CONSTANT.format(5), "", True),
        ("0", CONSTANT.format(2), "", False),
        ("0", f"stablehlo.custom_call @f(%a) : ({T}) -> tensor<i32>", "", False),
        (
            "0",
            CONSTANT.format(1),
            'attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}, {"x"}, {}]>]>}',
            False,
        ),
    ],
)
def test_loops_that_run_once_are_their_bodies(start: str, limit: str, given: str, *, opens: bool) -> None:
    """What is sliced from all of the stack and written over all of it is what was there; other loops stay."""
    source = source_of(once(start, limit, given))
    listing, _ = read(source, resolve_mesh(source, None), drops_dead=True)
    names = [op.name.removeprefix("stablehlo.") for op in listing.ops]
    assert (names == ["reshape", "sine", "reshape"]) == opens
    assert ("compare" in names) != opens


I32 = "tensor<i32>"


def counted(name: str, start: str, stop: str, body: str, *, step: str = "%one", first: str = "") -> str:
    """A loop whose counter and value in it are called `name`; `first`: what its condition does besides."""
    return f"""%{name}:2 = stablehlo.while(%{name}i = {start}, %{name}x = %arg) : {I32}, {I32}
      cond {{
        {first}
        %go = stablehlo.compare LT, %{name}i, {stop} : ({I32}, {I32}) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      }}
      do {{
        {body}
        %n = stablehlo.add %{name}i, {step} : {I32}
        stablehlo.return %n, %y : {I32}, {I32}
      }}"""


def nest(limit: str, stop: str = "%four", *, step: str = "%one") -> str:
    inner = counted("in", "%zero", stop, f"%y = stablehlo.negate %inx : {I32}", step=step)
    return counted(
        "out",
        "%zero",
        limit,
        f"""%left = stablehlo.subtract %four, %outi : {I32}
        %least = stablehlo.minimum %outi, %left : {I32}
        %up = stablehlo.add %least, %one : {I32}
        {inner}
        %y = stablehlo.negate %in#1 : {I32}""",
    )


NEGATED = f"%y = stablehlo.negate %outx : {I32}"
PRINTED = f"%e = stablehlo.custom_call @print(%outx) {{has_side_effect = true}} : ({I32}) -> {I32}"
SLICED = f"""%both = stablehlo.constant dense<0> : tensor<1xi32>
%same = stablehlo.dynamic_slice %both, %zero, sizes = [1] : (tensor<1xi32>, {I32}) -> tensor<1xi32>
%start = stablehlo.reshape %same : (tensor<1xi32>) -> {I32}"""
HALF = f"""%half = stablehlo.constant dense<0.5> : tensor<f32>
%stop = stablehlo.convert %half : (tensor<f32>) -> {I32}"""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(nest("%five", "%up"), 2, id="once at the first and the last trip around it"),
        pytest.param(nest("%four", step="%left"), 2, id="a step that becomes less"),
        pytest.param(nest("%one", "%up"), 0, id="once in a loop that runs once"),
        pytest.param(SLICED + "\n" + counted("out", "%start", "%one", NEGATED), 0, id="all of a slice"),
        pytest.param(HALF + "\n" + counted("out", "%zero", "%stop", NEGATED), 1, id="half a trip"),
        pytest.param(
            counted("out", "%zero", "%one", NEGATED, first=PRINTED), 1, id="a condition that does more"
        ),
    ],
)
def test_loops_run_once_whatever_is_around_them(text: str, left: int) -> None:
    """And what is left is left when it is read again."""
    constants = "\n".join(
        f"%{name} = stablehlo.constant dense<{number}> : {I32}"
        for name, number in (("zero", 0), ("one", 1), ("four", 4), ("five", 5))
    )
    source = source_of(
        f"""module {{ sdy.mesh @mesh = <["x"=4]>
        func.func @main(%arg: {I32}) -> {I32} {{ {constants}\n{text}\nreturn %out#1 : {I32} }} }}"""
    )
    module = source.module.operation.clone().operation
    drop_dead(module, source.main)
    assert module.verify()
    once_read = str(module)
    assert once_read.count("stablehlo.while") == left
    drop_dead(module, source.main)
    assert str(module) == once_read


def test_what_a_loop_swaps_is_swapped() -> None:
    source = source_of(
        main_of(
            f"""%zero = stablehlo.constant dense<0> : {I32}
            %one = stablehlo.constant dense<1> : {I32}
            %s = stablehlo.sine %a : {T}
            %r:3 = stablehlo.while(%i = %zero, %x = %a, %y = %s) : {I32}, {T}, {T}
              cond {{
                %go = stablehlo.compare LT, %i, %one : ({I32}, {I32}) -> tensor<i1>
                stablehlo.return %go : tensor<i1>
              }}
              do {{
                %n = stablehlo.add %i, %one : {I32}
                stablehlo.return %n, %y, %x : {I32}, {T}, {T}
              }}
            %k = stablehlo.subtract %r#1, %r#2 : {T}
            return %k : {T}"""
        )
    )
    module = source.module.operation.clone().operation
    drop_dead(module, source.main)
    assert f"stablehlo.subtract %0, %arg0 : {T}" in str(module)


def _read_names(body: str, arguments: str, result: str) -> tuple[list[str], Listing]:
    source = source_of(main_of(body, arguments, result))
    listing, _ = read(source, resolve_mesh(source, None), drops_dead=True)
    return [op.name.removeprefix("stablehlo.") for op in listing.ops], listing


@pytest.mark.parametrize(
    ("begin", "end", "stride", "names"),
    [
        (8, 16, 1, ["add", "negate"]),  # the second of the two
        (4, 12, 1, ["concatenate", "add", "slice", "negate"]),
        (0, 16, 2, ["concatenate", "add", "slice", "negate"]),
        (8, 12, 1, ["concatenate", "add", "slice", "negate"]),
    ],
)
def test_a_part_of_what_is_concatenated_is_read_itself(
    begin: int, end: int, stride: int, names: list[str]
) -> None:
    """With nothing in front, as scans put what they unroll behind what is left over."""
    two, part = "tensor<16x16xf32>", f"tensor<{(end - begin) // stride}x16xf32>"
    found, listing = _read_names(
        f"""%e = stablehlo.constant dense<0.0> : tensor<0x16xf32>
        %c = stablehlo.concatenate %a, %b, dim = 0 : ({T}, {T}) -> {two}
        %n = stablehlo.concatenate %e, %c, dim = 0 : (tensor<0x16xf32>, {two}) -> {two}
        %s = stablehlo.add %a, %b : {T}
        %p = stablehlo.slice %n [{begin}:{end}:{stride}, 0:16] : ({two}) -> {part}
        %r = stablehlo.negate %p : {part}
        return %s, %r : {T}, {part}""",
        f"%a: {T}, %b: {T}",
        f"{T}, {part}",
    )
    assert found == names
    if "slice" not in names:
        assert listing.ops[-1].operands == (listing.arguments[1].value,)


def test_an_argument_is_sliced_once() -> None:
    """Other slices of it stay, as do those with a sharding of the user's."""
    one, row = "tensor<1x16xf32>", "tensor<16xf32>"
    split = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}'
    found, listing = _read_names(
        f"""%0 = stablehlo.slice %a [3:4, 0:16] : ({T}) -> {one}
        %1 = stablehlo.reshape %0 : ({one}) -> {row}
        %2 = stablehlo.slice %a [4:5, 0:16] : ({T}) -> {one}
        %3 = stablehlo.slice %a [3:4, 0:16] : ({T}) -> {one}
        %4 = stablehlo.reshape %3 : ({one}) -> {row}
        %5 = stablehlo.slice %a [3:4, 0:16] {split} : ({T}) -> {one}
        return %1, %2, %4, %5 : {row}, {one}, {row}, {one}""",
        f"%a: {T}",
        f"{row}, {one}, {row}, {one}",
    )
    assert found == ["slice", "reshape", "slice", "slice"]
    first, _, third, _ = (result.value for result in listing.results)
    assert first == third


DOT = f"contracting_dims = [0] x [0] : ({T}, {T}) -> tensor<16x16xf32>"
M = "tensor<16x16xf32>"


def asked(*axes: str) -> str:
    """A sharding that the user gives."""
    dims = ", ".join(f"{{{axis}}}" for axis in axes)
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{dims}]>]>}}"


def left_of(body: str, result: str = M, count: int = 1) -> Listing:
    """What is planned of a body that returns so many of %r0, %r1, ..."""
    types = ", ".join([result] * count)
    names = ", ".join(f"%r{n}" for n in range(count))
    source = source_of(main_of(f"{body}\nreturn {names} : {types}", f"%a: {T}, %b: {T}", types))
    listing, _ = read(source, resolve_mesh(source, None), drops_dead=True)
    return listing


def names_of(listing: Listing) -> list[str]:
    return [op.name.removeprefix("stablehlo.") for op in listing.ops]


def test_products_are_computed_once_and_what_reads_them() -> None:
    """Equal work in front of them stays apart."""
    body = [
        f"""%w{n} = stablehlo.abs %a : {T}
        %d{n} = stablehlo.dot_general %w{n}, %b, {DOT}
        %t{n} = stablehlo.tanh %d{n} : {M}
        %s{n} = stablehlo.reduce(%t{n} init: %z) applies stablehlo.add across dimensions = [1] : ({M}, tensor<f32>) -> tensor<16xf32>
        %e{n} = stablehlo.exponential %s{n} : tensor<16xf32>
        %r{n} = stablehlo.broadcast_in_dim %e{n}, dims = [0] : (tensor<16xf32>) -> {M}"""
        for n in range(2)
    ]
    zero = "%z = stablehlo.constant dense<0.0> : tensor<f32>"
    alone = f"%x = stablehlo.sine %w1 : {T}\n%r2 = stablehlo.dot_general %a, %x, {DOT}"
    listing = left_of("\n".join([zero, *body, alone]), count=3)
    once = ["abs", "dot_general", "tanh", "reduce", "exponential", "broadcast_in_dim"]
    assert names_of(listing) == ["constant", *once, "abs", "sine", "dot_general"]
    first, second, _ = listing.results
    assert first.value == second.value


@pytest.mark.parametrize(
    "other", [f"%b, %a, {DOT}", f"%a, %b, {DOT.replace(' :', ', precision = [HIGH, HIGH] :')}"]
)
def test_products_that_differ_are_computed_each(other: str) -> None:
    text = f"%r0 = stablehlo.dot_general %a, %b, {DOT}\n%r1 = stablehlo.dot_general {other}"
    assert names_of(left_of(text, count=2)).count("dot_general") == 2


@pytest.mark.parametrize(
    ("one", "other", "is_once"),
    [
        ("%p, %q", "%p, %q", True),
        ("%p, %q", "%q, %p", False),
    ],
)
@pytest.mark.parametrize(("name", "commutes"), [("subtract", False), ("add", True), ("maximum", True)])
def test_reductions_are_one_where_their_bodies_are(
    name: str, one: str, other: str, *, commutes: bool, is_once: bool
) -> None:
    """In the order in which they read their arguments, where that counts."""
    reductions = [
        f"""%s{n} = "stablehlo.reduce"(%d{n}, %z) <{{dimensions = array<i64: 1>}}> ({{
          ^bb0(%p: tensor<f32>, %q: tensor<f32>):
            %o = stablehlo.{name} {read} : tensor<f32>
            stablehlo.return %o : tensor<f32>
        }}) : ({M}, tensor<f32>) -> tensor<16xf32>
        %r{n} = stablehlo.broadcast_in_dim %s{n}, dims = [0] : (tensor<16xf32>) -> {M}"""
        for n, read in enumerate((one, other))
    ]
    products = [f"%d{n} = stablehlo.dot_general %a, %b, {DOT}" for n in range(2)]
    zero = "%z = stablehlo.constant dense<0.0> : tensor<f32>"
    names = names_of(left_of("\n".join([zero, *products, *reductions]), count=2))
    assert names.count("dot_general") == 1
    assert (names.count("reduce") == 1) == (is_once or commutes)


@pytest.mark.parametrize("direction", ["EQ", "NE"])
def test_and_what_those_say(direction: str) -> None:
    bools = "tensor<16x16xi1>"
    text = f"""%z = stablehlo.constant dense<false> : tensor<i1>
      %f = stablehlo.constant dense<0.0> : {M}"""
    for n, said in enumerate(("EQ", direction)):
        text += f"""
        %d{n} = stablehlo.dot_general %a, %b, {DOT}
        %b{n} = stablehlo.compare GT, %d{n}, %f : ({M}, {M}) -> {bools}
        %s{n} = "stablehlo.reduce"(%b{n}, %z) <{{dimensions = array<i64: 1>}}> ({{
          ^bb0(%p: tensor<i1>, %q: tensor<i1>):
            %o = stablehlo.compare {said}, %p, %q : (tensor<i1>, tensor<i1>) -> tensor<i1>
            stablehlo.return %o : tensor<i1>
        }}) : ({bools}, tensor<i1>) -> tensor<16xi1>
        %c{n} = stablehlo.convert %s{n} : (tensor<16xi1>) -> tensor<16xf32>
        %r{n} = stablehlo.broadcast_in_dim %c{n}, dims = [0] : (tensor<16xf32>) -> {M}"""
    assert names_of(left_of(text, count=2)).count("reduce") == (1 if direction == "EQ" else 2)


def test_what_is_sorted_otherwise_is_sorted_each() -> None:
    text = ""
    for n, order in enumerate(("LT", "GT")):
        text += f"""
        %d{n} = stablehlo.dot_general %a, %b, {DOT}
        %r{n} = "stablehlo.sort"(%d{n}) <{{dimension = 1 : i64}}> ({{
          ^bb0(%p: tensor<f32>, %q: tensor<f32>):
            %o = stablehlo.compare {order}, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %o : tensor<i1>
        }}) : ({M}) -> {M}"""
    assert names_of(left_of(text, count=2)) == ["dot_general", "sort", "sort"]


def test_convolutions_are_computed_once() -> None:
    image, kernel = "tensor<1x8x16x1xf32>", "tensor<1x1x1x1xf32>"
    text = f"%i = stablehlo.reshape %a : ({T}) -> {image}\n%k = stablehlo.constant dense<2.0> : {kernel}"
    for n in range(2):
        text += f"""
        %c{n} = stablehlo.convolution(%i, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{}}
          {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({image}, {kernel}) -> {image}
        %r{n} = stablehlo.reshape %c{n} : ({image}) -> {T}"""
    assert names_of(left_of(text, T, 2)).count("convolution") == 1


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [("", asked('"x"', ""), 1), (asked('"x"', ""), "", 1), (asked('"x"', ""), asked("", '"x"'), 2)],
)
def test_one_product_has_what_is_asked_of_either(one: str, other: str, count: int) -> None:
    """Also when what is written, where results lie as they were asked to, is read again; two that are asked for otherwise stay apart."""
    products = [
        f"%r{n} = stablehlo.dot_general %a, %b, {DOT.replace(' :', f' {said} :')}"
        for n, said in enumerate((one, other))
    ]
    listing = left_of("\n".join(products), count=2)
    assert names_of(listing) == ["dot_general"] * count
    assert all(op.demand is not None for op in listing.ops)


def test_what_is_in_a_group_stays_apart() -> None:
    text = f"%r0 = stablehlo.dot_general %a, %b, {DOT}\n%r1 = stablehlo.dot_general %a, %b, {DOT}"
    text += f"\nsdy.sharding_group %r1 group_id=0 : {M}"
    assert names_of(left_of(text, count=2)).count("dot_general") == 2


def test_in_loops_too() -> None:
    """But what a loop computes in each trip is not what is in front of it."""
    text = f"""%d = stablehlo.dot_general %a, %b, {DOT}
      {
        counted_loop(
            3,
            (("%m", "%d", M),),
            f'''
        %p = stablehlo.dot_general %a, %b, {DOT}
        %q = stablehlo.dot_general %a, %b, {DOT}
        %n = stablehlo.add %p, %q : {M}
        %o = stablehlo.add %m, %n : {M}''',
            ("%o",),
        )
    }
      %r0 = stablehlo.add %d, %r#1 : {M}"""
    assert names_of(left_of(text)).count("dot_general") == 2


def test_what_may_differ_each_time_is_computed_again() -> None:
    """Of barriers, which say that it is, and of calls that may do something else each time."""
    dot = f"stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] : ({T}, {T}) -> tensor<16x16xf32>"
    text = "\n".join(
        f"""%d{n} = {dot}
        %b{n} = stablehlo.optimization_barrier %d{n} : tensor<16x16xf32>
        %c{n} = stablehlo.custom_call @f(%d{n}) : (tensor<16x16xf32>) -> tensor<16x16xf32>"""
        for n in range(2)
    )
    names = ", ".join(["%b0", "%b1", "%c0", "%c1"])
    types = ", ".join(["tensor<16x16xf32>"] * 4)
    source = source_of(main_of(f"{text}\nreturn {names} : {types}", f"%a: {T}", types))
    listing, _ = read(source, resolve_mesh(source, None), drops_dead=True)
    assert [op.name for op in listing.ops].count("stablehlo.dot_general") == 1
    assert len({result.value for result in listing.results}) == 4


@pytest.mark.parametrize(
    ("before", "between", "left"),
    [
        ("stablehlo.reshape %a : (tensor<8x16xf32>) -> {}", "tensor<1x8x16xf32>", ["sine"]),
        (
            "stablehlo.broadcast_in_dim %a, dims = [1, 2] : (tensor<8x16xf32>) -> {}",
            "tensor<1x8x16xf32>",
            ["sine"],
        ),
        (
            "stablehlo.broadcast_in_dim %a, dims = [2, 1] : (tensor<8x16xf32>) -> {}",
            "tensor<1x16x8xf32>",
            ["broadcast_in_dim", "reshape", "sine"],
        ),
        (
            "stablehlo.reshape %a : (tensor<8x16xf32>) -> {}",
            "tensor<128xf32>",
            ["reshape", "reshape", "sine"],
        ),
    ],
)
def test_what_is_given_a_dimension_and_back_is_read_itself(
    before: str, between: str, left: list[str]
) -> None:
    text = f"""%m = {before.format(between)}
        %n = stablehlo.reshape %m : ({between}) -> {T}
        %r = stablehlo.sine %n : {T}
        return %r : {T}"""
    listing, _ = read(source := source_of(main_of(text)), resolve_mesh(source, None), drops_dead=True)
    assert [op.name.removeprefix("stablehlo.") for op in listing.ops] == left
