"""What MLIR says about a module, as errors that a user can act on."""

from collections.abc import Generator
from contextlib import contextmanager

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir


@contextmanager
def as_user_error(what: str, fix: str = "") -> Generator[None, None, None]:
    """Turn MLIR's error inside the block into an `AutoshardError`: `what`, then MLIR's own words with their locations."""
    try:
        yield
    except ir.MLIRError as error:
        raise AutoshardError(f"{what}:\n{diagnostics_text(error)}", fix=fix) from None


def diagnostics_text(error: ir.MLIRError) -> str:
    """One line a diagnostic, in the form `line 3:14: message`."""
    lines = [_line(str(d.location), str(d.message)) for d in error.error_diagnostics]
    return "\n".join(f"  {line}" for line in lines) or f"  {error}"


def _line(location: str, message: str) -> str:
    place = location.removeprefix("loc(").removesuffix(")")
    if place.startswith('"-":'):
        place = "" if place == '"-":0:0' else f"line {place.removeprefix(chr(34) + '-' + chr(34) + ':')}"
    return message if place in ("", "unknown") else f"{place}: {message}"
