"""A written plan read back is the plan: its constraints are looked through where a plan can say the same."""

import pytest

from autoshard import pipeline
from autoshard.cost import Given, look_through
from autoshard.mlir import passes
from autoshard.mlir.forms import Form
from autoshard.mlir.listing import Listing
from autoshard.overlaps import Overlap
from autoshard.sharding import DimSharding, TensorSharding
from tests.programs import PROGRAMS

MESH = (("x", 4), ("y", 2))
HEADER = '#m = #sdy.mesh<["x"=4, "y"=2]>\nmodule { sdy.mesh @mesh = #m\n'


@pytest.mark.parametrize("form", ["xla", "shardy"])
@pytest.mark.parametrize(
    "name",
    [
        "mlp_train",
        pytest.param("decode_step", marks=pytest.mark.slow),
        pytest.param("convnet_train", marks=pytest.mark.slow),
        pytest.param("transformer_train_scan", marks=pytest.mark.slow),
        pytest.param("moe_train", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("overlap", ["none", "async"])
def test_a_written_plan_costs_what_was_planned(name: str, form: Form, overlap: Overlap) -> None:
    """Compute, communication and peak, to the last nanosecond and byte, whichever the form and with what overlap hides."""
    request = pipeline.Request(MESH, form=form, overlap=overlap)
    loaded = pipeline.load_module(PROGRAMS[name]().encode(), request)
    plan = pipeline.plan_loaded(loaded, time_limit_s=300)
    written = pipeline.write_planned(loaded, plan, constraints="all" if form == "xla" else "minimal")
    again = pipeline.load_module(written.encode(), pipeline.Request(form=form, overlap=overlap))
    price = pipeline.cost_loaded(again).price
    figures = (price.compute_ns, price.communication_ns, price.peak_bytes)
    assert figures == (plan.price.compute_ns, plan.price.communication_ns, plan.price.peak_bytes)


def read(body: str, arguments: str, result: str, form: Form = "xla") -> tuple[Listing, Given, Listing]:
    text = f"{HEADER}func.func @main({arguments}) -> {result} {{\n{body}\n}}\n}}"
    loaded = pipeline.load_module(text.encode(), pipeline.Request(form=form))
    values = passes.propagation(loaded.handles, loaded.listing).of({})
    return *look_through(loaded.listing, values, passes.decompose_reshards), loaded.listing


ROWS = 'tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
COLUMNS = 'tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}'


def constraint(to: str, of: str, sharding: str) -> str:
    return f"{to} = sdy.sharding_constraint {of} <@mesh, {sharding}> : tensor<8x8xf32>"


def elementwise(to: str, name: str, *of: str) -> str:
    return f"{to} = stablehlo.{name} {', '.join(of)} : tensor<8x8xf32>"


def test_a_constraint_that_changes_nothing_is_gone() -> None:
    """The two elementwise ops around it are one kernel."""
    body = [
        elementwise("%0", "add", "%a", "%b"),
        constraint("%1", "%0", '[{"x"}, {}]'),
        elementwise("%2", "add", "%1", "%1"),
        "return %2 : tensor<8x8xf32>",
    ]
    listing, given, before = read("\n".join(body), f"%a: {ROWS}, %b: tensor<8x8xf32>", f"({ROWS})")
    assert [op.operands for op in listing.ops] == [before.ops[0].operands, (), before.ops[0].results * 2]
    assert not given.reads


def test_constants_have_no_say_in_what_follows() -> None:
    """They are made again as each reader wants them, so propagation may have split them in any way."""
    body = [
        "%c = stablehlo.constant dense<0.0> : tensor<8x8xf32>",
        elementwise("%0", "maximum", "%b", "%c"),
        constraint("%1", "%0", '[{"x"}, {}]'),
        elementwise("%2", "tanh", "%1"),
        "return %2 : tensor<8x8xf32>",
    ]
    lines = "\n".join(body)
    text = f"{HEADER}func.func @main(%b: tensor<8x8xf32>) -> ({ROWS}) {{\n{lines}\n}}\n}}"
    loaded = pipeline.load_module(text.encode(), pipeline.Request())
    values = dict(passes.propagation(loaded.handles, loaded.listing).of({}))
    (constant,) = loaded.listing.ops[0].results
    values[constant] = TensorSharding((DimSharding(()), DimSharding((loaded.mesh.axis("y"),))))
    listing, _ = look_through(loaded.listing, values, passes.decompose_reshards)
    assert [op.demand for op in listing.ops] == [None] * 4


def test_what_hands_on_partial_sums_follows() -> None:
    """A transposition of addends is in the kernel that it was planned in; only what makes them, and what sums them, says so."""
    kept = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}], unreduced={"x"}>]>}'
    whole = "{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}"
    body = [
        f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {kept}"
        " : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>",
        f"%1 = stablehlo.transpose %0, dims = [1, 0] {kept} : (tensor<8x8xf32>) -> tensor<8x8xf32>",
        f"%2 = stablehlo.add %1, %0 {kept} : tensor<8x8xf32>",
        "%3 = sdy.reshard %2 <@mesh, [{}, {}]> : tensor<8x8xf32>",
        f"%4 = stablehlo.exponential %3 {whole} : tensor<8x8xf32>",
        "return %4 : tensor<8x8xf32>",
    ]
    arguments = ROWS.join(["%b: ", ", %a: "]) + COLUMNS.replace('"y"', '"x"')
    listing, _, _ = read("\n".join(body), arguments, "tensor<8x8xf32>", "shardy")
    said = [op.name.removeprefix("stablehlo.") for op in listing.ops if op.demand is not None]
    assert said == ["dot_general", "sdy.reshard"]


def test_a_product_that_is_resharded_inside_splits_no_kernel_before_it() -> None:
    """Its rule does not match how its operands are made; what makes them is annotated and fuses all the same."""
    body = [
        elementwise("%0", "negate", "%a"),
        constraint("%1", "%0", '[{}, {"x"}]'),
        elementwise("%2", "exponential", "%1"),
        constraint("%3", "%2", '[{}, {"x"}]'),
        "%4 = stablehlo.dot_general %3, %b, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>",
        constraint("%5", "%4", '[{}, {"x"}]'),
        "return %5 : tensor<8x8xf32>",
    ]
    split = 'tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
    listing, _, _ = read("\n".join(body), f"%a: {split}, %b: {split}", "tensor<8x8xf32>")
    demands = {op.name: op.demand for op in listing.ops if op.results and op.operands}
    assert demands["stablehlo.negate"] is None
    assert demands["stablehlo.exponential"] is None


def test_a_move_is_how_its_reader_reads() -> None:
    body = [
        constraint("%0", "%a", '[{}, {"y"}]'),
        elementwise("%1", "tanh", "%0"),
        "return %1 : tensor<8x8xf32>",
    ]
    listing, given, _ = read("\n".join(body), f"%a: {ROWS}", f"({COLUMNS})")
    assert listing.ops[1].operands == (listing.arguments[0].value,)
    assert str(given.reads[1, 0]) == '[{}, {"y"}]'
    assert given.moves[1, 0] == (0,)


@pytest.mark.parametrize(
    "body",
    [
        # what makes the value and what reads it would be one kernel
        [
            elementwise("%0", "tanh", '%a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}'),
            constraint("%1", "%0", '[{}, {"y"}]'),
            elementwise("%2", "negate", "%1"),
            "return %2 : tensor<8x8xf32>",
        ],
        # one operand of a kernel is read as it is and moved
        [
            constraint("%1", "%a", '[{}, {"y"}]'),
            elementwise("%2", "add", "%a", "%1"),
            "return %2 : tensor<8x8xf32>",
        ],
        # two copies of one value, each for several readers
        [
            constraint("%1", "%a", '[{}, {"y"}]'),
            constraint("%2", "%a", '[{}, {"x"}]'),
            "%3 = stablehlo.dot_general %1, %1, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>",
            "%4 = stablehlo.dot_general %2, %2, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>",
            elementwise("%5", "add", "%3", "%4"),
            "return %5 : tensor<8x8xf32>",
        ],
    ],
    ids=["within a kernel", "read twice", "two copies"],
)
def test_a_move_that_no_read_can_say_stays(body: list[str]) -> None:
    listing, given, before = read("\n".join(body), f"%a: {ROWS}", f"({COLUMNS})")
    assert [op.name for op in listing.ops if op.results] == [op.name for op in before.ops]
    assert not given.reads


WHOLE = "tensor<8x8xf32>"


@pytest.mark.parametrize("form", ["xla", "shardy"])
def test_a_copy_that_its_readers_change_further_is_priced_as_it_is_written(form: Form) -> None:
    """Whatever would be cheaper for the two."""
    body = [
        constraint("%1", "%a", "[{}, {}]"),
        constraint("%2", "%1", '[{"x"}, {}]'),
        elementwise("%3", "tanh", "%2"),
        constraint("%4", "%1", '[{}, {"y"}]'),
        elementwise("%5", "negate", "%4"),
        "return %3, %5 : tensor<8x8xf32>, tensor<8x8xf32>",
    ]
    given = 'tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}'
    text = f"{HEADER}func.func @main(%a: {given}) -> ({ROWS}, {COLUMNS}) {{\n{chr(10).join(body)}\n}}\n}}"
    price = pipeline.cost_loaded(pipeline.load_module(text.encode(), pipeline.Request(form=form))).price
    moved = [(c.kind, len(c.axes)) for c in price.collectives if c.kind != "all_slice"]
    assert moved == [("all_gather", 2)]
