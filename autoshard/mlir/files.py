"""Output files written whole or not at all."""

import gzip
import io
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, new_context


def require_writable(path: Path) -> None:
    """Raises AutoshardError: the file cannot be written there, said before the work and not after it."""
    if str(path) == "-":
        raise AutoshardError("standard output has the summary", where="-", fix="name a file")
    folder = path.parent
    if not folder.is_dir():
        raise AutoshardError("no such folder", where=str(folder), fix="create it, or name another file")
    if path.is_dir():
        raise AutoshardError("is a directory", where=str(path), fix="name a file in it")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise AutoshardError("may not be written", where=str(path), fix="name a file that you may write")


def require_module_format(path: Path) -> None:
    """Raises AutoshardError: the name of a file for a module does not say in which format."""
    if path.suffix not in (".mlir", ".mlirbc", ".gz"):
        raise AutoshardError(
            "the name says no format of a module",
            where=str(path),
            fix="let it end in .mlir (text) or .mlirbc (bytecode), with .gz behind it to have it compressed",
        )


def write_module(path: Path, text: str) -> None:
    """Write module text as the name asks: `.mlirbc` as bytecode, `.gz` after either compressed."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    data = _bytecode(text) if plain.suffix == ".mlirbc" else text.encode()
    write_bytes(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """A device or a pipe is written to; nothing takes its place.

    Raises:
        AutoshardError: the system refused; what was there before is then still there.
    """
    target = path.resolve()
    with _refusals(path):
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                file.write(data)
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            Path(temporary).replace(target)
        finally:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def _refusals(path: Path) -> Generator[None]:
    """Raises AutoshardError: what the system says meanwhile."""
    try:
        yield
    except OSError as error:
        raise AutoshardError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _bytecode(text: str) -> bytes:
    buffer = io.BytesIO()
    ir.Module.parse(text, new_context()).operation.write_bytecode(buffer)
    return buffer.getvalue()
