"""From what the user names (a path, bytes, standard input) to a parsed module; knows file formats, not what is in the module.

Formats are told apart by content: gzip by its magic number, MLIR bytecode by `ML\xefR`, StableHLO's portable artifact by the producer that
its bytecode names; anything else is MLIR text.
"""

import gzip
import hashlib
import re
import reprlib
import sys
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from autoshard.errors import AutoshardError
from autoshard.mlir.boundary import refuse_uneven
from autoshard.mlir.context import ir, new_context, stablehlo
from autoshard.mlir.diagnostics import as_user_error
from autoshard.mlir.meshes import chosen_mesh, mesh_warnings, meshes_text
from autoshard.mlir.probe import MAX_DEPTH, bracket_depth, require_readable
from autoshard.mlir.rewrites import refuse_unwritable
from autoshard.mlir.upstream.demands import with_demands
from autoshard.mlir.upstream.rewrite import is_upstream
from autoshard.sharding import Mesh

_GZIP_MAGIC = b"\x1f\x8b"
_BYTECODE_MAGIC = b"ML\xefR"
_ESCAPED_BYTE = re.compile(
    rb"\\[89A-Fa-f][0-9A-Fa-f]"
)  # beyond ASCII: where it makes no UTF-8, an error that quotes it is an abort
_PORTABLE_PRODUCER = b"StableHLO_v"  # follows the magic number and a version


class ModuleBytes(bytes):
    """A module that was read already, and what messages are to call the place that it came from."""

    name: str

    def __new__(cls, data: bytes, name: str) -> Self:
        made = super().__new__(cls, data)
        made.name = name
        return made


@dataclass(frozen=True, slots=True)
class SourceModule:
    """A module as the user gave it; nothing here changes it, readers and writers work on clones."""

    module: ir.Module
    context: ir.Context
    main: str  # name of the entry function
    name: str  # the path as given, "standard input", or "<bytes>"
    sha256: str  # of the bytes after gunzip
    has_locations: bool  # beyond the positions in its own text


def load(model: str | Path | bytes) -> SourceModule:
    """Read a module from a path, `-` for standard input, or bytes; a text of several lines is the module itself.

    Raises:
        AutoshardError: nothing there, not gzip to its end, not MLIR, or no single entry function.
    """
    if not isinstance(model, (str, Path, bytes)) or model == "":  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AutoshardError(
            "no model is named" if model == "" else f"{reprlib.repr(model)} is no model",
            fix="give a file, or a StableHLO module as text or bytecode",
        )
    if isinstance(model, str) and "\n" in model:
        model = model.encode()
    if not isinstance(model, bytes):
        model = read_standard_input() if str(model) == "-" else ModuleBytes(_read(model), str(model))
    name = model.name if isinstance(model, ModuleBytes) else "<bytes>"
    data = _gunzipped(model, name)
    if not data.strip():
        raise AutoshardError(
            "the model is empty", where=name, fix="give a StableHLO module, as text or bytecode"
        )
    context = new_context()
    module = _parse(data, context, name)
    has_locations = data.startswith(_BYTECODE_MAGIC) or b"loc(" in data
    with _names_are_text(name):
        entry = entry_function(module, name)
    return SourceModule(module, context, entry, name, hashlib.sha256(data).hexdigest(), has_locations)


def resolve_mesh(source: SourceModule, user_axes: Sequence[tuple[str, int]] | None) -> Mesh:
    """The mesh to plan for: the module's, the user's, or both where they agree; `user_axes` are the pairs of --mesh, or None.

    Raises:
        AutoshardError: no mesh anywhere, shardings on meshes of other devices, the user's mesh is not the module's, or what the module
            demands on it cannot be.
    """
    module = source.module.operation
    refuse_unwritable(module, source.name)
    with _names_are_text(source.name):
        mesh = chosen_mesh(module, source.name, user_axes)
        refuse_uneven(module, source.main, source.name)
    return mesh


def own_meshes(source: SourceModule) -> str:
    """The meshes that a module names, as it writes them; "" where it names none."""
    with _names_are_text(source.name):
        return meshes_text(source.module.operation, source.name)


def warnings_of_meshes(source: SourceModule, mesh: Mesh, *, is_asked: bool) -> tuple[str, ...]:
    """What there is to say of the meshes that are not planned for; `is_asked`: the user has named `mesh`."""
    return mesh_warnings(source.module.operation, source.name, mesh, is_asked=is_asked)


@contextmanager
def _names_are_text(name: str) -> Generator[None, None, None]:
    try:
        yield
    except RuntimeError as error:  # of the bindings
        if "str_from_cstr" not in str(error):
            raise
        raise AutoshardError(
            "the name of a mesh, of an axis or of a function is not UTF-8",
            where=name,
            fix="use printable ASCII",
        ) from None


def read_standard_input() -> ModuleBytes:
    """Raises AutoshardError: it is closed, or cannot be read."""
    name = "standard input"
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise AutoshardError("is closed", where=name, fix="name a file, or pipe a module into it")
    try:
        return ModuleBytes(sys.stdin.buffer.read(), name)
    except OSError as error:
        raise AutoshardError(f"cannot be read: {error.strerror}", where=name) from None


def _read(path: str | Path) -> bytes:
    name = str(path)
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise AutoshardError("no such file", where=name) from None
    except IsADirectoryError:
        raise AutoshardError("is a directory", where=name, fix="name one module file") from None
    except OSError as error:
        raise AutoshardError(f"cannot be read: {error.strerror}", where=name) from None


def _gunzipped(data: bytes, name: str) -> bytes:
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise AutoshardError(
            f"damaged gzip file: {error}", where=name, fix="copy or compress it again"
        ) from None


def _parse(data: bytes, context: ir.Context, name: str) -> ir.Module:
    is_bytecode = data.startswith(_BYTECODE_MAGIC)
    text = None if is_bytecode else _as_text(data, name)
    if is_bytecode or _ESCAPED_BYTE.search(data) or bracket_depth(data) > MAX_DEPTH:
        require_readable(data, name)
    if is_bytecode and _PORTABLE_PRODUCER in data[:32]:
        return _parse_portable(data, context, name)
    if text is not None and is_upstream(data):
        data = with_demands(data, name)
    try:
        with as_user_error(f"{name} is not a StableHLO module that MLIR can read", text=text):
            return ir.Module.parse(data, context)
    except ValueError as error:  # lengths in damaged bytecode
        raise AutoshardError(f"damaged bytecode: {error}", where=name, fix="write the file again") from None


def _as_text(data: bytes, name: str) -> str:
    try:
        text = data.decode()
        wrong = f"byte {data.index(0)} is zero" if b"\0" in data else ""
    except UnicodeDecodeError as error:
        text, wrong = "", f"byte {error.start} is not UTF-8"
    if wrong:
        raise AutoshardError(
            f"neither MLIR text nor bytecode: {wrong}",
            where=name,
            fix="give a StableHLO module, as text or bytecode, gzipped or not",
        )
    return text


def _parse_portable(data: bytes, context: ir.Context, name: str) -> ir.Module:
    said: list[str] = []

    def note(diagnostic: ir.Diagnostic) -> bool:
        said.append(f"  {diagnostic.message}")
        return True

    handler = cast(ir.DiagnosticHandler, context.attach_diagnostic_handler(note))
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except ValueError as error:
        reason = "\n".join(said) or f"  {error}"
        raise AutoshardError(
            f"{name} is not a portable artifact that StableHLO can read:\n{reason}"
        ) from None
    finally:
        handler.detach()


def entry_function(module: ir.Module, name: str) -> str:
    """The function to plan: `main`, or the only public one.

    Raises:
        AutoshardError: no function, several without a main, or one without a body.
    """
    operations = [op.operation for op in module.body.operations]
    functions = [op for op in operations if op.name == "func.func"]
    if not functions:
        nested = any(op.name == "builtin.module" for op in operations)
        raise AutoshardError(
            f"the module has {'modules inside it and ' if nested else ''}no function",
            where=name,
            fix="give a module with a func.func @main",
        )
    without_body = [f for f in functions if not len(f.regions[0].blocks)]
    if without_body:
        symbol = ir.StringAttr(without_body[0].attributes["sym_name"]).value
        raise AutoshardError(f"function @{symbol} has no body", where=name, fix="give its definition")
    by_name = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions}
    public = [n for n, f in by_name.items() if "sym_visibility" not in f.attributes]
    entry = "main" if "main" in by_name else (public if len(public) == 1 else list(by_name))[0]
    if entry != "main" and len(public) != 1 and len(by_name) > 1:
        raise AutoshardError(
            f"no function @main among {', '.join(f'@{n}' for n in sorted(by_name)[:8])}",
            where=name,
            fix="name the entry function main",
        )
    if len(by_name[entry].regions[0].blocks) > 1:
        raise AutoshardError(
            f"function @{entry} has branches between blocks", where=name, fix="use stablehlo.while and case"
        )
    return entry
