"""Plans in upstream's dialect: the text alone says what the plan says, and upstream's own tool takes it."""

import re
import shutil
import subprocess
from functools import cache

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir.decisions import Decisions
from autoshard.mlir.flops import MATMULS
from autoshard.mlir.forms import Form
from autoshard.mlir.listing import Listing
from autoshard.mlir.read import read
from autoshard.mlir.source import load, resolve_mesh
from autoshard.mlir.write import write
from autoshard.sharding import Mesh
from tests.mlir.modules import main_of, read_text, sharding
from tests.mlir.random_plan import random_decisions
from tests.mlir.test_write import AXES, PROGRAMS

FORMS: tuple[Form, ...] = ("mesh", "mesh-20", "shard")
MLIR_OPT = shutil.which("mlir-opt-19") or shutil.which("mlir-opt")
SHARD = re.compile(r"(%\d+) = (?:mesh|shard)\.shard (%\w+(?:#\d+)?) to (%\w+|<.*?>)( annotate_for_users)? : ")
DOT = main_of(
    """%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>""",
    "%a: tensor<8x16xf32>, %b: tensor<16x8xf32>",
    "tensor<8x8xf32>",
)


@cache
def planned(name: str) -> tuple[Listing, Decisions, dict[Form, str]]:
    source, listing, handles = read_text(PROGRAMS[name](), AXES)
    plan = random_decisions(listing, 0)
    return listing, plan, {form: write(source, handles, listing, plan, form) for form in FORMS}


def dot_of(form: Form, a: str, b: str, result: str) -> str:
    source, listing, handles = read_text(DOT)
    shardings = {0: sharding(a), 1: sharding(b), listing.ops[0].results[0]: sharding(result)}
    uses = {(0, 0): sharding(a), (0, 1): sharding(b)}
    return write(source, handles, listing, Decisions(shardings, shardings, {}, uses), form)


@pytest.mark.skipif(MLIR_OPT is None, reason="upstream's mlir-opt is not installed (Debian: mlir-19-tools)")
@pytest.mark.parametrize("name", PROGRAMS)
def test_upstream_takes_it(name: str) -> None:
    """And what it prints, in its own form and in generic form, says the same."""
    text = planned(name)[2]["mesh"]
    for options in ([], ["--mlir-print-op-generic"]):
        done = subprocess.run(
            [str(MLIR_OPT), "--allow-unregistered-dialect", *options], input=text, text=True, capture_output=True, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert str(load(done.stdout.encode()).module) == str(load(text.encode()).module)


def dims_of(text: str, mesh: Mesh, rank: int) -> list[tuple[str, ...]]:
    """Axis names of each dimension of `[[0], [1, 2]]`."""
    numbers = [[int(n) for n in one.split(",") if n.strip()] for one in re.findall(r"\[([\d, ]*)\]", text)]
    return [tuple(mesh.axes[n].name for n in dim) for dim in numbers] + [()] * (rank - len(numbers))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_and_what_their_users_read_are_as_planned(name: str, form: Form) -> None:
    """Read from the text: every argument is annotated with its sharding, every matrix product with what it reads and makes."""
    listing, plan, texts = planned(name)
    text = texts[form]
    made, read_as = annotations(text)
    for argument in listing.arguments:
        type_ = listing.values[argument.value].type
        if type_ is not None and type_.rank:
            found = dims_of(made[f"%arg{listing.arguments.index(argument)}"], listing.mesh, type_.rank)
            assert found == [tuple(axis.name for axis in dim) for dim in plan.settled[argument.value].axes]
    products = re.findall(r'(%\d+) = "stablehlo\.(?:dot_general|convolution)"\((%[\w#]+), (%[\w#]+)\)', text)
    listed = [index for index, op in enumerate(listing.ops) if op.name in MATMULS]
    assert len(products) == len(listed)
    for (result, *operands), index in zip(products, listed, strict=True):
        op = listing.ops[index]
        if not op.is_matmul:  # by a vector: in a kernel with what is around it
            continue
        for position, operand in enumerate(operands):
            axes = plan.uses[index, position].axes
            assert dims_of(read_as[operand], listing.mesh, len(axes)) == [
                tuple(a.name for a in dim) for dim in axes
            ]
        axes = plan.produced[op.results[0]].axes
        assert dims_of(made[result], listing.mesh, len(axes)) == [tuple(a.name for a in dim) for dim in axes]


def annotations(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """split_axes of each value where it is made, and of each value that users read."""
    named = dict(re.findall(r"(%sharding_\d+) = \w+\.sharding @\S+ split_axes = (\[\[[^=:]*\]\])", text))
    made, read_as = dict[str, str](), dict[str, str]()
    for result, source, to, users in SHARD.findall(text):
        split = named[to] if to.startswith("%") else to.split(", partial")[0]
        if users:
            read_as[result] = split
        else:
            made[source] = split
    return made, read_as


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_read_back_as_the_plan(name: str) -> None:
    """What a product makes and reads, as demands; in every notation alike."""
    listing, plan, texts = planned(name)
    modules = [load(texts[form].encode()) for form in FORMS]
    assert len({str(module.module) for module in modules}) == 1
    again, _ = read(modules[0], resolve_mesh(modules[0], None))
    assert again.mesh.axes == listing.mesh.axes
    wanted = [plan.produced[op.results[0]] for op in listing.ops if op.is_matmul]
    assert [op.demand for op in again.ops if op.is_matmul] == wanted
    for old, new in zip(listing.arguments, again.arguments, strict=True):
        type_ = listing.values[old.value].type
        if type_ is not None and type_.rank:
            assert new.demand == plan.settled[old.value]


@pytest.mark.parametrize(
    ("form", "partial"), [("mesh", ", partial = sum[0]>"), ("mesh-20", "partial = sum[0] :"), ("shard", "")]
)
def test_what_is_to_be_summed_is_a_partial_sum_where_it_is_made(form: Form, partial: str) -> None:
    """And whole for its users: the all-reduce is in between."""
    text = dot_of(form, '[{}, {"x"}]', '[{"x"}, {"y"}]', '[{}, {"y"}]')
    assert text.count("partial") == (1 if partial else 0)
    assert partial in text
    made, read_as = annotations(text)
    assert "[[], [1]]" in made["%4"]
    assert "[[], [1]]" in read_as["%6"]


SHIFTED = main_of(
    """%0 = stablehlo.slice %a [0:8, 2:14] : (tensor<8x16xf32>) -> tensor<8x12xf32>
    return %0 : tensor<8x12xf32>""",
    "%a: tensor<8x16xf32>",
    "tensor<8x12xf32>",
)


@pytest.mark.parametrize(
    ("form", "halo"), [("mesh", ""), ("mesh-20", "halo_sizes = [0, 0, 1, 1]"), ("shard", "halo_sizes = [0, 0, 1, 1]")]
)  # fmt: skip
def test_a_window_over_a_split_dimension_names_its_halo(form: Form, halo: str) -> None:
    """x[:, 2:14] over four devices, parts of three from parts of four: a column more on either side; LLVM 19 has no word for it."""
    source, listing, handles = read_text(SHIFTED)
    split = sharding('[{"x"}, {"z"}]')
    made = {0: split, listing.ops[0].results[0]: split}
    text = write(source, handles, listing, Decisions(made, made, {}, {(0, 0): split}), form)
    assert text.count("halo") == (1 if halo else 0)
    assert halo in text
    operand = re.search(r'"stablehlo\.slice"\((%\d+)\)', text)
    assert operand is not None
    reading = next(found for found in SHARD.finditer(text) if found[1] == operand[1])
    assert reading[4] is not None
    named = f"{reading[3]} = {form.removesuffix('-20')}.sharding @mesh split_axes = [[0], [2]] {halo}"
    assert not halo or named in text
    again = load(text.encode())
    assert read(again, resolve_mesh(again, None))[0].arguments[0].demand == split


def test_users_of_a_copy_of_a_copy_read_from_where_it_is_made() -> None:
    """Upstream gives no meaning to a chain of annotations for users."""
    for texts in (planned(name)[2] for name in ("mlp", "loop")):
        sources = {source for _, source, _, users in SHARD.findall(texts["mesh"]) if users}
        results = {result for result, _, _, users in SHARD.findall(texts["mesh"]) if users}
        assert sources
        assert not sources & results


def test_nothing_of_sdy_is_left() -> None:
    for name in PROGRAMS:
        assert not re.search(r"#sdy|sdy\.(sharding|mesh|reshard|named_computation)", planned(name)[2]["mesh"])


@pytest.mark.parametrize("form", FORMS)
def test_a_sub_axis_is_refused(form: Form) -> None:
    with pytest.raises(AutoshardError, match=r'cannot name the sub-axis "z":\(1\)2'):
        dot_of(form, '[{"z":(1)2}, {}]', "[{}, {}]", '[{"z":(1)2}, {}]')


def test_an_order_of_devices_is_refused() -> None:
    text = DOT.replace(
        '"z"=4]>', '"z"=4], device_ids=[1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]>'
    )
    source, listing, handles = read_text(text)
    with pytest.raises(AutoshardError, match="lists its devices"):
        write(source, handles, listing, random_decisions(listing, 0), "mesh")


def test_an_op_on_one_device_is_refused() -> None:
    text = main_of(
        """%0 = stablehlo.abs %a {sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>} : tensor<8x16xf32>
        return %0 : tensor<8x16xf32>"""
    ).replace("func.func", "sdy.mesh @one = <[], device_ids=[1]>\nfunc.func")
    source, listing, handles = read_text(text)
    with pytest.raises(AutoshardError, match=r"<bytes>:5: stablehlo\.abs is to run on one device alone"):
        write(source, handles, listing, random_decisions(listing, 0), "mesh")
