"""Every construct of the sdy dialect is planned, and its output, read on its own, says what the input asks."""

import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from autoshard import pipeline
from autoshard.mlir.context import Value, sdy
from autoshard.mlir.forms import form_named
from autoshard.mlir.isolated import run_isolated
from tests.sdy.constructs import CONSTRUCTS, Construct
from tests.sdy.reading import Output, Sharding, honours
from tests.sdy.runs import Worker

CASES = [(name, form) for name, construct in CONSTRUCTS.items() for form in construct.forms]
INSERT = "sdy-close-shardings,func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
RULES = "func.func(sdy-populate-op-sharding-rules)"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as running:
        yield running


@pytest.fixture(scope="module")
def written() -> Callable[[str, str], str]:
    """The planned module of a construct in a form."""
    found: dict[tuple[str, str], str] = {}

    def write(name: str, form: str) -> str:
        if (name, form) not in found:
            request = pipeline.Request(memory_bytes=None, form=form_named(form))
            loaded = pipeline.load_module(CONSTRUCTS[name].text.encode(), request)
            plan = pipeline.plan_loaded(loaded, time_limit_s=20)
            found[name, form] = pipeline.write_planned(loaded, plan)
        return found[name, form]

    return write


def found_at(output: Output, place: str) -> list[Sharding | None]:
    """What the output says of a value: see `constructs` for the places."""
    name, _, number = place.partition("#")
    if name.startswith("arg"):
        return [output.at_boundary("arg_attrs")[int(name[3:])]]
    if name.startswith("result"):
        return [output.at_boundary("res_attrs")[int(name[6:])]]
    op_name = name.removeprefix(">")
    (op,) = output.ops(op_name if "." in op_name else f"stablehlo.{op_name}")
    value: Value = (op.operands if place.startswith(">") else op.results)[int(number or 0)]
    return output.on_the_way(value) if place.startswith(">") else output.settled(value)


def complaints(output: Output, construct: Construct) -> list[str]:
    found = {place: found_at(output, place) for place in (*construct.wanted, *construct.equal)}
    broken = [
        f"{place} is to be {asked}, and is {found[place]}"
        for place, asked in construct.wanted.items()
        if not any(has is not None and honours(has, output.asked(asked)) for has in found[place])
    ]
    if len({found[place][-1] for place in construct.equal}) > 1:
        broken.append(f"{construct.equal} differ")
    return broken


@pytest.mark.parametrize(("name", "form"), CASES)
def test_the_output_says_what_the_input_asks(
    name: str, form: str, written: Callable[[str, str], str]
) -> None:
    """For XLA, which propagates by itself, what Shardy's propagation makes of the output."""
    text, construct = written(name, form), CONSTRUCTS[name]
    output = Output(text)
    assert [kept for kept in construct.kept if kept not in text] == []
    at_boundary = {p: asked for p, asked in construct.wanted.items() if p.startswith(("arg", "result"))}
    assert complaints(output, Construct("", at_boundary)) == []
    if form == "xla":
        output = Output(run_isolated(output.module.operation, "sdy-propagation-pipeline"))
    assert complaints(output, construct) == [], text


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_shardys_own_pass_adds_no_reshard(name: str, written: Callable[[str, str], str]) -> None:
    """Whatever the construct, the changes of sharding are in the output already."""
    output = Output(written(name, "shardy"))
    before = len(output.ops("sdy.reshard"))
    done = run_isolated(output.module.operation, f"{RULES},{INSERT}")
    assert len(Output(done).ops("sdy.reshard")) <= before, str(done)


RUN = [name for name, construct in CONSTRUCTS.items() if construct.compared_on and "xla" in construct.forms]


@pytest.mark.parametrize("name", RUN)
def test_xla_takes_the_output_and_numbers_stay(
    name: str, written: Callable[[str, str], str], worker: Worker
) -> None:
    """XLA compiles the form for it as it is, and eight devices compute what the input does, on one device but for manual computations."""
    construct = CONSTRUCTS[name]
    found = worker.results(written(name, "xla"), 8)
    expected = worker.results(construct.text, construct.compared_on)
    assert found
    for has, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(has, wanted, rtol=1e-5, atol=1e-5)


_DOCUMENT = (Path(__file__).parents[2] / "docs" / "sdy.md").read_text()
_ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in _DOCUMENT.splitlines()
    if line.startswith("| ")
]


def test_rows_of_the_document_are_the_constructs() -> None:
    """Every construct that a row names is tested, every one that is tested is in a row, and ops and attributes name at least one."""
    named = {name for row in _ROWS for name in re.findall(r"`([^`]+)`", row[-1])}
    assert named == set(CONSTRUCTS)
    assert [row[0] for row in _ROWS if row[0].startswith("`sdy.") and not row[-1]] == []


def test_every_op_and_attribute_of_the_bindings_has_a_row() -> None:
    """What jaxlib's bindings register: a new one has no row, and fails here."""
    views = [getattr(sdy, name) for name in dir(sdy)]
    ops = {view.OPERATION_NAME for view in views if hasattr(view, "OPERATION_NAME")}
    attributes = {name for name in dir(sdy) if name.endswith("Attr")}
    enums = {
        view.__name__ for view in views if isinstance(view, type) and issubclass(view, Enum) and list(view)
    }
    rows = {row[0].strip("`") for row in _ROWS}
    assert {"sdy.reshard", "sdy.mesh"} < ops
    assert {"AxisRefAttr", "PropagationDirection"} < attributes | enums
    assert (ops | attributes | enums) - rows == set()


@pytest.mark.parametrize(
    ("found", "asked", "holds"),
    [
        ('[{"x"}, {}]', '[{"x"}, {}]', True),
        ('[{"x"}, {"y"}]', '[{"x"}, {}]', False),
        ('[{"x"}, {}]', "[{}, {?}]", False),
        ('[{"x", "y"}, {}]', '[{"x", ?}, {?}]', True),
        ('[{"y", "x"}, {}]', '[{"x", ?}, {?}]', False),
        ("[{}, {}]", '[{"x", ?}, {?}]', False),
        ('[{"y"}, {}]', '[{"y":(1)2, ?}, {}]', True),
        ('[{"y":(2)2}, {}]', '[{"y":(1)2, ?}, {}]', False),
        ('[{"y":(1)2}, {}]', '[{"y", ?}, {}]', False),
        ('[{"y"}, {}]', '[{"y":(1)2}, {}]', False),
        ('[{"y":(1)2}, {}]', '[{?}, {?}], replicated={"y":(2)2}', True),
        ('[{"y"}, {}]', '[{?}, {?}], replicated={"y":(2)2}', False),
        ('[{}, {}], unreduced={"x"}', '[{?}, {?}], replicated={"x"}', False),
        ("[{}, {}]", '[{}, {}], unreduced={"x"}', False),
        ('[{}, {}], unreduced={"x"}', "[{}, {}]", False),
        ('[{}, {}], unreduced={"x"}', '[{?}, {?}], unreduced={"x"}', True),
    ],
)
def test_what_honours_a_demand(found: str, asked: str, holds: bool) -> None:
    """The reader's own truth table."""
    output = Output(CONSTRUCTS["closed"].text)
    assert honours(output.asked(f"@mesh, {found}"), output.asked(f"@mesh, {asked}")) == holds


def test_another_order_of_devices_and_no_one_device_honour_nothing() -> None:
    output = Output(CONSTRUCTS["closed"].text)
    reversed_ = output.asked('mesh<["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>, [{"x"}, {}]')
    assert not honours(reversed_, output.asked('@mesh, [{"x"}, {}]'))
    assert honours(output.asked('mesh<["x"=2, "y"=4]>, [{"x"}, {}]'), output.asked('@mesh, [{"x"}, {}]'))
    one = output.asked("mesh<[], device_ids=[3]>, []")
    assert not honours(output.asked("@mesh, []"), one)
    assert not honours(output.asked("mesh<[], device_ids=[4]>, []"), one)
    assert honours(one, one)
