"""Every format of a module reads to the same listing; every kind of bad input is refused with its reason."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir.context import new_context, stablehlo
from autoshard.mlir.source import load, resolve_mesh
from tests.mlir.modules import main_of, source_of

TEXT = main_of("return %a : tensor<8x16xf32>")
PLAIN = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"


def bytecode(text: str) -> bytes:
    buffer = io.BytesIO()
    source_of(text).module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def portable(text: str) -> bytes:
    return stablehlo.serialize_portable_artifact(source_of(text).module, stablehlo.get_current_version())


@pytest.mark.parametrize("name", ["m.mlir", "m.mlirbc", "m.mlir.gz", "m.mlirbc.gz", "misnamed.txt"])
def test_formats_are_told_apart_by_content(name: str, tmp_path: Path) -> None:
    data = bytecode(TEXT) if "bc" in name else TEXT.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    source = load(path)
    assert source.main == "main"
    assert str(source.module) == str(source_of(TEXT).module)


def test_a_portable_artifact_reads_as_its_module() -> None:
    assert str(load(portable(PLAIN)).module) == str(source_of(PLAIN).module)


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(gzip.compress(TEXT.encode()))

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert load("-").name == "standard input"


def test_the_hash_is_of_the_uncompressed_bytes() -> None:
    assert (
        load(gzip.compress(TEXT.encode())).sha256 == load(TEXT.encode()).sha256 != load(bytecode(TEXT)).sha256
    )


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError, match=r"nowhere\.mlir: no such file"):
        load(tmp_path / "nowhere.mlir")
    with pytest.raises(AutoshardError, match="is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the model is empty"),
        (b" \n", "the model is empty"),
        (gzip.compress(TEXT.encode())[:-12], "damaged gzip file"),
        (b"\x1f\x8bnot gzip", "damaged gzip file"),
        (b"hello", r"line 1:1: custom op 'hello' is unknown"),
        (b"\xff\xfe\x00", "byte 0 is not UTF-8"),
        (b"ML\xefR" + b"123", "bytecode version"),
        (bytecode(TEXT)[:150], "not a StableHLO module"),
        (portable(PLAIN)[:100], "not a portable artifact"),
        (b"module {}", "the module has no function"),
        (b"func.func @f() { return }\nfunc.func @g() { return }", "no function @main among @f, @g"),
        (b"func.func private @main()", "function @main has no body"),
        (b"func.func @main() -> tensor<2xf32> { return }", "line 1:"),
    ],
)
def test_what_is_not_a_module_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    with pytest.raises(AutoshardError, match=reason):
        load(data)


def test_mlirs_own_words_reach_the_user() -> None:
    wrong = main_of("%0 = stablehlo.add %a, %b : tensor<8x16xf32> return %0 : tensor<8x16xf32>")
    with pytest.raises(AutoshardError, match="undeclared SSA value name"):
        load(wrong.encode())


def test_a_single_function_of_another_name_is_the_entry() -> None:
    assert source_of(PLAIN.replace("@main", "@forward")).main == "forward"


def test_the_only_public_function_is_the_entry() -> None:
    text = PLAIN.replace("@main", "@forward") + "\nfunc.func private @helper() { return }"
    assert source_of(text).main == "forward"


def test_reading_prints_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Diagnostics are in the error, not on standard error."""
    for data in (b"hello", portable(PLAIN)[:100], b"func.func @main() -> tensor<2xf32> { return }"):
        with pytest.raises(AutoshardError):
            load(data)
    assert capfd.readouterr() == ("", "")


class TestMesh:
    def test_the_modules_own_mesh(self) -> None:
        assert str(resolve_mesh(source_of(TEXT), None)) == '<["x"=2, "y"=2, "z"=4]>'

    def test_an_empty_mesh_is_ignored(self) -> None:
        text = 'sdy.mesh @empty_mesh = <[]>\nsdy.mesh @m = <["a"=1, "b"=4]>\n' + PLAIN
        assert resolve_mesh(source_of(text), None).name == "m"

    def test_the_users_mesh_where_the_module_has_none(self) -> None:
        assert resolve_mesh(source_of(PLAIN), [("data", 4)]).axis_names == ("data",)

    def test_the_users_mesh_must_be_the_modules(self) -> None:
        assert resolve_mesh(source_of(TEXT), [("x", 2), ("y", 2), ("z", 4)]).name == "mesh"
        with pytest.raises(AutoshardError, match='--mesh <\\["x"=4\\]> is not the module\'s mesh @mesh'):
            resolve_mesh(source_of(TEXT), [("x", 4)])

    def test_the_user_chooses_among_several(self) -> None:
        text = 'sdy.mesh @one = <["a"=2]>\nsdy.mesh @two = <["b"=4]>\n' + PLAIN
        assert resolve_mesh(source_of(text), None).name == "two"
        assert resolve_mesh(source_of(text), [("a", 2)]).name == "one"

    def test_no_mesh_anywhere(self) -> None:
        with pytest.raises(AutoshardError, match="neither the module nor the command names a mesh"):
            resolve_mesh(source_of(PLAIN), None)

    @pytest.mark.parametrize(
        ("axes", "reason"),
        [([("a", 0)], "has no devices"), ([("a", 2), ("a", 2)], "named twice"), ([], "the mesh has no axes")],
    )
    def test_impossible_axes(self, axes: list[tuple[str, int]], reason: str) -> None:
        with pytest.raises(AutoshardError, match=reason):
            resolve_mesh(source_of(PLAIN), axes)


def test_two_contexts_live_side_by_side() -> None:
    """Passes are registered once a process, contexts made at will."""
    assert new_context() is not new_context()
