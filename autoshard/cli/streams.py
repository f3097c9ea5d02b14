"""The standard streams: they take every character that is printed, and it is known where they take none at all.

What click prints itself, as help, it writes as UTF-8 where the encoding is ASCII.
"""

import codecs
import io
import os
import sys
from pathlib import Path

from autoshard.errors import AutoshardError

_NEAREST = {"µ": "u", "±": "+-", "…": "...", "·": "*", "≥": ">="}
"""What stands for a character that the encoding of a stream has not got; a question mark for all others."""
_ERRORS = "autoshard.nearest"  # the name of that, as a stream's `errors`


def prepare_streams() -> None:
    """Make both streams take every character, and drop messages where standard error is closed.

    Raises:
        AutoshardError: standard output is closed, said before any work is done.
    """
    codecs.register_error(_ERRORS, _nearest)
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise unwritable("it is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def unwritable(reason: str) -> AutoshardError:
    return AutoshardError(f"cannot write to standard output: {reason}")


def drop_output() -> None:
    """What could not be written is not tried again when Python ends."""
    sys.stdout = io.StringIO()


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_NEAREST.get(character, "?") for character in missing), error.end
