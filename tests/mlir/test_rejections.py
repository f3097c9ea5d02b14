"""What Shardy's verifier or we refuse is shown with its place and its text; nothing that is read ends the process."""

import io
import random

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir.probe import MAX_DEPTH, bracket_depth
from autoshard.mlir.source import load, resolve_mesh
from tests.mlir.modules import main_of, source_of

RETURN = "return %a : tensor<8x16xf32>"


def argument(sharding: str) -> str:
    return main_of(RETURN, f"%a: tensor<8x16xf32>\n  {{sdy.sharding = #sdy.sharding<{sharding}>}}")


def mesh(written: str) -> str:
    return f"sdy.mesh @m = {written}\nfunc.func @main() {{ return }}"


def op(line: str) -> str:
    return main_of(f"{line}\n  {RETURN}")


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        (argument('@mesh, [{"q"}, {}]'), 'unknown axis name: "q"', '4 | {sdy.sharding = #sdy.sharding<@mesh, [{"q"}'),
        (argument('@nowhere, [{"x"}, {}]'), "unknown mesh: @nowhere", "4 | {sdy.sharding = #sdy.sharding<@nowhere"),
        (argument('@mesh, [{"x"}]'), "sharding doesn't match tensor rank: 1 != 2", "3 | func.func"),
        (argument('@mesh, [{"x"}, {"x"}]'), 'duplicate axis ref: "x"', '4 | {sdy.sharding'),
        (argument('@mesh, [{"x"}, {}], replicated={"x"}'), 'duplicate axis ref: "x"', '4 | {sdy.sharding'),
        (argument('@mesh, [{}, {}], replicated={"y", "x"}'), "not ordered w.r.t. mesh", "3 | func.func"),
        (argument('@mesh, [{}, {}], unreduced={"y", "x"}'), "not ordered w.r.t. mesh", "3 | func.func"),
        (argument('@mesh, [{"z":(1)2, "z":(2)2}, {}]'), "two consecutive sub-axes can be merged", '4 | {sdy.sharding'),
        (argument('@mesh, [{"z":(1)2}, {"z"}]'), "both sub-axis and full-axis are used", '4 | {sdy.sharding'),
        (argument('@mesh, [{"z":(1)3}, {}]'), "doesn't divide the size of the full axis 4", '"z":(1)3'),
        (argument('@mesh, [{"z":(1)4}, {}]'), "sub-axis size is equal to the full axis size", '"z":(1)4'),
        (argument('@mesh, [{"x"}, {}p1]'), "dim 1 is empty and closed but has a priority", "3 | func.func"),
        (argument('@mesh, [{"x"}p-1, {}]'), "expecting priority in format 'p<number>'", "p-1"),
        (mesh('<["x"=2], device_ids=[0]>'), "got: 2 != 1", "1 | sdy.mesh @m"),
        (mesh('<["x"=2], device_ids=[1, 1]>'), "sorted device ids must be iota", "device_ids=[1, 1]"),
        (mesh('<["x"=2], device_ids=[-1, 0]>'), "device id must be non-negative, got: -1", "1 | sdy.mesh @m"),
        (mesh('<["x"=2, "x"=2]>'), 'duplicate axis name: "x"', "1 | sdy.mesh @m"),
        (mesh('<["x"=0]>'), "axis size must be at least 1, got: 0", "1 | sdy.mesh @m"),
        (mesh("<[], device_ids=[0, 1]>"), "more than one element", "1 | sdy.mesh @m"),
        (op("%0 = sdy.propagation_barrier %a allowed_direction=BOTH : tensor<8x16xf32>"), "cannot specify `BOTH`", "4 | %0"),
        (op("%0 = sdy.all_gather [{}, {}] %a out_sharding=<@mesh, [{}, {}]> : tensor<8x16xf32>"), "without sharding", "4 | %0"),
        (op('%0 = "tf.Neg"(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>'), "unregistered dialect", '"tf.Neg"'),
        (op("%0 = stablehlo.abs %nowhere : tensor<8x16xf32>"), "undeclared SSA value name", "%nowhere"),
        (main_of(RETURN)[:-20], "line 4:", "4 |"),
    ],
)  # fmt: skip
def test_a_diagnostic_comes_with_the_text_that_it_is_about(text: str, message: str, line: str) -> None:
    with pytest.raises(AutoshardError) as refused:
        source = source_of(text)
        resolve_mesh(source, None)
    assert message in str(refused.value)
    assert line in str(refused.value)


def test_a_long_line_is_shown_around_what_is_wrong() -> None:
    many = ", ".join(f"%a{i}: tensor<8xf32>" for i in range(400))
    last = '%b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"q"}]>}'
    text = f'sdy.mesh @m = <["x"=2]>\nfunc.func @main({many}, {last}) {{ return }}'
    with pytest.raises(AutoshardError) as refused:
        source_of(text)
    shown = str(refused.value).splitlines()[-1]
    assert '[{"q"}]' in shown
    assert len(shown) < 150


UNEVEN = "tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [SHARDING]>}"


@pytest.mark.parametrize(
    ("argument", "result", "what"),
    [
        (UNEVEN.replace("SHARDING", '{"x"}'), "tensor<7xf32>", "argument 0"),
        ("tensor<7xf32>", UNEVEN.replace("SHARDING", '{"x", ?}'), "result 0"),
    ],
)
def test_uneven_arguments_and_results_are_refused(argument: str, result: str, what: str) -> None:
    source = source_of(main_of("return %a : tensor<7xf32>", f"%a: {argument}", result))
    reason = f"<bytes>:3: {what} of type tensor<7xf32> .* of size 7 does not divide into 2 shards"
    with pytest.raises(AutoshardError, match=reason):
        resolve_mesh(source, None)


def test_empty_dimensions_and_scalars_divide() -> None:
    empty = '%a: tensor<0xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
    empty += ", %b: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}"
    assert (
        resolve_mesh(source_of(main_of("return %a : tensor<0xf32>", empty, "tensor<0xf32>")), None).name
        == "mesh"
    )


@pytest.mark.parametrize(
    "text", ["module attributes {a = " + "[" * 30000, "module attributes {a = " + "{b = " * 30000]
)
def test_nesting_that_kills_the_parser_is_refused(text: str) -> None:
    with pytest.raises(AutoshardError, match="reading it kills MLIR"):
        load(text.encode())


def test_ops_nested_too_deep_are_refused() -> None:
    opened = '"stablehlo.if"(%p) ({ ' * (MAX_DEPTH + 1)
    closed = "stablehlo.return }, { stablehlo.return }) : (tensor<i1>) -> () " * (MAX_DEPTH + 1)
    with pytest.raises(AutoshardError, match="ops are nested 153 deep"):
        load(f"func.func @main(%p: tensor<i1>) {{ {opened} {closed} return }}".encode())


def test_brackets_in_many_strings_are_no_nesting() -> None:
    notes = ", ".join(f'x.a{i} = "([{{<"' for i in range(200))
    text = f"module attributes {{{notes}}} {{ func.func @main() {{ return }} }}"
    assert bracket_depth(text.encode()) > MAX_DEPTH
    assert load(text.encode()).main == "main"


def test_damaged_bytecode_never_ends_the_process() -> None:
    buffer = io.BytesIO()
    source_of(main_of(RETURN)).module.operation.write_bytecode(buffer)
    whole, rng = buffer.getvalue(), random.Random(7)
    for _ in range(8):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[rng.randrange(5, len(whole))] = rng.randrange(256)
        try:
            load(bytes(damaged))
        except AutoshardError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (mesh('<["\\C3"=2]>'), "is not UTF-8"),
        (main_of(RETURN).replace("@main", '@"\\C3"'), "is not UTF-8"),
        (argument('@mesh, [{"\\C3"}, {}]'), "reading it kills MLIR"),
        (main_of(RETURN).replace("@mesh", '@"\\C3"'), "is not UTF-8"),
    ],
)
def test_names_that_are_not_text_are_refused(text: str, reason: str) -> None:
    with pytest.raises(AutoshardError, match=reason):
        resolve_mesh(source_of(text), None)


def test_modules_in_a_module_are_named() -> None:
    with pytest.raises(AutoshardError, match="has modules inside it and no function"):
        load(f"module {{ {main_of(RETURN)} }}".encode())


def test_a_zero_byte_is_not_text() -> None:
    with pytest.raises(AutoshardError, match="byte 8 is zero"):
        load(b"module {\0}")
