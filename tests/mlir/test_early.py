"""Weights are updated as soon as what they are updated with is summed."""

import re

import pytest

from autoshard.mlir.early import update_early
from autoshard.mlir.read import read
from autoshard.mlir.source import resolve_mesh
from autoshard.xla.places import places_before
from tests.mlir.modules import source_of

LARGE, SMALL = "tensor<8192x8192xf32>", "tensor<64x64xf32>"  # 256 MiB, 16 KiB
STEP = """module {{
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w0: {t} {{tf.aliasing_output = 0 : i32}}, %w1: {t} {{tf.aliasing_output = 1 : i32}}, %x: {t}) -> ({t}, {t}) {{
    %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}
    %g1 = stablehlo.dot_general %h, %x, contracting_dims = [0] x [0] : ({t}, {t}) -> {t}
    %d = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [1] : ({t}, {t}) -> {t}
    %g0 = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : ({t}, {t}) -> {t}
    {scale}
    %s1 = stablehlo.multiply %g1, %k : {t}
    %s0 = stablehlo.multiply %g0, %k : {t}
    %n1 = stablehlo.subtract %w1, %s1 : {t}
    %n0 = stablehlo.subtract %w0, %s0 : {t}
    return %n0, %n1 : {t}, {t}
  }}
}}"""
RATE = "%c = stablehlo.constant dense<1.0> : {t}\n    %k = stablehlo.sine %c : {t}"
OF_ALL = "%both = stablehlo.add %g0, %g1 : {t}\n    %k = stablehlo.sine %both : {t}"


def order(text: str, *, early: bool = True) -> list[str]:
    source = source_of(text)
    listing, _ = read(source, resolve_mesh(source, None), updates_early=early)
    return [op.name.removeprefix("stablehlo.") for op in listing.ops]


PRODUCT = "dot_general"


def test_an_update_follows_the_sum_of_its_gradient() -> None:
    """As soon as the weight is no longer read: behind the product that reads it last, in front of the next one."""
    text = STEP.format(t=LARGE, scale=RATE.format(t=LARGE))
    assert order(text) == [
        *[PRODUCT] * 2,
        *("constant", "sine", "multiply"),
        *(PRODUCT, "subtract"),
        *(PRODUCT, "multiply", "subtract"),
    ]
    assert order(text, early=False) == [
        *[PRODUCT] * 4,
        "constant",
        "sine",
        *["multiply"] * 2,
        *["subtract"] * 2,
    ]


@pytest.mark.parametrize(
    ("type_", "scale"), [(SMALL, RATE), (LARGE, OF_ALL)], ids=["summed together", "read together"]
)
def test_updates_wait_for_all_gradients(type_: str, scale: str) -> None:
    """Where few bytes are summed at once, and where an update reads all of them."""
    text = STEP.format(t=type_, scale=scale.format(t=type_))
    assert order(text) == order(text, early=False)


def test_the_order_stays_when_it_is_read_again() -> None:
    """A moved update is where it would be moved to, and each op is found again in the module that it comes from."""
    text = STEP.format(t=LARGE, scale=RATE.format(t=LARGE))
    source = source_of(text)
    _, handles = read(source, resolve_mesh(source, None), updates_early=True)
    moved = source_of(str(handles.walked.module))
    assert order(str(handles.walked.module)) == order(text)
    places = places_before(moved, source)
    assert len(places) == 9
    assert all(new.split()[0] == old.split()[0] for new, old in places.items())


def test_work_that_others_read_stays() -> None:
    """What a loop or a product reads is made where the program makes it."""
    text = STEP.format(t=LARGE, scale=RATE.format(t=LARGE)).replace(
        "return %n0",
        f"%p = stablehlo.dot_general %n1, %n0, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}\n    return %p",
    )
    assert order(text) == order(text, early=False)


FEW = "tensor<f32>"
ROWS = "tensor<8192x64xf32>"


def test_the_gradient_of_a_bias_is_no_update() -> None:
    """It is a sum of what goes back, 2 MB, which counts for nothing in what is summed together; what it is of is read by products too."""
    row = "tensor<64xf32>"
    update = """%m{n} = stablehlo.multiply %{g}, %k{n} : {t}
    %u{n} = stablehlo.subtract %{w}, %m{n} : {t}"""
    text = f"""module {{
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w: {SMALL}, %v: {SMALL}, %b: {row}, %x: {ROWS}, %k0: {row}, %k1: {SMALL}, %k2: {SMALL}) -> ({row}, {SMALL}, {SMALL}) {{
    %zero = stablehlo.constant dense<0.0> : {FEW}
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({ROWS}, {SMALL}) -> {ROWS}
    %d = stablehlo.dot_general %y, %v, contracting_dims = [1] x [1] : ({ROWS}, {SMALL}) -> {ROWS}
    %e = stablehlo.negate %d : {ROWS}
    %gb = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0] : ({ROWS}, {FEW}) -> {row}
    %gv = stablehlo.dot_general %y, %d, contracting_dims = [0] x [0] : ({ROWS}, {ROWS}) -> {SMALL}
    %gw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : ({ROWS}, {ROWS}) -> {SMALL}
    {update.format(n=0, g="gb", w="b", t=row)}
    {update.format(n=1, g="gv", w="v", t=SMALL)}
    {update.format(n=2, g="gw", w="w", t=SMALL)}
    return %u0, %u1, %u2 : {row}, {SMALL}, {SMALL}
  }}
}}"""
    assert order(text) == order(text, early=False)


def test_what_others_read_too_is_summed_at_once() -> None:
    """A running mean is updated when the mean is there, not with the gradients."""
    row = "tensor<64xf32>"
    text = f"""module {{
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w: {SMALL}, %old: {row}, %x: {ROWS}) -> ({row}, {SMALL}) {{
    %zero = stablehlo.constant dense<0.0> : {FEW}
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({ROWS}, {SMALL}) -> {ROWS}
    %mean = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : ({ROWS}, {FEW}) -> {row}
    %means = stablehlo.broadcast_in_dim %mean, dims = [1] : ({row}) -> {ROWS}
    %d = stablehlo.subtract %y, %means : {ROWS}
    %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : ({ROWS}, {ROWS}) -> {SMALL}
    %new = stablehlo.maximum %old, %mean : {row}
    %u = stablehlo.subtract %w, %g : {SMALL}
    return %new, %u : {row}, {SMALL}
  }}
}}"""
    names = order(text)
    assert names.index("maximum") < names.index("subtract")
    assert names[-1] == "subtract"


def test_many_updates_by_one_value_are_ordered_in_time() -> None:
    """Each asks who reads the rate that all of them read, which is answered once: two thousand weights."""
    count, scale = 2000, "tensor<f32>"
    given = ", ".join(f"%w{n}: {scale}" for n in range(count))
    updates = "\n".join(
        f"%m{n} = stablehlo.multiply %w{n}, %rate : {scale}\n%u{n} = stablehlo.subtract %w{n}, %m{n} : {scale}"
        for n in range(count)
    )
    text = f"""module {{
  sdy.mesh @mesh = <["x"=4]>
  func.func @main({given}, %a: tensor<64xf32>) -> ({", ".join([scale] * count)}) {{
    %rate = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] : (tensor<64xf32>, tensor<64xf32>) -> {scale}
    {updates}
    return {", ".join(f"%u{n}" for n in range(count))} : {", ".join([scale] * count)}
  }}
}}"""
    assert order(text) == [PRODUCT, *["multiply", "subtract"] * count]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            f"""%p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
            %zero = stablehlo.constant dense<0.0> : {FEW}
            %q = stablehlo.dot_general %p, %x, contracting_dims = [0, 1] x [0, 1] : ({LARGE}, {LARGE}) -> {FEW}
            %r = stablehlo.reduce(%p init: %zero) across dimensions = [0, 1] : ({LARGE}, {FEW}) -> {FEW}
              reducer(%a: {FEW}, %b: {FEW}) {{
                %s = stablehlo.add %a, %b : {FEW}
                %t = stablehlo.minimum %s, %q : {FEW}
                stablehlo.return %t : {FEW}
              }}
            return %r, %w : {FEW}, {LARGE}""",
            id="read inside",
        ),
        pytest.param(
            f"""%one = stablehlo.constant dense<1.0> : {FEW}
            %g = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
            %count = stablehlo.add %k, %one : {FEW}
            %n = stablehlo.subtract %w, %g : {LARGE}
            return %count, %n : {FEW}, {LARGE}""",
            id="of arguments only",
        ),
        pytest.param(
            f"""%h = sdy.sharding_constraint %w <@mesh, [{{}}, {{}}]> : {LARGE}
            %p = stablehlo.dot_general %x, %h, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
            %g = stablehlo.dot_general %x, %p, contracting_dims = [0] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
            %d = stablehlo.dot_general %p, %h, contracting_dims = [1] x [1] : ({LARGE}, {LARGE}) -> {LARGE}
            %e = stablehlo.dot_general %d, %g, contracting_dims = [1] x [1] : ({LARGE}, {LARGE}) -> {LARGE}
            %c = stablehlo.dot_general %e, %g, contracting_dims = [0, 1] x [0, 1] : ({LARGE}, {LARGE}) -> {FEW}
            %n = stablehlo.subtract %w, %g : {LARGE}
            return %c, %n : {FEW}, {LARGE}""",
            id="resharded",
        ),
    ],
)
def test_the_order_is_sound_and_stays(body: str) -> None:
    """Each op has what it reads in front of it, and reading the module again changes nothing, whatever is sharded otherwise."""
    text = f"""module {{ sdy.mesh @mesh = <["x"=4]>
    func.func @main(%w: {LARGE}, %x: {LARGE}, %k: {FEW}) -> ({FEW}, {LARGE}) {{ {body} }} }}"""
    source = source_of(text)
    module = source.module.operation.clone().operation
    update_early(module, source.main)
    assert module.verify()
    moved = str(module)
    update_early(module, source.main)
    assert str(module) == moved
    bare = re.sub(r"%h = .*", "", text).replace("%h", "%w")
    assert [name for name in order(text) if "sharding" not in name] == order(bare)


def test_what_all_read_is_no_gradient() -> None:
    """A broadcast that products read too is not what updates wait for: the order is that of a module with one for each reader."""
    broadcast = """%{name}c = stablehlo.constant dense<1.0> : tensor<f32>
    %{name} = stablehlo.broadcast_in_dim %{name}c, dims = [] : (tensor<f32>) -> {t}
    """
    decayed = STEP.replace(
        "%n0 = stablehlo.subtract %w0",
        "%v0 = stablehlo.multiply %w0, %k : {t}\n    %n0 = stablehlo.subtract %v0",
    )
    first, other = (broadcast.format(name=name, t=LARGE) for name in ("k", "l"))
    shared = decayed.format(t=LARGE, scale="").replace("%h, %x", "%h, %k").replace("%h =", f"{first}%h =")
    apart = (
        shared.replace("%s1 =", f"{other}%s1 =")
        .replace("%g1, %k", "%g1, %l")
        .replace("%g0, %k", "%g0, %l")
        .replace("%w0, %k", "%w0, %l")
    )
    made_anew = ("broadcast_in_dim", "constant")
    found, expected = ([name for name in order(text) if name not in made_anew] for text in (shared, apart))
    assert found == expected
    assert found.index("multiply") == 2


def test_moved_ops_of_one_name_are_found_again() -> None:
    """Also where the names alone say that nothing was moved."""
    source = source_of(f"""module {{ sdy.mesh @mesh = <["x"=4]>
    func.func @main(%w: {LARGE}, %x: {LARGE}) -> ({LARGE}, {LARGE}) {{
      %g = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
      %y = stablehlo.sine %x : {LARGE}
      %n = stablehlo.sine %g : {LARGE}
      %p = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
      return %n, %p : {LARGE}, {LARGE} }} }}""")
    _, handles = read(source, resolve_mesh(source, None), updates_early=True)
    places = places_before(source_of(str(handles.walked.module)), source)
    assert [place.split(":")[-1] for place in places.values()] == ["3", "5", "4", "6"]
