"""Plans written back: every form is valid, says what the plan says, and keeps what the user wrote."""

import io
import random

import pytest

from autoshard.mlir.context import ir
from autoshard.mlir.decisions import Decisions
from autoshard.mlir.forms import Form
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.listing import RESULT_SITE, Listing
from autoshard.mlir.passes import collectives, propagation
from autoshard.mlir.propagate import Propagation
from autoshard.mlir.read import Handles, read
from autoshard.mlir.source import SourceModule, load, resolve_mesh
from autoshard.mlir.walk import walk
from autoshard.mlir.write import write
from autoshard.sharding import TensorSharding
from tests import programs
from tests.mlir.modules import MESH, main_of, read_text, sharding
from tests.mlir.random_plan import random_decisions, random_sharding

T = "tensor<8x16xf32>"
INSERT = "sdy-close-shardings,func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
LOOP = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {T}
      cond {{ %ten = stablehlo.constant dense<10> : tensor<i32>
        %go = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1> }}
      do {{ %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        %b = stablehlo.tanh %x : {T}
        %c = stablehlo.add %b, %a : {T}
        stablehlo.return %j, %c : tensor<i32>, {T} }}
    %p = stablehlo.compare LT, %zero, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %s = "stablehlo.if"(%p) ({{ stablehlo.return %r#1 : {T} }}, {{ %d = stablehlo.abs %a : {T} stablehlo.return %d : {T} }})
      : (tensor<i1>) -> {T}
    %e = stablehlo.optimization_barrier %s : {T}
    return %e : {T}"""
ODDITIES = f"""%t = stablehlo.create_token : !stablehlo.token
    %n = sdy.named_computation<"f">(%a) in_shardings=[<@mesh, [{{?}}, {{?}}]>] out_shardings=[<@mesh, [{{?}}, {{?}}]>] (%b: {T}) {{
      %1 = stablehlo.abs %b : {T}
      sdy.return %1 : {T}
    }} : ({T}) -> {T}
    %o:2 = stablehlo.optimization_barrier %n, %t : {T}, !stablehlo.token
    %c = sdy.sharding_constraint %o#0 <@mesh, [{{?}}, {{?}}]> : {T}
    %r = sdy.reshard %c <@mesh, [{{?}}, {{?}}]> : {T}
    %v, %i = chlo.top_k(%r, k = 16) : {T} -> ({T}, tensor<8x16xi32>)
    %d = "stablehlo.custom_call"(%v) {{call_target_name = "mine"}} : ({T}) -> {T}
    return %d : {T}"""
PROGRAMS = {
    "loop": lambda: main_of(LOOP),
    "oddities": lambda: main_of(ODDITIES),
    "mlp": programs.mlp_train,
    "convnet": programs.convnet_train,
    "scan": programs.transformer_train_scan,
    "experts": programs.moe_sorted_train,
    "decode": programs.decode_step,
}
AXES = [(axis.name, axis.size) for axis in MESH.axes]


def count_after_insertion(written: str) -> int:
    """Reshards that there are once Shardy's pass has made every implicit one explicit."""
    source = load(written.encode())
    _, handles = read(source, resolve_mesh(source, None))
    return str(run_isolated(handles.walked.module, INSERT)).count("sdy.reshard ")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", [0, 1])
def test_shardys_pass_adds_no_reshard_to_the_shardy_form(name: str, seed: int) -> None:
    source, listing, handles = read_text(PROGRAMS[name](), AXES)
    written = write(source, handles, listing, random_decisions(listing, seed), "shardy")
    assert written.count("sdy.reshard ") == count_after_insertion(written) > 0


@pytest.mark.parametrize("name", ["loop", "mlp", "scan"])
@pytest.mark.parametrize("constraints", ["minimal", "all"])
def test_the_xla_form_propagates_to_the_plan(name: str, constraints: str) -> None:
    """Values without a reshard of their own are propagated, or constrained, to what the plan says."""
    source, listing, handles = read_text(PROGRAMS[name](), AXES)
    plan = random_decisions(listing, 3, with_copies=False)
    written = write(source, handles, listing, plan, "xla", constraints=constraints)  # type: ignore[arg-type]
    assert "sdy.reshard" not in written
    assert "sharding_per_value" not in written
    found = seen_by_users(written)
    assert found
    wanted = wanted_by_users(listing, plan)
    assert found == wanted


@pytest.mark.parametrize(("name", "seed"), [("scan", 1), ("loop", 1)])
def test_no_reader_reads_what_a_constraint_brings_another(name: str, seed: int) -> None:
    """Shardy's passes would have the others of what the scan carries read that constraint, with seed 1."""
    source, listing, handles = read_text(PROGRAMS[name](), AXES)
    written = write(source, handles, listing, random_decisions(listing, seed, with_copies=False), "xla")
    _, listing, handles = read_text(written)
    walked = walk(handles.walked.module.clone().operation, handles.entry)
    assert not Propagation(walked, listing, handles.mesh, as_xla=True).with_redirected().redirected


def seen_by_users(written: str) -> list[str]:
    """Sharding of the ranked operands of each elementwise op and dot, in order, after propagation."""
    source = load(written.encode())
    listing, handles = read(source, resolve_mesh(source, None))
    found = propagation(handles, listing).of({})
    return [
        str(found[op.operands[0]])
        for op in listing.ops
        if op.name in ("stablehlo.tanh", "stablehlo.dot_general", "stablehlo.convolution")
    ]


def wanted_by_users(listing: Listing, plan: Decisions) -> list[str]:
    return [
        str(plan.uses[index, 0])
        for index, op in enumerate(listing.ops)
        if op.name in ("stablehlo.tanh", "stablehlo.dot_general", "stablehlo.convolution")
    ]


def chain(*, uses: dict[tuple[int, int], str], **kinds: str) -> str:
    """The shardy form of `abs` used by three ops, planned as told; `[{}, {}]` where not."""
    source, listing, handles = read_text(
        main_of(
            f"""%0 = stablehlo.abs %a : {T}
            %1 = stablehlo.tanh %0 : {T}
            %2 = stablehlo.negate %0 : {T}
            %3 = stablehlo.sine %0 : {T}
            return %1, %2, %3 : {T}, {T}, {T}""",
            results=f"{T}, {T}, {T}",
        )
    )
    whole = TensorSharding.replicated_closed(2)
    produced = dict.fromkeys(range(len(listing.values)), whole)
    value = listing.ops[0].results[0]
    settled = {**produced, value: sharding(kinds.get("settled", "[{}, {}]"))}
    shared = {value: sharding(kinds["shared"])} if "shared" in kinds else {}
    named = {site: sharding(text) for site, text in uses.items()}
    for (op, _), wanted in named.items():
        produced[listing.ops[op].results[0]] = settled[listing.ops[op].results[0]] = wanted
    for index, result in enumerate(listing.results):
        named[RESULT_SITE, index] = settled[result.value]
    return write(source, handles, listing, Decisions(produced, settled, shared, named), "shardy")


def operands(written: str) -> list[str]:
    """`op(operand's op)` of each op in main, in order."""
    source = load(written.encode())
    main = source.module.body.operations[1]
    ops = [view.operation for view in main.operation.regions[0].blocks[0].operations]
    names = {result: f"{op.name.split('.')[1]}{i}" for i, op in enumerate(ops) for result in op.results}
    return [
        f"{op.name.split('.')[1]}({names.get(op.operands[0], 'arg')})"
        for op in ops
        if op.name != "func.return"
    ]


class TestVersions:
    def test_users_of_the_settled_value_take_it_as_it_is(self) -> None:
        assert operands(chain(uses={})) == ["abs(arg)", "tanh(abs0)", "negate(abs0)", "sine(abs0)"]

    def test_equal_wishes_share_one_reshard_before_the_first(self) -> None:
        written = chain(uses={(1, 0): '[{"x"}, {}]', (2, 0): "[{}, {}]", (3, 0): '[{"x"}, {}]'})
        assert operands(written) == [
            "abs(arg)",
            "reshard(abs0)",
            "tanh(reshard1)",
            "negate(abs0)",
            "sine(reshard1)",
        ]

    def test_a_settled_value_is_resharded_right_after_its_op(self) -> None:
        """The reduce-scatter case: nobody else reads what the op makes."""
        written = chain(
            settled='[{"x"}, {}]', uses={(1, 0): '[{"x"}, {}]', (2, 0): "[{}, {}]", (3, 0): '[{"x"}, {}]'}
        )
        assert operands(written) == [
            "abs(arg)",
            "reshard(abs0)",
            "tanh(reshard1)",
            "reshard(reshard1)",
            "negate(reshard3)",
            "sine(reshard1)",
        ]

    def test_further_wishes_are_made_from_the_shared_copy(self) -> None:
        written = chain(
            shared='[{"x"}, {}]', uses={(1, 0): "[{}, {}]", (2, 0): '[{"x"}, {}]', (3, 0): '[{"x"}, {"y"}]'}
        )
        assert operands(written) == [
            "abs(arg)",
            "tanh(abs0)",
            "reshard(abs0)",
            "negate(reshard2)",
            "reshard(reshard2)",
            "sine(reshard4)",
        ]


def test_recomputed_values_are_cloned_for_each_sharding() -> None:
    """No reshard: a broadcast constant is made twice, each in the sharding of its user."""
    source, listing, handles = read_text(
        main_of(
            f"""%z = stablehlo.constant dense<1.0> : tensor<f32>
            %w = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> {T}
            %0 = stablehlo.add %a, %w : {T}
            %1 = stablehlo.multiply %b, %w : {T}
            return %0, %1 : {T}, {T}""",
            f"%a: {T}, %b: {T}",
            f"{T}, {T}",
        )
    )
    rows, columns = sharding('[{"x"}, {}]'), sharding('[{}, {"z"}]')
    add, multiply = listing.ops[2:]
    chosen = {0: rows, 1: columns, add.results[0]: rows, multiply.results[0]: columns}
    uses = {(2, 0): rows, (2, 1): rows, (3, 0): columns, (3, 1): columns}
    recomputed = frozenset({listing.ops[0].results[0], listing.ops[1].results[0]})
    plan = Decisions(chosen, chosen, {}, uses, recomputed)
    written = write(source, handles, listing, plan, "shardy")
    assert "sdy.reshard" not in written
    assert written.count("stablehlo.broadcast_in_dim") == 2


def test_a_shared_copy_for_a_loop_and_beyond_is_made_before_the_loop() -> None:
    source, listing, handles = read_text(main_of(LOOP))
    whole, split = TensorSharding.replicated_closed(2), sharding('[{"x"}, {}]')
    produced = {n: whole for n, v in enumerate(listing.values) if v.type is not None and v.type.rank}
    inside = next(i for i, op in enumerate(listing.ops) if op.operands[1:] == (0,))
    outside = next(i for i, op in enumerate(listing.ops) if op.name == "stablehlo.abs")
    plan = Decisions(produced, produced, {0: split}, {(inside, 1): split, (outside, 0): split})
    written = write(source, handles, listing, plan, "shardy")
    assert written.index("sdy.reshard %arg0") < written.index("stablehlo.while")
    assert written.count("sdy.reshard %arg0") == 1


def test_a_shared_copy_is_made_before_a_loop_where_beyond_it_the_value_is_read_as_it_settles() -> None:
    """It is paid once, so it is written once."""
    source, listing, handles = read_text(main_of(LOOP))
    whole, split = TensorSharding.replicated_closed(2), sharding('[{"x"}, {}]')
    produced = {n: whole for n, v in enumerate(listing.values) if v.type is not None and v.type.rank}
    inside = next(i for i, op in enumerate(listing.ops) if op.operands[1:] == (0,))
    plan = Decisions(produced, produced, {0: split}, {(inside, 1): split})
    written = write(source, handles, listing, plan, "shardy")
    assert written.index("sdy.reshard %arg0") < written.index("stablehlo.while")


KEPT = f"""
#line = loc("model.py":7:1)
#name = loc("jit(step)/dense/tanh"(#line))
module @jit_step attributes {{mhlo.num_partitions = 1 : i32, mhlo.frontend_attributes = {{a = "b"}}}} {{
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
  func.func public @main(%a: {T} {{jax.arg_name = "params.w"}} loc("params.w"), %b: {T} {{tf.aliasing_output = 1 : i32}})
      -> ({T} {{jax.result_info = "loss"}}, {T}) {{
    %0 = stablehlo.tanh %a {{mhlo.frontend_attributes = {{c = "d"}}}} : {T} loc(#name)
    %1 = stablehlo.custom_call @mine(%b)
      {{sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {{i=8, j=16}}, custom>}} : ({T}) -> {T}
    %2 = chlo.square %1 : {T} -> {T}
    return %0, %2 : {T}, {T}
  }}
  func.func public @other(%a: {T}) -> {T} {{
    %0 = stablehlo.abs %a : {T}
    return %0 : {T}
  }}
}}
"""


@pytest.mark.parametrize("form", ["shardy", "xla"])
def test_what_the_user_wrote_survives(form: Form) -> None:
    source, listing, handles = read_text(KEPT)
    written = write(source, handles, listing, random_decisions(listing, 5), form)
    for text in (
        'jax.arg_name = "params.w"',
        'jax.result_info = "loss"',
        'loc("jit(step)/dense/tanh"',
        '"model.py":7:1',
        'loc("params.w")',
        'mhlo.frontend_attributes = {a = "b"}',
        'mhlo.frontend_attributes = {c = "d"}',
        "mhlo.num_partitions = 16",
        "func.func public @other",
        "module @jit_step",
        "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16}, custom>",
    ):
        assert text in written
    assert written.count("sdy.sharding_rule") == 1, "rules that reading attached are taken off"
    assert "autoshard." not in written


def test_writing_twice_gives_the_same_text() -> None:
    source, listing, handles = read_text(main_of(LOOP))
    plan = random_decisions(listing, 1)
    first = write(source, handles, listing, plan, "shardy")
    write(source, handles, listing, plan, "xla")
    assert write(source, handles, listing, plan, "shardy") == first


class TestCarriedState:
    def read(self) -> tuple[SourceModule, Listing, Handles]:
        return read_text(
            main_of(
                f"%0 = stablehlo.abs %a : {T}\n%1 = stablehlo.abs %b : {T}\nreturn %0, %1 : {T}, {T}",
                f"%a: {T}, %b: {T} {{tf.aliasing_output = 1 : i32}}",
                f"{T}, {T}",
            )
        )

    def plan(self, listing: Listing, result: str) -> Decisions:
        split = sharding('[{"x"}, {}]')
        produced = dict.fromkeys(range(len(listing.values)), split)
        uses = {(RESULT_SITE, 0): split, (RESULT_SITE, 1): sharding(result)}
        return Decisions(produced, produced, {}, uses)

    def test_a_pair_of_equal_shardings_shares_its_buffer(self) -> None:
        source, listing, handles = self.read()
        written = write(source, handles, listing, self.plan(listing, '[{"x"}, {}]'), "xla", carry=[(0, 0)])
        assert "tf.aliasing_output = 0 : i32" in written
        assert "tf.aliasing_output = 1 : i32" in written

    def test_a_donated_buffer_that_fits_no_more_is_donated_without_its_pair(self) -> None:
        source, listing, handles = self.read()
        written = write(source, handles, listing, self.plan(listing, "[{}, {}]"), "xla")
        assert "tf.aliasing_output" not in written
        assert "jax.buffer_donor = true" in written


def test_the_users_reshard_is_a_constraint_for_xla() -> None:
    source, listing, handles = read_text(
        main_of(f'%0 = sdy.reshard %a <@mesh, [{{"x"}}, {{}}]> : {T}\nreturn %0 : {T}')
    )
    split = sharding('[{"x"}, {}]')
    plan = Decisions({0: split, 1: split}, {0: split, 1: split}, {}, {(0, 0): split})
    assert "sdy.sharding_constraint" in write(source, handles, listing, plan, "xla")


def test_collectives_of_a_written_plan() -> None:
    """A contraction over x whose result is wanted split over x: a reduce-scatter, half an all-reduce."""
    source, listing, handles = read_text(
        main_of(
            f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({T}, tensor<16x32xf32>) -> tensor<8x32xf32>"
            "\nreturn %0 : tensor<8x32xf32>",
            f"%a: {T}, %b: tensor<16x32xf32>",
            "tensor<8x32xf32>",
        )
    )
    dot = listing.ops[0].results[0]
    a, b, c = sharding('[{}, {"x"}]'), sharding('[{"x"}, {}]'), sharding('[{"x"}, {}]')
    produced = {0: a, 1: b, dot: TensorSharding.replicated_closed(2)}
    plan = Decisions(produced, {**produced, dot: c}, {}, {(0, 0): a, (0, 1): b, (RESULT_SITE, 0): c})
    written = load(write(source, handles, listing, plan, "shardy").encode())
    (found,) = collectives(written, MESH)
    assert (found.kind, [str(axis) for axis in found.axes]) == ("reduce_scatter", ['"x"'])
    assert (found.operand_bytes, found.result_bytes, found.repeat) == (8 * 32 * 4, 8 * 32 * 4 // 2, 1)


@pytest.mark.parametrize(("read_as", "is_pinned"), [("[{}, {}]", True), ('[{"x"}, {}]', False)])
def test_a_product_that_a_loop_reads_otherwise_is_constrained(read_as: str, is_pinned: bool) -> None:
    """XLA would gather what it multiplies instead."""
    source, listing, handles = read_text(
        main_of(
            f"%w = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({T}, tensor<16x16xf32>) -> {T}\n"
            + LOOP.replace("%x = %a", "%x = %a, %u = %w").replace(f"i32>, {T}\n      cond", f"i32>, {T}, {T}\n      cond")
            .replace("%r:2", "%r:3").replace("%j, %c : tensor<i32>, ", f"%j, %c, %u : tensor<i32>, {T}, ")
            .replace("add %b, %a", "add %b, %u").replace("%b =", "%y =").replace("add %b", "add %y"),
            f"%a: {T}, %b: tensor<16x16xf32>",
        )
    )  # fmt: skip
    split = sharding('[{"x"}, {}]')
    produced = dict.fromkeys(range(len(listing.values)), split)
    whole = TensorSharding.replicated_closed(2)
    produced[1] = whole
    (adds,) = (
        n for n, op in enumerate(listing.ops) if op.name == "stablehlo.add" and op.rule and op.rule.factors
    )
    uses = {(0, 1): whole, (adds, 1): sharding(read_as)}
    text = write(source, handles, listing, Decisions(produced, produced, {}, uses), "xla")
    after = text.split("stablehlo.dot_general")[1].splitlines()[1]
    assert ("sdy.sharding_constraint" in after) == is_pinned


@pytest.mark.parametrize(
    ("other", "is_behind"),
    [("turned", True), ("product", False), ("returned", False), ("no product", False), ("cut", False)],
)
def test_a_constraint_on_a_product_is_written_behind_its_transposition(other: str, is_behind: bool) -> None:
    """Where that alone reads it: between the two, XLA for TPUs copies the weight that is updated for the whole step."""
    w = "tensor<16x8xf32>"
    value, type_ = ("%g", T) if other in ("product", "returned") else ("%t", w)
    product = f"stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<32x8xf32>, tensor<32x16xf32>) -> {T}"
    sum_ = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
      %g = stablehlo.reduce(%c init: %z) applies stablehlo.add across dimensions = [0] : (tensor<32x8x16xf32>, tensor<f32>) -> {T}"""
    body = f"""
      {sum_ if other == "no product" else f"%g = {product}"}
      %t = stablehlo.transpose %g, dims = [1, 0] : ({T}) -> {w}
      %u = stablehlo.add %w, %t : {w}
      %n = stablehlo.abs {value} : {type_}
      return %u, {"%g" if other == "returned" else "%n"} : {w}, {type_}"""
    arguments = f"%a: tensor<32x8xf32>, %b: tensor<32x16xf32>, %w: {w}, %c: tensor<32x8x16xf32>"
    source, listing, handles = read_text(main_of(body, arguments, f"{w}, {type_}"))
    whole, split = TensorSharding.replicated_closed(2), sharding('[{"x"}, {}]')
    cut = sharding('[{"x"}, {}, {}]')
    ranks = {n: v.type.rank for n, v in enumerate(listing.values) if v.type is not None}
    produced = {n: TensorSharding.replicated_closed(rank) for n, rank in ranks.items()} | {
        0: split,
        1: split,
        3: cut,
    }
    wanted = sharding('[{"y"}, {}]')  # which propagation would take to the product
    uses = {(RESULT_SITE, 0): wanted, (RESULT_SITE, 1): whole}
    if other == "cut":
        (index,) = (n for n, op in enumerate(listing.ops) if op.name == "stablehlo.transpose")
        uses[index, 0] = split
        produced[listing.ops[index].results[0]] = sharding('[{}, {"x"}]')
    lines = write(source, handles, listing, Decisions(produced, produced, {}, uses), "xla").splitlines()
    name = "stablehlo.reduce" if other == "no product" else "dot_general"
    (first,) = (line.split()[0] for line in lines if name in line)
    (turned,) = (line.split()[0] for line in lines if "transpose" in line)
    constrained = {line.split()[3] for line in lines if "sdy.sharding_constraint" in line}
    assert (first in constrained) is not is_behind
    assert turned in constrained


def test_equal_ops_in_different_shardings_stay_apart() -> None:
    """XLA would make one of the two broadcasts, and send what the other makes: one of them reads behind a constraint."""
    wide = "tensor<8x8x16xf32>"
    cast = f"stablehlo.broadcast_in_dim %a, dims = [1, 2] : ({T}) -> {wide}"
    source, listing, handles = read_text(
        main_of(f"%0 = {cast}\n%1 = {cast}\nreturn %0, %1 : {wide}, {wide}", results=f"{wide}, {wide}")
    )
    produced = {1: sharding('[{"x"}, {}, {}]'), 2: sharding('[{"y"}, {}, {}]')}
    produced[0] = TensorSharding.replicated_closed(2)
    for shardings, constraints in ((produced, 1), ({**produced, 2: produced[1]}, 0)):
        uses = {(RESULT_SITE, n): shardings[1 + n] for n in range(2)}
        text = write(source, handles, listing, Decisions(shardings, shardings, {}, uses), "xla")
        assert text.count("sdy.sharding_constraint %arg0") == constraints


def test_a_planned_module_survives_bytecode() -> None:
    source, listing, handles = read_text(main_of(LOOP))
    written = load(write(source, handles, listing, random_decisions(listing, 2), "shardy").encode())
    buffer = io.BytesIO()
    written.module.operation.write_bytecode(buffer)
    assert isinstance(written.module, ir.Module)
    assert str(load(buffer.getvalue()).module) == str(written.module)


def test_random_shardings_divide() -> None:
    """The helper of this file keeps to what arguments allow."""
    type_ = read_text(main_of(LOOP))[1].values[0].type
    assert type_ is not None
    for seed in range(20):
        assert random_sharding(type_, MESH, random.Random(seed)).divides(type_.shape)
