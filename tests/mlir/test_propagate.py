"""Shardy's propagation as seen through the listing's numbers."""

import pytest

from autoshard.mlir.meshes import all_meshes
from autoshard.mlir.passes import propagation
from autoshard.mlir.propagate import Propagation
from autoshard.mlir.signature import set_attributes
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.transposed import transposed_before
from autoshard.mlir.walk import walk
from tests.mlir.modules import main_of, read_text, sharding

T = "tensor<8x16xf32>"


def test_a_batch_sharding_reaches_what_depends_on_it() -> None:
    _, listing, handles = read_text(
        main_of(
            f"""%0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, tensor<16x32xf32>) -> tensor<8x32xf32>
            %1 = chlo.square %0 : tensor<8x32xf32> -> tensor<8x32xf32>
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0]
              : (tensor<8x32xf32>, tensor<f32>) -> tensor<32xf32>
            return %2 : tensor<32xf32>""",
            f"%a: {T}, %w: tensor<16x32xf32>",
            "tensor<32xf32>",
        )
    )
    found = propagation(handles, listing).of({0: sharding('[{"x", "y"}, {}]')})
    by_name = {op.name: str(found[op.results[0]]) for op in listing.ops}
    assert str(found[0]) == '[{"x", "y"}, {}]'
    assert str(found[1]) == "[{}, {}]"
    assert by_name == {
        "stablehlo.dot_general": '[{"x", "y"}, {}]',
        "chlo.square": '[{"x", "y"}, {}]',
        "stablehlo.constant": "[]",
        "stablehlo.reduce": "[{}]",
    }


def test_loops_branches_and_barriers_carry_shardings() -> None:
    _, listing, handles = read_text(
        main_of(
            f"""%zero = stablehlo.constant dense<0> : tensor<i32>
            %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {T}
              cond {{ %go = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %go : tensor<i1> }}
              do {{ %y = stablehlo.tanh %x : {T} stablehlo.return %i, %y : tensor<i32>, {T} }}
            %c = "stablehlo.case"(%zero) ({{ stablehlo.return %r#1 : {T} }}, {{ stablehlo.return %a : {T} }}) : (tensor<i32>) -> {T}
            %b = stablehlo.optimization_barrier %c : {T}
            %n = sdy.named_computation<"f">(%b) (%e: {T}) {{ %f = stablehlo.abs %e : {T} sdy.return %f : {T} }} : ({T}) -> {T}
            return %n : {T}"""
        )
    )
    found = propagation(handles, listing).of({0: sharding('[{"x"}, {"z"}]')})
    ranked = [value for value, of in enumerate(listing.values) if of.type is not None and of.type.rank]
    assert {str(found[value]) for value in ranked} == {'[{"x"}, {"z"}]'}


def test_a_constant_takes_no_side() -> None:
    """Two users of one constant with clashing shardings do not meet through it."""
    _, listing, handles = read_text(
        main_of(
            f"""%z = stablehlo.constant dense<1.0> : {T}
            %0 = stablehlo.add %a, %z : {T}
            %1 = stablehlo.multiply %b, %z : {T}
            return %0, %1 : {T}, {T}""",
            f"%a: {T}, %b: {T}",
            f"{T}, {T}",
        )
    )
    found = propagation(handles, listing).of({0: sharding('[{"x"}, {}]'), 1: sharding('[{}, {"x"}]')})
    assert [str(found[op.results[0]]) for op in listing.ops[1:]] == ['[{"x"}, {}]', '[{}, {"x"}]']


def test_the_users_own_shardings_take_part() -> None:
    _, listing, handles = read_text(
        main_of(
            f'%0 = sdy.sharding_constraint %a <@mesh, [{{"y"}}, {{?}}]> : {T}\n%1 = stablehlo.abs %0 : {T}\nreturn %1 : {T}'
        )
    )
    found = propagation(handles, listing).of({})
    assert str(found[listing.ops[1].results[0]]) == '[{"y"}, {}]'


def test_the_entry_may_have_another_name() -> None:
    text = main_of(f"%0 = stablehlo.abs %a : {T}\nreturn %0 : {T}").replace("@main", "@forward")
    _, listing, handles = read_text(text + "")
    assert str(propagation(handles, listing).of({0: sharding('[{"x"}, {}]')})[1]) == '[{"x"}, {}]'


def test_xla_propagates_through_ops_that_are_equal() -> None:
    """Two masks made of the same argument are one to XLA, so what the one is split over reaches the users of the other."""
    _, listing, handles = read_text(
        main_of(
            f"""%m0 = stablehlo.broadcast_in_dim %p, dims = [1] : (tensor<16xi1>) -> tensor<8x16xi1>
            %0 = stablehlo.select %m0, %a, %a : tensor<8x16xi1>, {T}
            %m1 = stablehlo.broadcast_in_dim %p, dims = [1] : (tensor<16xi1>) -> tensor<8x16xi1>
            %1 = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : ({T}, tensor<16x16xf32>) -> {T}
            %2 = stablehlo.select %m1, %1, %1 : tensor<8x16xi1>, {T}
            return %0, %2 : {T}, {T}""",
            f"%a: {T}, %b: {T}, %w: tensor<16x16xf32>, %p: tensor<16xi1>",
            f"{T}, {T}",
        )
    )
    split = sharding('[{"x"}, {}]')
    walked = walk(handles.walked.module.clone().operation, handles.entry)
    written = Shardings(handles.mesh, all_meshes(walked.module), walked.module.context).attribute(split)
    set_attributes(walked.main, "arg_attrs", [{"sdy.sharding": written}, {}, {}, {}])
    last = listing.ops[-1].results[0]
    apart = Propagation(walked, listing, handles.mesh).of({})
    merged = Propagation(walked, listing, handles.mesh, as_xla=True).of({})
    assert str(apart[last]) == "[{}, {}]"
    assert str(merged[last]) == str(split)
    assert {str(merged[op.results[0]]) for op in listing.ops if op.name == "stablehlo.select"} == {str(split)}
    assert len(merged) == len(apart)


def test_constants_of_complex_numbers_are_left_alone() -> None:
    """MLIR's bindings do not hand out their elements, so equal ones stay two."""
    number = "tensor<8x16xcomplex<f32>>"
    _, listing, handles = read_text(
        main_of(
            f"""%c0 = stablehlo.constant dense<(0.0, 1.0)> : {number}
            %0 = stablehlo.add %a, %c0 : {number}
            %c1 = stablehlo.constant dense<(0.0, 1.0)> : {number}
            %1 = stablehlo.multiply %0, %c1 : {number}
            return %1 : {number}""",
            f"%a: {number}",
            number,
        )
    )
    walked = walk(handles.walked.module.clone().operation, handles.entry)
    set_attributes(walked.main, "arg_attrs", [{}])
    found = Propagation(walked, listing, handles.mesh, as_xla=True).of({})
    assert all(op.results[0] in found for op in listing.ops)


@pytest.mark.parametrize(
    ("asked", "handed_on", "carried"),
    [
        (['[{}, {"x"}]'], "%w", '[{}, {"x"}]'),
        (["[{}, {}]", "[{}, {}]"], "%w", "[{}, {}]"),
        (["[{}, {}]", '[{}, {"x"}]'], "%w", '[{"x", "y"}, {}]'),
        ([], "%w", '[{"x", "y"}, {}]'),
        (["[{}, {}]"], "%c0", '[{"x", "y"}, {}]'),
    ],
)
def test_xla_carries_what_does_not_change_as_all_in_the_loop_ask_for_it(
    asked: list[str], handed_on: str, carried: str
) -> None:
    reads = "".join(
        f"%c{number} = sdy.sharding_constraint %w <@mesh, {one}> : {T}\n%t{number} = stablehlo.tanh %c{number} : {T}\n"
        for number, one in enumerate(asked)
    )
    _, listing, handles = read_text(
        main_of(
            f"""%zero = stablehlo.constant dense<0> : tensor<i32>
            %r:2 = stablehlo.while(%i = %zero, %w = %a) : tensor<i32>, {T}
              cond {{ %go = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %go : tensor<i1> }}
              do {{ {reads} stablehlo.return %i, {handed_on} : tensor<i32>, {T} }}
            return %r#0 : tensor<i32>""",
            results="tensor<i32>",
        )
    )
    found = propagation(handles, listing, as_xla=True).of({0: sharding('[{"x", "y"}, {}]')})
    (flow,) = (flow for flow in listing.data_flows if str(found[flow.target]) != "[]")
    assert str(found[flow.target]) == carried


def test_what_is_made_of_a_transposition_is_what_is_made_before_it() -> None:
    """As XLA has it: constraints on the one are read of the other; a constraint on what is transposed keeps them apart."""
    table, turned = "tensor<64x16xf32>", "tensor<16x64xf32>"
    chain = f"""%0 = stablehlo.tanh %a : {table}
        %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{}}]> : {table}
        %2 = sdy.sharding_constraint %1 <@mesh, [{{}}, {{"x"}}]> : {table}"""
    found: list[str] = []
    for kept in ("", f'%k = sdy.sharding_constraint %a <@mesh, [{{"x"}}, {{}}]> : {table}'):
        _, listing, handles = read_text(
            main_of(
                f"""{chain}
                {kept}
                %t = stablehlo.transpose {"%k" if kept else "%a"}, dims = [1, 0] : ({table}) -> {turned}
                %3 = stablehlo.tanh %t : {turned}
                return %2, %3 : {table}, {turned}""",
                f"%a: {table}",
                f"{table}, {turned}",
            )
        )
        last = listing.ops[-1].results[0]
        assert transposed_before(handles.walked) == ({} if kept else {last: len(listing.ops) - 2})
        found.append(str(propagation(handles, listing, as_xla=True).of({0: sharding('[{"x"}, {}]')})[last]))
    assert found == ['[{"x"}, {}]', '[{}, {"x"}]']


def test_what_is_transposed_twice_and_made_each_time() -> None:
    """The last of the three is the transposition of one that is itself put in terms of the first."""
    _, listing, handles = read_text(
        main_of(
            f"""
            %0 = stablehlo.tanh %a : {T}
            %t = stablehlo.transpose %a, dims = [1, 0] : ({T}) -> tensor<16x8xf32>
            %1 = stablehlo.tanh %t : tensor<16x8xf32>
            %u = stablehlo.transpose %t, dims = [1, 0] : (tensor<16x8xf32>) -> {T}
            %2 = stablehlo.tanh %u : {T}
            return %0, %1, %2 : {T}, tensor<16x8xf32>, {T}""",
            results=f"{T}, tensor<16x8xf32>, {T}",
        )
    )
    found = Propagation(handles.walked, listing, listing.mesh, as_xla=True).of({})
    assert {str(found[result.value]) for result in listing.results} == {"[{}, {}]"}


def twice(value: str) -> str:
    return f"""%c = sdy.sharding_constraint {value} <@mesh, [{{"x"}}, {{}}]> : {T}
      %2 = sdy.sharding_constraint %c <@mesh, [{{}}, {{"x"}}]> : {T}"""


def read_once(value: str) -> str:
    return f"%3 = stablehlo.negate {value} : {T}"


@pytest.mark.parametrize(
    ("lines", "is_redirected"),
    [
        ((twice("%0"), read_once("%0")), True),
        ((read_once("%0"), twice("%0")), False),
        (
            (
                f"%1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{}}]> : {T}",
                twice("%1"),
                read_once("%1"),
            ),
            False,
        ),
    ],
    ids=["behind a chain", "before it", "behind a constraint of its own"],
)
def test_readers_that_shardys_passes_redirect(lines: tuple[str, ...], is_redirected: bool) -> None:
    text = "\n".join((f"%0 = stablehlo.abs %a : {T}", *lines, f"return %2, %3 : {T}, {T}"))
    _, listing, handles = read_text(main_of(text, f"%a: {T}", f"{T}, {T}"))
    walked = walk(handles.walked.module.clone().operation, handles.entry)
    found = Propagation(walked, listing, handles.mesh, as_xla=True).with_redirected()
    assert found.redirected == ({listing.ops[0].results[0]} if is_redirected else frozenset())
    assert found.shardings.keys() == {n for n, value in enumerate(listing.values) if value.type is not None}
