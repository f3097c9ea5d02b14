"""Constraints as jax's explicit sharding mode writes them: which say nothing that the op before them does not say."""

import pytest

from autoshard import pipeline
from autoshard.mlir.forms import Form
from autoshard.mlir.listing import Listing
from autoshard.mlir.passes import propagation
from tests.mlir.modules import counted_loop, listed, main_of, read_text, sharding
from tests.sdy.constructs import on

T = "tensor<8x16xf32>"
ROWS, COLUMNS = '[{"x"}, {}]', '[{}, {"y"}]'
KNOWN = f"%a: {T}{on(f'@mesh, {ROWS}')}"


def constraint(value: str, of: str, asked: str = ROWS, type_: str = T) -> str:
    return f"{value} = sdy.sharding_constraint {of} <@mesh, {asked}> : {type_}\n"


def read(body: str, arguments: str = KNOWN, results: str = T) -> Listing:
    return listed(main_of(body, arguments, results))


def names(listing: Listing) -> list[str]:
    return [op.name.partition(".")[2] for op in listing.ops]


def demanded(listing: Listing) -> dict[str, str]:
    return {op.name.partition(".")[2]: str(op.demand) for op in listing.ops if op.demand is not None}


CHAIN = f"""%0 = stablehlo.tanh %a : {T}
{constraint("%1", "%0")}
%2 = stablehlo.multiply %1, %a : {T}
{constraint("%3", "%2")}
return %3 : {T}"""


def test_a_chain_is_annotated() -> None:
    found = read(CHAIN)
    assert names(found) == ["tanh", "multiply"]
    assert demanded(found) == {"tanh": ROWS, "multiply": ROWS}


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [(f"%a: {T}", 2), (f"%a: {T}{on(f'@mesh, {COLUMNS}')}", 2), (KNOWN, 0)],
    ids=["unknown", "moved", "known"],
)
def test_only_what_moves_nothing(arguments: str, kept: int) -> None:
    """An operand of which nothing is said, or something else, leaves the constraint a choice or a reshard of its own."""
    assert names(read(CHAIN, arguments)).count("sharding_constraint") == kept


def test_another_reader_keeps_it() -> None:
    """Who reads the value without the constraint may read it in any sharding."""
    body = f"%0 = stablehlo.tanh %a : {T}\n{constraint('%1', '%0')}%2 = stablehlo.add %0, %1 : {T}\nreturn %2 : {T}"
    assert names(read(body)) == ["tanh", "sharding_constraint", "add"]


def test_a_product_keeps_it() -> None:
    """Its operands do not say how it is split."""
    square = "tensor<16x16xf32>"
    body = f"""%0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {square}) -> {T}
      {constraint("%1", "%0")}
      return %1 : {T}"""
    assert "sharding_constraint" in names(read(body, f"{KNOWN}, %w: {square}"))


def test_sums_that_meet_are_annotated() -> None:
    """XLA may sum what two products leave once, after the addition; a constraint between them would be in the way."""
    square = "tensor<16x16xf32>"
    dot = f"stablehlo.dot_general %a, {{}}, contracting_dims = [1] x [0] : ({T}, {square}) -> {T}"
    body = f"""%0 = {dot.format("%v")}
      {constraint("%1", "%0")}
      %2 = {dot.format("%w")}
      {constraint("%3", "%2")}
      %4 = stablehlo.add %1, %3 : {T}
      {constraint("%5", "%4")}
      return %5 : {T}"""
    found = read(body, f"{KNOWN}, %v: {square}, %w: {square}")
    assert names(found) == ["dot_general", "dot_general", "add"]
    assert {str(op.demand) for op in found.ops} == {ROWS}


def test_sums_made_together_keep_theirs() -> None:
    """What is said of one of several results says nothing of the others."""
    row = "tensor<8xf32>"
    body = f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0:2 = stablehlo.reduce(%a init: %zero), (%a init: %zero) across dimensions = [1]
        : ({T}, {T}, tensor<f32>, tensor<f32>) -> ({row}, {row})
      reducer(%p: tensor<f32>, %r: tensor<f32>) (%q: tensor<f32>, %s: tensor<f32>) {{
        %u = stablehlo.add %p, %r : tensor<f32>
        %v = stablehlo.add %q, %s : tensor<f32>
        stablehlo.return %u, %v : tensor<f32>, tensor<f32>
      }}
      {constraint("%1", "%0#1", '[{"x"}]', row)}
      %2 = stablehlo.add %1, %b : {row}
      {constraint("%3", "%2", '[{"x"}]', row)}
      return %3 : {row}"""
    assert names(read(body, f"{KNOWN}, %b: {row}", row)).count("sharding_constraint") == 2


BROADCAST = f"""%row = stablehlo.constant dense<1.0> : tensor<f32>
{constraint("%scalar", "%row", "[]", "tensor<f32>")}
%0 = stablehlo.broadcast_in_dim %scalar, dims = [] : (tensor<f32>) -> {T}
{constraint("%1", "%0")}"""


def test_values_made_where_they_are_read() -> None:
    """A scalar has nothing to split; a broadcast that an op computes with is in no memory."""
    found = read(f"{BROADCAST}\n%2 = stablehlo.add %1, %a : {T}\n{constraint('%3', '%2')}return %3 : {T}")
    assert names(found) == ["constant", "broadcast_in_dim", "add"]
    assert demanded(found) == {"add": ROWS}


def test_what_is_made_of_broadcasts_is_demanded() -> None:
    """An outer sum is as large as what it is read by, and its demand says how that work is split."""
    row, column = "tensor<8xf32>", "tensor<16xf32>"
    body = f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.broadcast_in_dim %a, dims = [0] : ({row}) -> {T}
      {constraint("%1", "%0")}
      %2 = stablehlo.broadcast_in_dim %b, dims = [1] : ({column}) -> {T}
      {constraint("%3", "%2", COLUMNS)}
      %4 = stablehlo.subtract %1, %3 : {T}
      {constraint("%5", "%4", '[{"x"}, {"y"}]')}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.maximum across dimensions = [1] : ({T}, tensor<f32>) -> {row}
      return %6 : {row}"""
    assert demanded(read(body, f"%a: {row}, %b: {column}", row)) == {"subtract": '[{"x"}, {"y"}]'}


def test_a_broadcast_that_is_returned_is_demanded() -> None:
    found = read(f"{BROADCAST}\nreturn %1 : {T}")
    assert demanded(found) == {"broadcast_in_dim": ROWS}


def trips_of(start: str, again: str) -> str:
    """Five of a body whose result a constraint follows."""
    body = f"%0 = stablehlo.tanh %x : {T}\n{constraint('%1', '%0', again)}"
    return counted_loop(5, [("%x", start, T)], body, ["%1"])


def test_loops_carry_what_they_are_handed() -> None:
    """In a loop's body the carried value is known by what the loop starts from."""
    body = f"{trips_of('%a', ROWS)}\nreturn %r#1 : {T}"
    assert demanded(read(body)) == {"tanh": ROWS}


ZEROS = f"""%cst = stablehlo.constant dense<0.0> : tensor<f32>
      %z = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> {T}
      {constraint("%start", "%z")}"""


@pytest.mark.parametrize(
    ("start", "again", "after", "kept"),
    [
        ("%a", ROWS, ROWS, 0),
        ("%start", ROWS, ROWS, 0),
        ("%a", COLUMNS, ROWS, 2),  # split otherwise when a trip is over
        ("%a", ROWS, COLUMNS, 1),  # and when the loop is
        ("%b", ROWS, ROWS, 2),  # and when it begins
    ],
)
def test_what_a_loop_carries_is_annotated(start: str, again: str, after: str, kept: int) -> None:
    """And zeros that it starts from are made anew, as without the constraint on them."""
    body = f"""{ZEROS}
      {trips_of(start, again)}
      {constraint("%2", "%r#1", after)}
      return %2 : {T}"""
    found = read(body, f"{KNOWN}, %b: {T}")
    assert names(found).count("sharding_constraint") == kept
    carried = [str(flow.demand) for flow in found.data_flows if flow.demand is not None]
    assert carried == ([ROWS] if not kept else [])
    assert "broadcast_in_dim" not in demanded(found) or start != "%start"


@pytest.mark.parametrize(
    ("said", "token", "kept"),
    [(None, True, 0), ("[{?}, {?}]", False, 0), (COLUMNS, False, 1), ('[{"x", ?}, {?}]', False, 1)],
)
def test_what_is_said_of_a_loop_stays(said: str | None, token: bool, kept: int) -> None:
    """A demand of the user's is not written over; a token has no sharding."""
    annotated = f"attributes {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {said}>]>}}" if said else ""
    type_, also = (f"{T}, !stablehlo.token", ", %t") if token else (T, "")
    body = f"""%p = stablehlo.constant dense<false> : tensor<i1>
      %s = stablehlo.create_token : !stablehlo.token
      %r{":2" if token else ""} = stablehlo.while(%x = %a{", %t = %s" if token else ""}) : {type_} {annotated}
      cond {{
        stablehlo.return %p : tensor<i1>
      }} do {{
        %0 = stablehlo.tanh %x : {T}
        {constraint("%1", "%0")}
        stablehlo.return %1{also} : {type_}
      }}
      {constraint("%2", "%r#0" if token else "%r")}
      return %2 : {T}"""
    found = read(body)
    assert names(found).count("sharding_constraint") == kept
    demands = [str(flow.demand) for flow in found.data_flows if flow.demand is not None]
    assert demands == [str(sharding(said)) if kept and said else ROWS]


@pytest.mark.parametrize(("before", "kept"), [('[{"x"}, {}]', 0), ('[{}, {"x"}]', 1), ("[{}, {}]", 1)])
def test_transposes_turn_what_is_known(before: str, kept: int) -> None:
    turned = "tensor<16x8xf32>"
    body = f"""%0 = stablehlo.transpose %a, dims = [1, 0] : ({T}) -> {turned}
      {constraint("%1", "%0", '[{}, {"x"}]', turned)}
      return %1 : {turned}"""
    found = read(body, f"%a: {T}{on(f'@mesh, {before}')}", turned)
    assert names(found).count("sharding_constraint") == kept


STACK, ONE = "tensor<4x8x16xf32>", "tensor<1x8x16xf32>"


@pytest.mark.parametrize(("before", "kept"), [('[{}, {"x"}, {}]', 0), ('[{"x"}, {}, {}]', 2)])
def test_what_a_scan_cuts_is_annotated(before: str, kept: int) -> None:
    """A slice of a stack along a dimension that is whole, and the same without it, are split as the stack is."""
    body = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
      %0 = stablehlo.dynamic_slice %s, %i, %zero, %zero, sizes = [1, 8, 16]
        : ({STACK}, tensor<i32>, tensor<i32>, tensor<i32>) -> {ONE}
      {constraint("%1", "%0", '[{}, {"x"}, {}]', ONE)}
      %2 = stablehlo.reshape %1 : ({ONE}) -> {T}
      {constraint("%3", "%2", COLUMNS if kept else ROWS)}
      return %3 : {T}"""
    found = read(body, f"%s: {STACK}{on(f'@mesh, {before}')}, %i: tensor<i32>")
    assert names(found).count("sharding_constraint") == kept


@pytest.mark.parametrize(("update", "kept"), [('[{}, {"x"}, {}]', 0), ('[{}, {}, {"x"}]', 1)])
def test_what_a_scan_stacks_is_annotated(update: str, kept: int) -> None:
    body = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
      %0 = stablehlo.dynamic_update_slice %s, %u, %i, %zero, %zero
        : ({STACK}, {ONE}, tensor<i32>, tensor<i32>, tensor<i32>) -> {STACK}
      {constraint("%1", "%0", '[{}, {"x"}, {}]', STACK)}
      return %1 : {STACK}"""
    rows = on('@mesh, [{}, {"x"}, {}]')
    found = read(body, f"%s: {STACK}{rows}, %u: {ONE}{on(f'@mesh, {update}')}, %i: tensor<i32>", STACK)
    assert names(found).count("sharding_constraint") == kept


def test_partial_sums_stay() -> None:
    """A constraint that also says over what a value is unreduced is read by nobody else's rule."""
    asked = '[{"x"}, {}], unreduced={"y"}'
    body = f"%0 = stablehlo.negate %a : {T}\n{constraint('%1', '%0', asked)}return %1 : {T}"
    found = read(body, f"%a: {T}{on(f'@mesh, {asked}')}")
    assert found.ops[-1].name == "sdy.sharding_constraint"
    assert found.ops[-1].demand == sharding(asked)


@pytest.mark.parametrize("asked", ["", "%n = sdy.sharding_constraint %m <@mesh, [{}]> : tensor<16xi1>"])
def test_a_dropped_constraint_still_tells_apart_what_is_equal(asked: str) -> None:
    """Masks that two layers make alike are one to XLA and carry a sharding from one layer to the other, not from behind a constraint."""
    mask, wide = "tensor<16xi1>", "tensor<8x16xi1>"
    body = f"""%p = stablehlo.iota dim = 0 : tensor<16xi32>
        %q = stablehlo.broadcast_in_dim %at, dims = [] : (tensor<i32>) -> tensor<16xi32>
        %m = stablehlo.compare LE, %p, %q, SIGNED : (tensor<16xi32>, tensor<16xi32>) -> {mask}
        {asked}
        %w = stablehlo.broadcast_in_dim {"%n" if asked else "%m"}, dims = [1] : ({mask}) -> {wide}
        %0 = stablehlo.select %w, %a, %b : {wide}, {T}
        %v = stablehlo.broadcast_in_dim %m, dims = [1] : ({mask}) -> {wide}
        %1 = stablehlo.select %v, %c, %b2 : {wide}, {T}
        return %0, %1 : {T}, {T}"""
    arguments = f"%at: tensor<i32>, {KNOWN}, %b: {T}, %c: {T}, %b2: {T}"
    _, listing, handles = read_text(main_of(body, arguments, f"{T}, {T}"))
    assert "sharding_constraint" not in names(listing)
    found = propagation(handles, listing, as_xla=True).of({})
    first, second = (str(found[op.results[0]]) for op in listing.ops if op.name == "stablehlo.select")
    assert first == ROWS
    assert second == ("[{}, {}]" if asked else ROWS)


def test_dropped_constraints_start_propagation() -> None:
    """Of what is made anew and of what a constraint says already: no ops of the listing, and still where readers' shardings come from."""
    wide = "tensor<8x16xf32>"
    body = f"""%w = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> {wide}
        {constraint("%0", "%w")}
        {constraint("%1", "%0")}
        %2 = stablehlo.multiply %1, %b : {wide}
        %3 = stablehlo.tanh %2 : {wide}
        return %3 : {wide}"""
    _, listing, handles = read_text(main_of(body, f"%s: tensor<f32>, %b: {wide}", wide))
    assert "sharding_constraint" not in names(listing)
    assert str(propagation(handles, listing, as_xla=True).of({})[listing.results[0].value]) == ROWS


@pytest.mark.parametrize("form", ["xla", "shardy", "shardy-collectives"])
def test_nothing_is_written_of_dropped_constraints(form: Form) -> None:
    """Not on what reads them either: loops, branches, manual computations and the ends of their bodies, and what is returned."""

    def confirmed(name: str, read: str, asked: str = ROWS, type_: str = T) -> str:
        made = (
            f"stablehlo.tanh {read} {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {asked}>]>}} : {type_}"
        )
        return f"{name}s = {made}\n{constraint(name, f'{name}s', asked, type_)}"

    block, alike = "tensor<4x16xf32>", "[{}, {}]"
    body = f"""{confirmed("%t", "%a")}
        {counted_loop(3, [("%c", "%t", T)], confirmed("%in", "%c"), ["%in"])}
        %1 = "stablehlo.if"(%p) ({{
          {confirmed("%then", "%t")}
          stablehlo.return %then : {T}
        }}, {{
          stablehlo.return %t : {T}
        }}) : (tensor<i1>) -> {T}
        %2 = sdy.manual_computation(%t) in_shardings=[<@mesh, {ROWS}>] out_shardings=[<@mesh, {ROWS}>]
          manual_axes={{"x"}} (%d: {block}) {{
          {confirmed("%part", "%d", alike, block)}
          sdy.return %part : {block}
        }} : ({T}) -> {T}
        return %t, %r#1, %1, %2 : {T}, {T}, {T}, {T}"""
    text = main_of(body, f"{KNOWN}, %p: tensor<i1>", ", ".join([T] * 4))
    loaded = pipeline.load_module(text.encode(), pipeline.Request(form=form))
    assert "sharding_constraint" not in names(loaded.listing)
    assert "autoshard." not in pipeline.write_planned(loaded, pipeline.plan_loaded(loaded))
