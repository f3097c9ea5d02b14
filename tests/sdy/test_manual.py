"""Manual computations: the user's manual axes stay, free axes are planned, and the user's collectives are paid for."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import costmodels
from autoshard import pipeline
from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, new_context
from autoshard.mlir.forms import Form
from autoshard.mlir.listing import Listing, UserCollective
from autoshard.mlir.passes import run_isolated
from autoshard.mlir.read import read
from autoshard.mlir.source import load, resolve_mesh
from autoshard.pipeline import Loaded, Request
from autoshard.plans import Plan
from tests.sdy import manual_programs as programs
from tests.sdy.manual_programs import DATA, MODEL, PROGRAMS, all_reduce, manual, tensor

PLACED = costmodels.load("tpu-v5e").place([("data", 4), ("model", 2)])


def planned(text: str, form: Form = "shardy") -> tuple[Loaded, Plan]:
    loaded = pipeline.load_module(text.encode(), Request(memory_bytes=None, form=form))
    return loaded, pipeline.plan_loaded(loaded, time_limit_s=20)


FEW = [name if i % 4 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(PROGRAMS)]
"""All programs, of which the default suite runs some."""


def listed(text: str) -> Listing:
    source = load(text.encode())
    return read(source, resolve_mesh(source, None))[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plan_holds_and_shardys_passes_add_nothing(name: str) -> None:
    """The checker agrees with every figure, and what Shardy's passes make of the output is what the plan pays for."""
    _, plan = planned(PROGRAMS[name])
    assert plan.status == "optimal"
    assert (plan.price.communication_ns > 0) == (name not in ("handed on", "without values"))
    report = pipeline.check_plan(PROGRAMS[name].encode(), plan, deep=True)
    assert report.passed, report.to_text()


@pytest.mark.parametrize("form", ["shardy", "xla"])
@pytest.mark.parametrize("name", FEW)
def test_numbers_stay(name: str, form: Form, tmp_path: Path) -> None:
    """XLA's partitioner computes of the planned module what it computes of the user's own, each on eight devices."""
    loaded, plan = planned(PROGRAMS[name], form)
    files = {"planned": pipeline.write_planned(loaded, plan), "against": PROGRAMS[name]}
    for file, text in files.items():
        (tmp_path / f"{file}.mlir").write_text(text)
    report = pipeline.verify_modules(*(str(tmp_path / f"{file}.mlir") for file in files), devices=8)
    assert report.passed, report.to_text()


def shardings_of(text: str, key: str) -> list[str]:
    """What the manual computations in a written module have as `key`, from its text."""
    return re.findall(rf"{key}=\[(.*?)\] (?:out_shardings|manual_axes)", text)


def test_free_axes_are_planned_on_the_edges_and_inside() -> None:
    """The whole product over both axes: the columns of the result are left over data's partial sums.

    step = product of an eighth + all-reduce over data of half the result
    """
    m, k, n = 1024, 512, 2048
    loaded, plan = planned(programs.row_parallel(m, k, n))
    half = m * n // 2 * 4
    assert plan.price.communication_ns == PLACED.all_reduce_ns(half, ["data"])
    assert [(c.kind, c.axes, c.bytes) for c in plan.price.collectives] == [("all_reduce", ("data",), half)]
    text = pipeline.write_planned(loaded, plan)
    columns = '<@mesh, [{}, {"data"}]>, <@mesh, [{"data"}, {"model"}]>'
    rows = '<@mesh, [{"model"}, {"data"}]>, <@mesh, [{"data"}, {}]>'
    assert shardings_of(text, "in_shardings")[0] in (columns, rows)
    local = 'sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>'
    assert local in text or local.replace('{}, {"model"}', '{"model"}, {}') in text


def test_a_spelled_out_sum_costs_what_the_formula_says() -> None:
    """No free axis has a second device: step = product of a quarter on one device + all-reduce of the whole result."""
    m, k, n = 1024, 512, 2048
    x, w, y = tensor(m, k // 4), tensor(k // 4, n), tensor(m, n)
    body = programs.dot("%0", "%x", "%w", (x, w, y)) + f"return %0 : {y}\n"
    four, one = ('"data"=4, "model"=1', '"data"=1, "model"=1')
    _, local = planned(programs.main(f"%x: {x}, %w: {w}", y, body).replace('"data"=4, "model"=2', one))
    text = programs.row_parallel(m, k, n).replace('"data"=4, "model"=2', four)
    _, plan = planned(text.replace(programs.grouped(DATA), programs.grouped("[[0, 1, 2, 3]]")))
    placed = costmodels.load("tpu-v5e").place([("data", 4), ("model", 1)])
    assert plan.price.compute_ns == local.price.step_ns
    assert plan.price.communication_ns == placed.all_reduce_ns(m * n * 4, ["data"])


def test_arguments_and_results_of_a_computation_share_buffers() -> None:
    """What enters and leaves as it is takes no memory of its own: peak is that of the argument and of what the program hands over, in
    rows of 128 lanes.
    """
    everywhere = '[{"data"}, {"model"}]'
    _, plan = planned(programs.handed_on('"data", "model"', everywhere, tensor(16, 32)))
    assert plan.price.peak_bytes == 2 * 16 * 128 * 4


def test_donated_state_is_updated_in_place_through_a_computation() -> None:
    """A whole step in a manual computation: the new state takes the donated argument's buffer; the small gradient is in vector memory."""
    x, a, everywhere = tensor(64, 64), tensor(16, 32), ['[{"data"}, {"model"}]']
    body = all_reduce("%r", "%a", a, DATA) + f"%t = stablehlo.multiply %r, %a : {a}\nsdy.return %t : {a}"
    op = manual("%x", everywhere, everywhere, '"data", "model"', f"%a: {a}", body, f"({x}) -> {x}")
    donated = f"%x: {x} {{tf.aliasing_output = 0 : i32}}"
    _, plan = planned(programs.main(donated, x, f"%0 = {op}return %0 : {x}\n"))
    assert plan.price.peak_bytes == 16 * 128 * 4


def test_a_reshard_on_the_way_in_is_paid_for() -> None:
    """Argument by rows, wanted by columns inside: an all-to-all of what a device has, every trip of a loop around it."""
    text = programs.full().replace(
        f"%x: {tensor(64, 512)}, ",
        f'%x: {tensor(64, 512)} {{sdy.sharding = #sdy.sharding<@mesh, [{{"data", "model"}}, {{}}]>}}, ',
    )
    _, plan = planned(text)
    moved = [(c.kind, c.axes, c.bytes) for c in plan.price.collectives if c.kind == "all_to_all"]
    assert moved == [("all_to_all", ("model",), 64 * 512 * 4 // 8)]
    report = pipeline.check_plan(text.encode(), plan, deep=True)
    assert report.passed, report.to_text()


def test_a_computation_in_a_loop_is_paid_for_every_trip() -> None:
    """Ten trips cost five times what two do."""
    prices = [planned(programs.inside_a_loop(trips))[1].price.step_ns for trips in (2, 10)]
    assert prices[1] == 5 * prices[0]


def test_computations_before_any_op_share_their_operands() -> None:
    """In the form whose compiler copies arguments that it gathers early, and makes after a loop what the user sums and it adds up."""
    text = programs.first_of_all(trips=5)
    _, plan = planned(text, "xla")
    report = pipeline.check_plan(text.encode(), plan)
    assert report.passed, report.to_text()
    assert {one.repeat for one in plan.price.collectives if one.kind == "all_reduce"} == {1}


def test_every_kind_is_priced_on_its_group() -> None:
    """By formula, with the free axis on the columns: each collective of half of what the program says."""
    _, plan = planned(programs.all_kinds())
    shard = 8 * 64 * 4 // 2
    found = {(c.kind, c.axes, c.bytes, c.ns) for c in plan.price.collectives}
    assert found == {
        (kind, ("data",), bytes_, getattr(PLACED, f"{kind}_ns")(bytes_, ["data"]))
        for kind, bytes_ in (
            ("all_gather", 4 * shard),
            ("reduce_scatter", 4 * shard),
            ("all_to_all", shard),
            ("collective_permute", shard),
            ("all_reduce", shard),
        )
    }


def one_collective(mesh: str, groups: str, attributes: str = "") -> UserCollective | None:
    """What is read of an all-reduce over these groups on this mesh."""
    x = tensor(64, 64)
    names = ", ".join(re.findall(r'"\w+"', mesh))
    sharding = f"<@mesh, [{{}}, {{}}], replicated={{{names}}}>"
    op = all_reduce("%r", "%a", x, groups)
    if attributes:
        op = re.sub(r"<\{.*?\}>", f"<{{{attributes}}}>", op, count=1)
    text = f"""sdy.mesh @mesh = {mesh}
    func.func @main(%x: {x}) -> {x} {{
      %0 = sdy.manual_computation(%x) in_shardings=[{sharding}] out_shardings=[{sharding}] manual_axes={{{names}}} (%a: {x}) {{
        {op}sdy.return %r : {x}
      }} : ({x}) -> {x}
      return %0 : {x}
    }}"""
    return next(op.collective for op in listed(text).ops if op.name == "stablehlo.all_reduce")


@pytest.mark.parametrize(
    ("mesh", "groups", "axes"),
    [
        ('<["data"=4, "model"=2]>', DATA, '"data"'),
        ('<["data"=4, "model"=2]>', MODEL, '"model"'),
        ('<["data"=4, "model"=2]>', "[[6, 3, 0, 5, 4, 1, 2, 7]]", '"data", "model"'),
        (
            '<["data"=4, "model"=2], device_ids=[0, 4, 1, 5, 2, 6, 3, 7]>',
            "[[0, 1, 2, 3], [4, 5, 6, 7]]",
            '"data"',
        ),
        ('<["data"=4, "model"=2]>', "[[0, 2], [1, 3], [4, 6], [5, 7]]", '"data":(2)2'),
        ('<["data"=4, "model"=2]>', "[[0, 4], [1, 5], [2, 6], [3, 7]]", '"data":(1)2'),
        ('<["data"=6]>', "[[0, 1, 2], [3, 4, 5]]", '"data":(2)3'),
    ],
)
def test_groups_are_axes(mesh: str, groups: str, axes: str) -> None:
    """Partition numbers are positions in the mesh, in the order of its devices; parts of an axis are found too."""
    found = one_collective(mesh, groups)
    assert found is not None and found.is_exact
    assert [", ".join(map(str, group)) for group in found.groups] == [axes]


def test_replica_groups_without_global_ids_are_all_partitions() -> None:
    """With a channel and without use_global_device_ids, a number is a replica: all partitions take part."""
    handle = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
    found = one_collective(
        '<["data"=4, "model"=2]>', DATA, f"{handle}, replica_groups = dense<0> : tensor<1x1xi64>"
    )
    assert found is not None
    assert [str(axis) for axis in found.groups[0]] == ['"data"', '"model"']


def test_groups_of_one_are_free() -> None:
    assert one_collective('<["data"=2, "model"=1]>', "[[0], [1]]") is None


def test_groups_that_are_no_axes_cost_the_most_that_as_many_may() -> None:
    """Neither axis is at fault for the pairs 0-3, 1-2, ...: the costlier of data and model is paid for, with a warning."""
    text = programs.full("[[0, 3], [1, 2], [4, 7], [5, 6]]")
    _, plan = planned(text)
    bytes_ = 16 * 256 * 4
    costs = {axis: PLACED.all_reduce_ns(bytes_, [axis]) for axis in ("data", "model")}
    dearest = max(costs, key=lambda axis: costs[axis])
    assert ("all_reduce", (dearest,), bytes_, costs[dearest]) in {
        (c.kind, c.axes, c.bytes, c.ns) for c in plan.price.collectives
    }
    assert any("devices that are no axes of the mesh" in warning for warning in plan.warnings)
    assert pipeline.check_plan(text.encode(), plan).passed


def test_partition_numbers_do_not_stop_a_plan() -> None:
    """axis_index is arithmetic on the partition's number."""
    text = programs.full().replace(
        "%z = stablehlo.constant", "%i = stablehlo.partition_id : tensor<ui32>\n%z = stablehlo.constant"
    )
    _, plan = planned(text)
    assert pipeline.check_plan(text.encode(), plan, deep=True).passed


@pytest.mark.parametrize("name", FEW)
def test_shardys_passes_insert_no_reshard(name: str) -> None:
    """The written module is whole: `sdy-insert-explicit-reshards` finds every reshard in it, on the edges and inside."""
    loaded, plan = planned(PROGRAMS[name])
    written = pipeline.write_planned(loaded, plan)
    parsed = ir.Module.parse(written, new_context()).operation
    done = run_isolated(
        parsed, "sdy-remove-size-one-axes,func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
    )
    assert str(done).count("sdy.reshard") == written.count("sdy.reshard")


@pytest.mark.parametrize("name", FEW)
def test_the_form_with_collectives_costs_the_same(name: str) -> None:
    """Written with every collective as an op, sdy's beside the user's own, and read again."""
    loaded, plan = planned(PROGRAMS[name], "shardy-collectives")
    written = pipeline.write_planned(loaded, plan)
    again = pipeline.load_module(written.encode(), Request(memory_bytes=None, form="shardy"))
    assert pipeline.cost_loaded(again).price.step_ns == plan.price.step_ns


def test_a_plan_that_splits_by_a_manual_axis_is_found_out() -> None:
    """Tampered with: a value inside on an axis that is manual there."""
    text = programs.row_parallel(64, 512, 256)
    loaded, plan = planned(text)
    inside = next(op.results[0] for op in loaded.listing.ops if op.name == "stablehlo.dot_general")
    changed = {**plan.values, inside: type(plan.values[inside])('[{"data"}, {}]')}
    report = pipeline.check_plan(text.encode(), replace(plan, values=changed))
    assert "manual axes" in {finding.name for finding in report.failures}


def grouped_values(first: str, second: str) -> str:
    """An argument outside and one inside a computation without manual axes, in groups of these numbers."""
    x, edge = tensor(8, 16), ["[{?}, {?}]"]
    body = f"sdy.sharding_group %a group_id={second} : {x}\nsdy.return %a : {x}"
    op = manual("%x", edge, edge, "", f"%a: {x}", body, f"({x}) -> {x}")
    return programs.main(
        f"%x: {x}", x, f"sdy.sharding_group %x group_id={first} : {x}\n%0 = {op}return %0 : {x}\n"
    )


def test_a_sharding_group_stays_on_one_side_of_the_edge() -> None:
    with pytest.raises(
        AutoshardError,
        match=r"(?s)different manual computations.*group_id=1 at <bytes>:3.*group_id=1 at <bytes>:5",
    ):
        planned(grouped_values("1", "1"))
    _, plan = planned(grouped_values("1", "2"))
    assert plan.status == "optimal"


def test_priorities_leave_manual_axes_where_they_are() -> None:
    """Demands of low priority on what leaves a computation and beside it: the manual axes are there at every level."""
    program = programs.full().replace(
        'out_shardings=[<@mesh, [{"data"}, {}]>', 'out_shardings=[<@mesh, [{"data"}p1, {}]>'
    )
    beside = '%w: tensor<512x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model", ?}p2, {?}]>}'
    text = program.replace("%w: tensor<512x256xf32>", beside)
    _, plan = planned(text)
    assert plan.status == "optimal"
    assert pipeline.check_plan(text.encode(), plan).passed


def test_partial_sums_cross_an_edge_over_free_axes() -> None:
    """Half of a sum is left to the reader outside: what enters and leaves is partial over model, inside and outside alike."""
    x, w, y = tensor(64, 512), tensor(512, 256), tensor(64, 256)
    a = tensor(16, 512)
    partial = '[{"data"}, {}], unreduced={"model"}'
    body = programs.dot("%d", "%a", "%b", (a, w, tensor(16, 256))) + f"sdy.return %d : {tensor(16, 256)}"
    ins = ['[{"data"}, {"model"}]', '[{"model"}, {}]']
    op = manual("%x, %w", ins, [partial], '"data"', f"%a: {a}, %b: {w}", body, f"({x}, {w}) -> {y}")
    text = programs.main(f"%x: {x}, %w: {w}", y, f"%0 = {op}return %0 : {y}\n")
    loaded, plan = planned(text)
    assert 'unreduced={"model"}' in pipeline.write_planned(loaded, plan)
    report = pipeline.check_plan(text.encode(), plan, deep=True)
    assert report.passed, report.to_text()


def test_partial_sums_over_manual_axes_are_refused() -> None:
    text = programs.handed_on('"data"', '[{}, {}], unreduced={"data"}', tensor(64, 64))
    with pytest.raises(AutoshardError, match=r"<bytes>:3: .*partial sum over a manual axis"):
        planned(text)


@pytest.mark.parametrize(("columns", "sent"), [(512, "reduce_scatter"), (32, "all_reduce")])
def test_a_reduce_scatter_that_the_compiler_leaves(columns: int, sent: str) -> None:
    """Over four of eight devices it is sent and priced as one, where a sum of the plan's own, and one of little, is an all-reduce."""
    text = programs.scattered(columns)
    _, plan = planned(text, "xla")
    report = pipeline.check_plan(text.encode(), plan)
    assert report.passed, report.to_text()
    (one,) = plan.price.collectives
    assert (one.kind, [each.kind for each in one.emitted]) == ("reduce_scatter", [sent])
    assert (one.ns == PLACED.reduce_scatter_ns(one.bytes, ["data"])) == (sent == "reduce_scatter")
