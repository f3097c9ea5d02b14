"""A file, gzipped or not -> a window of its text that moves forward and stays small."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from autoshard.errors import AutoshardError

_BLOCK = 1 << 19  # bytes read at once: the arrays made of a block then stay in the processor's cache
_WIDEST = 1 << 22  # bytes: no number, string or gap is longer in any sensible file


class Source:
    """`text[at:]` has been read and not consumed yet. Whoever consumes moves `at` forward."""

    def __init__(self, path: Path, block: int = _BLOCK) -> None:
        """Raises AutoshardError: there is no such file, or it may not be read."""
        self.text, self.at, self.block = b"", 0, block
        self._before = 0  # bytes of the file before text[0]
        try:
            raw = path.open("rb")
            self._closing = raw
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
        except OSError as error:
            raise _unreadable(error) from None
        self._file = cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb")) if packed else raw

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @property
    def offset(self) -> int:
        """Bytes of the (unpacked) text before text[at]."""
        return self._before + self.at

    def fill(self) -> bool:
        """Drop what is consumed and append a block; False at the end of the file.

        Raises:
            AutoshardError: a damaged gzip file, a failing disk, or a single word of many megabytes.
        """
        if len(self.text) - self.at > max(_WIDEST, 2 * self.block):
            raise self.error(f"malformed: no end of a number, string or gap in {_WIDEST} bytes")
        try:
            block = self._file.read(self.block)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise AutoshardError(f"damaged gzip file: {error}") from None
        except OSError as error:
            raise _unreadable(error) from None
        self._before += self.at
        self.text, self.at = self.text[self.at :] + block, 0
        return bool(block)

    def error(self, reason: str) -> AutoshardError:
        """An error at the present place."""
        return AutoshardError(reason, where=f"byte {self.offset}")


def _unreadable(error: OSError) -> AutoshardError:
    return AutoshardError(f"cannot be read: {error.strerror or error}")
