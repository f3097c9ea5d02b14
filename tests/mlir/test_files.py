"""Output files are whole or not there."""

import gzip
import os
from pathlib import Path
from threading import Thread

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir import files
from autoshard.mlir.source import load
from tests.mlir.modules import main_of

TEXT = main_of("return %a : tensor<8x16xf32>")


@pytest.mark.parametrize("name", ["m.mlir", "m.mlirbc", "m.mlir.gz", "m.mlirbc.gz"])
def test_a_module_is_written_as_its_name_says(name: str, tmp_path: Path) -> None:
    files.write_module(tmp_path / name, TEXT)
    data = (tmp_path / name).read_bytes()
    data = gzip.decompress(data) if name.endswith(".gz") else data
    assert data.startswith(b"ML\xefR") == ("bc" in name)
    assert str(load(tmp_path / name).module) == str(load(TEXT.encode()).module)


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    files.write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(AutoshardError, match="No space left"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_where_nothing_can_be_written_is_said_beforehand(tmp_path: Path) -> None:
    files.require_writable(tmp_path / "new.mlir")
    with pytest.raises(AutoshardError, match="no such folder"):
        files.require_writable(tmp_path / "nowhere" / "m.mlir")
    with pytest.raises(AutoshardError, match="is a directory"):
        files.require_writable(tmp_path)


def test_a_file_gets_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    files.write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("name", ["-", "m", "m.foo", "m.mlir.txt"])
def test_a_name_says_a_format_of_modules(name: str) -> None:
    with pytest.raises(AutoshardError, match=r"let it end in \.mlir"):
        files.require_module_format(Path(name))


def test_standard_output_is_no_file() -> None:
    with pytest.raises(AutoshardError, match="standard output has the summary"):
        files.require_writable(Path("-"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    """Nothing takes the place of what is no file."""
    pipe, read = tmp_path / "pipe.json", list[bytes]()
    os.mkfifo(pipe)
    reader = Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    files.write_bytes(pipe, b"plan")
    reader.join(timeout=20)
    assert read == [b"plan"]
    assert pipe.is_fifo()
