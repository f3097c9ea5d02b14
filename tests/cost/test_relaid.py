"""What is gathered along several dimensions is laid out anew, and on v5e made in front of all else."""

from functools import cache

import numpy as np
import pytest

import autoshard
from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check
from autoshard.cost.layouts import LayoutsByRank
from autoshard.cost.lowering import CollectivePrices, Lowering
from autoshard.cost.overlap import Hideable, hide
from autoshard.cost.relaid import passes
from autoshard.cost.reshard import ReshardPrices
from autoshard.mlir import passes as shardy
from autoshard.plans import Plan
from autoshard.program import in_argument_buffers, largest_alike
from autoshard.sharding import Mesh, TensorType, parse_sharding
from costmodels import load

MESH = Mesh.of([("x", 4), ("y", 4)])
TYPE = TensorType((256, 32, 128), "bf16")
IS_GATHERED = {(1023, 1023, 8): False, (1020, 1027, 8): True, (1024, 1024, 64): True}
"""Shapes in bf16, and whether a sum over all of 64 devices is not made in the place of a gather of them."""
WHOLE = "[{}, {}, {}]"
ALONG_ONE = ['[{"x", "y"}, {}, {}]', '[{}, {"x", "y"}, {}]', '[{}, {}, {"x", "y"}]']
ALONG_TWO = {'[{"x"}, {"y"}, {}]': 1, '[{"x"}, {}, {"y"}]': 2, '[{}, {"y"}, {"x"}]': 2}
ROWS = '[{"x", "y"}, {}]'
LAYERS, WIDTH, HEADS = 12, 4096, 32


@pytest.mark.parametrize(("before", "after", "often"), [
    ((4, 4, 1), (1, 1, 1), 1),
    ((4, 1, 4), (1, 1, 1), 2),
    ((4, 4, 4), (1, 1, 1), 2),
    ((4, 4, 1), (4, 1, 1), 0),
    ((8, 1, 1), (2, 1, 1), 0),
    ((4, 4, 1), (1, 1, 16), 0),
    ((1, 1, 1), (4, 4, 4), 0),
])  # fmt: skip
def test_passes(before: tuple[int, ...], after: tuple[int, ...], often: int) -> None:
    """One for several dimensions that grow, and one for the minor one among them."""
    assert passes(np.asarray(before), np.asarray(after)).tolist() == often


@cache
def prices(
    hardware: str, lowering: Lowering = "xla-tpu", topology: tuple[int, int] = (4, 4)
) -> ReshardPrices:
    """Of all shardings of here, in both directions; each axis of the mesh is one dimension of the torus."""
    chip, mesh = load(hardware), Mesh.of(list(zip("xy", topology, strict=True)))
    placed = chip.place([(axis.name, axis.size) for axis in mesh.axes], topology=topology)
    layouts = LayoutsByRank()
    texts = [WHOLE, *ALONG_ONE, *ALONG_TWO, '[{"x"}, {}, {}]', '[{}, {"x"}, {}]']
    ids = layouts[3].ids_of(parse_sharding(text, mesh) for text in texts)
    collectives = CollectivePrices(placed, chip, lowering, TYPE.num_elements + 1)
    found = ReshardPrices(mesh, collectives, layouts, shardy.decompose_reshards)
    for shape in (TYPE.shape, *IS_GATHERED):
        found.want(shape, ids, ids)
    found.resolve()
    return found


def ns_to_whole(found: ReshardPrices, number: int, kinds: frozenset[str] | None = None) -> int:
    """From a sharding of here."""
    return int(found.ns(TYPE, np.asarray([number]), np.asarray([0]), kinds).item())


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v6e"])
def test_what_is_laid_out_anew(hardware: str) -> None:
    """Gathers along two dimensions to the whole or to a part of it, and nothing that Shardy exchanges instead."""
    found = prices(hardware)
    rows, columns = 1 + len(ALONG_ONE) + len(ALONG_TWO), 2 + len(ALONG_ONE) + len(ALONG_TWO)
    everything = np.arange(2 + len(ALONG_ONE) + len(ALONG_TWO) + 1)
    are_laid = found.are_laid_out(TYPE, everything, everything, 1)
    along_two = range(1 + len(ALONG_ONE), rows)
    assert {number for number in range(len(are_laid)) if are_laid[number, 0]} == set(along_two)
    for a, b in np.argwhere(are_laid).tolist():
        assert any(step.copies for step in found.collectives(TYPE, a, b))
    assert not are_laid[along_two[0], rows], "gathered along one of two"
    assert not are_laid[along_two[1], columns], "exchanged, then gathered along one"


def test_what_is_summed_instead_is_not() -> None:
    """Up to 16 MiB over all of 64 devices; padded, where parts are uneven, so that 16760640 bytes are too many."""
    found, number = prices("tpu-v5e", topology=(8, 8)), 1 + len(ALONG_ONE)
    for shape, is_gathered in IS_GATHERED.items():
        type_ = TensorType(shape, "bf16")
        (step,) = found.collectives(type_, number, 0)
        assert [one.kind for one in step.emitted] == ["all_gather" if is_gathered else "all_reduce"]
        ends = np.asarray([number]), np.asarray([0])
        assert (step.copies > 0, found.are_laid_out(type_, *ends, 1).item()) == (is_gathered, is_gathered)
        assert found.ns(type_, *ends).item() == step.ns


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v6e"])
def test_a_gather_along_several_dimensions_costs_copies(hardware: str) -> None:
    """Beside the same gather along one; each reads and writes the whole in main memory."""
    found = prices(hardware)
    ones = [sum(step.ns for step in found.collectives(TYPE, n, 0)) for n in range(1, 1 + len(ALONG_ONE))]
    assert len(set(ones)) == 1
    for number, often in enumerate(ALONG_TWO.values(), 1 + len(ALONG_ONE)):
        (step,) = found.collectives(TYPE, number, 0)
        copies_ns = int(np.ceil(load(hardware).copy_ns(TYPE.num_bytes * often)))
        assert step.ns == ones[0] + copies_ns
        assert ns_to_whole(found, number) == step.ns


@pytest.mark.parametrize(("hardware", "lowering"), [("tpu-v5e:scheduler", "xla-tpu"), ("tpu-v5e", "shardy")])
def test_where_it_costs_none(hardware: str, lowering: Lowering) -> None:
    """A scheduler takes next to nothing for memory, and waits for what is made in front of all else; Shardy's own collectives are no
    compiler's.
    """
    found = prices(hardware, lowering)
    steps = [step for n in range(1, 7) for step in found.collectives(TYPE, n, 0)]
    shares = [0] * len(ALONG_ONE) + [often if lowering == "xla-tpu" else 0 for often in ALONG_TWO.values()]
    copies_ns = [int(np.ceil(load(hardware).copy_ns(TYPE.num_bytes * often))) for often in shares]
    assert [step.ns - steps[0].ns for step in steps] == copies_ns
    assert max(copies_ns) < steps[0].ns // 1000
    assert [step.waited_ns for step in steps] == [
        step.ns if often else 0 for step, often in zip(steps, shares, strict=True)
    ]


@pytest.mark.parametrize(("hardware", "hidden"), [("tpu-v5e", False), ("tpu-v6e", True)])
def test_what_never_runs_behind_compute(hardware: str, hidden: bool) -> None:
    """Copies; and on v5e the gathers of small arrays themselves, as the solver's table has it and as a plan tells it."""
    found, kinds = prices(hardware), frozenset({"all_gather"})
    everything = Hideable(early_ns=10**12, kinds=kinds)
    for number in range(1, 7):
        steps = found.collectives(TYPE, number, 0)
        waited = sum(step.waited_ns for step in steps)
        assert ns_to_whole(found, number, kinds) == sum(step.ns for step in steps) - waited
        shown = hide(steps, everything)
        assert sum(step.hidden_ns for step in shown) == (sum(step.ns for step in steps) - waited) * 9 // 10
        is_several = number > len(ALONG_ONE)
        assert (sum(step.hidden_ns for step in shown) > 0) == (hidden or not is_several)
        assert (waited > 0) == is_several


def projections(weight: str, cast: bool = False, hidden: int = 2 * WIDTH) -> str:
    """Layers of normalized products with weights that are split so and gathered, data parallel, and a hidden layer along one dimension."""
    whole, rows = f"tensor<{WIDTH}x{HEADS}x128xbf16>", f"tensor<16384x{WIDTH}xbf16>"
    wide, narrow = f"tensor<{WIDTH}x{hidden}xbf16>", f"tensor<{hidden}x{WIDTH}xbf16>"
    types = {**{f"w{n}": (whole, weight) for n in range(LAYERS)}, "up": (wide, ROWS), "down": (narrow, ROWS)}
    given = {name: type_.replace("bf16", "f32") if cast else type_ for name, (type_, _) in types.items()}
    body = ["%zero = stablehlo.constant dense<0.0> : tensor<bf16>"]

    def gather(name: str) -> None:
        type_, read = types[name][0], f"%{name}"
        if cast:
            body.append(f"%k{name} = stablehlo.convert {read} : ({given[name]}) -> {type_}")
            read = f"%k{name}"
        dims = ", ".join(["{}"] * type_.split("<")[1].count("x"))
        body.append(f"%g{name} = sdy.sharding_constraint {read} <@mesh, [{dims}]> : {type_}")

    value = "%a"
    for n in range(LAYERS):
        gather(f"w{n}")
        body += [
            f"%p{n} = stablehlo.dot_general {value}, %gw{n}, contracting_dims = [1] x [0]"
            f" : ({rows}, {whole}) -> tensor<16384x{HEADS}x128xbf16>",
            f"%r{n} = stablehlo.reshape %p{n} : (tensor<16384x{HEADS}x128xbf16>) -> {rows}",
            f"%s{n} = stablehlo.multiply %r{n}, %r{n} : {rows}",
            f"%n{n} = stablehlo.reduce(%s{n} init: %zero) applies stablehlo.add across dimensions = [1]"
            f" : ({rows}, tensor<bf16>) -> tensor<16384xbf16>",
            f"%q{n} = stablehlo.rsqrt %n{n} : tensor<16384xbf16>",
            f"%b{n} = stablehlo.broadcast_in_dim %q{n}, dims = [0] : (tensor<16384xbf16>) -> {rows}",
            f"%t{n} = stablehlo.multiply %r{n}, %b{n} : {rows}",
        ]
        value = f"%t{n}"
    gather("up")
    gather("down")
    made = f"tensor<16384x{hidden}xbf16>"
    body += [
        f"%h = stablehlo.dot_general {value}, %gup, contracting_dims = [1] x [0] : ({rows}, {wide}) -> {made}",
        f"%i = stablehlo.tanh %h : {made}",
        f"%o = stablehlo.dot_general %i, %gdown, contracting_dims = [1] x [0] : ({made}, {narrow}) -> {rows}",
    ]
    arguments = ", ".join(
        f"%{name}: {given[name]} {{sdy.sharding = #sdy.sharding<@mesh, {split}>}}"
        for name, (_, split) in types.items()
    )
    split = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}'
    lines = "\n        ".join(body)
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {rows} {split}, {arguments}) -> ({rows} {split}) {{
        {lines}
        return %o : {rows}
      }}"""


def written(text: str, hardware: str) -> Plan:
    """Its own shardings, priced."""
    request = pipeline.Request(hardware=hardware, topology=(4, 4), memory_bytes=None)
    return price_as_written(pipeline.load_module(text.encode(), request)).plan()


WEIGHT = WIDTH * HEADS * 128 * 2
TWO = '[{"x"}, {"y"}, {}]'


@pytest.mark.parametrize(("hardware", "least", "most"), [("tpu-v5e", LAYERS // 2, LAYERS), ("tpu-v6e", 0, 1)])
def test_they_are_there_when_the_program_begins(hardware: str, least: int, most: int) -> None:
    """On v5e all of them until they are read, but for three in vector memory; on v6e one in each of its layouts."""
    along_one, along_two = (written(projections(split), hardware) for split in (ALONG_ONE[0], TWO))
    more = along_two.price.peak_bytes - along_one.price.peak_bytes
    assert least * WEIGHT <= more <= most * WEIGHT


@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("split", [ALONG_ONE[0], TWO])
@pytest.mark.parametrize(
    ("hardware", "topology"),
    [("tpu-v5e", (4, 4)), ("tpu-v5e", (8, 8)), ("tpu-v6e", (4, 4)), ("tpu-v5e:scheduler", (4, 4))],
)
def test_the_checker_agrees(hardware: str, topology: tuple[int, int], split: str, is_free: bool) -> None:
    """Weights split by the user; how their casts are read is up to the plan, or demanded: the cast is gathered as it is made then."""
    text = projections(split, cast=True).replace('["x"=4, "y"=4]', f'["x"={topology[0]}, "y"={topology[1]}]')
    if is_free:
        lines = (line for line in text.splitlines() if "sharding_constraint" not in line)
        text = "\n".join(lines).replace("%g", "%k")
    request = pipeline.Request(hardware=hardware, topology=topology, memory_bytes=None)
    loaded = pipeline.load_module(text.encode(), request)
    plan = pipeline.plan_loaded(loaded)
    assert any(one.kind == "all_gather" for one in plan.price.collectives)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()


@pytest.mark.parametrize(("hidden", "largest"), [(2 * WIDTH, 2 * WIDTH * WIDTH), (64, WIDTH * WIDTH)])
def test_which_weights_are_the_largest(hidden: int, largest: int) -> None:
    """Of those that there are several of; where the others are smaller nothing is gathered in front of all else."""
    text = projections(TWO, hidden=hidden)
    program = pipeline.load_module(text.encode(), pipeline.Request(topology=(4, 4))).program
    assert largest_alike(program) == largest
    along_one, along_two = (
        written(projections(split, hidden=hidden), "tpu-v5e") for split in (ALONG_ONE[0], TWO)
    )
    more = along_two.price.peak_bytes - along_one.price.peak_bytes
    assert (more > LAYERS // 2 * WEIGHT) == (hidden > 64)


def test_casts_of_arguments_are_made_at_the_start() -> None:
    """Not what is made of products; that of a cast is no argument's buffer."""
    program = pipeline.load_module(
        projections(ALONG_ONE[0], cast=True).encode(), pipeline.Request(topology=(4, 4))
    ).program
    made, kept = program.made_at_start, in_argument_buffers(program)
    casts = {k.results[0] for k in program.kernels if k.shape.name == "stablehlo.convert"}
    assert len(casts) == LAYERS + 2
    assert casts <= made.keys()
    assert not casts & kept
    assert kept <= made.keys()
    assert not made.keys() & {k.results[0] for k in program.kernels if k.shape.is_matmul}


@pytest.mark.parametrize("split", ['[{"x"}, {"y"}]', ROWS])
def test_a_written_module_has_no_detours(split: str) -> None:
    """A cast that is gathered along two dimensions is gathered so, though an exchange before it would cost less."""
    square = f"tensor<{WIDTH}x{WIDTH}xbf16>"
    rows = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}'
    text = f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {square} {rows}, %w: tensor<{WIDTH}x{WIDTH}xf32> {{sdy.sharding = #sdy.sharding<@mesh, {split}>}})
          -> ({square} {rows}) {{
        %0 = stablehlo.convert %w : (tensor<{WIDTH}x{WIDTH}xf32>) -> {square}
        %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{}}]> : {square}
        %2 = stablehlo.dot_general %a, %1, contracting_dims = [1] x [0] : ({square}, {square}) -> {square}
        return %2 : {square}
      }}"""
    (found,) = written(text, "tpu-v6e").price.collectives
    assert (found.kind, found.bytes) == ("all_gather", WIDTH * WIDTH * 2)


def test_a_search_over_placements_knows_of_them() -> None:
    """Weights that are gathered along two dimensions by demand: the chosen placement's plan is one that the checker agrees with."""
    text = projections(TWO)
    found = autoshard.plan_placements(text.encode(), topology=(4, 4), memory_bytes=None, time_limit_s=60)
    plan = found.plan
    request = pipeline.Request(topology=(4, 4), memory_bytes=None, placement=plan.placement)
    loaded = pipeline.load_module(text.encode(), request)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()
    assert plan.price == pipeline.plan_loaded(loaded).price
