"""JSON text in a Source -> its objects, keys and single values, one after the other, with the place of what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from autoshard.errors import AutoshardError
from autoshard.problem.iopddl.source import Source

_BLANK = re.compile(rb"[ \t\n\r]*")
_WORD = re.compile(rb"[^ \t\n\r\[\]{},:\"]*")
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\.)*+', re.DOTALL)
_SCALAR = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_WHOLE = re.compile(rb"-?(?:0|[1-9]\d*)")
_DEEPEST = 200  # levels of a value that is skipped
_SHOWN = 40  # bytes of a word that a message repeats
_INT64 = range(-(2**63), 2**63)


class Walk:
    """Consumes a JSON text. Every method starts at the next token and raises AutoshardError where it is another one."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def peek(self) -> bytes:
        """The next byte that is no blank; b"" at the end of the file."""
        source = self.source
        while True:
            match = _BLANK.match(source.text, source.at)
            assert match is not None
            source.at = match.end()
            if source.at < len(source.text):
                return source.text[source.at : source.at + 1]
            if not source.fill():
                return b""

    def take(self, byte: bytes) -> bool:
        """Consume the byte if it is next."""
        if self.peek() != byte:
            return False
        self.source.at += 1
        return True

    def expect(self, byte: bytes, what: str) -> None:
        """Consume the byte, which begins or ends `what`."""
        if not self.take(byte):
            raise self.unexpected(f"{byte.decode()} of {what}")

    def members(self, what: str) -> Iterator[str]:
        """The keys of an object; the caller consumes the value of each before it asks for the next."""
        self.expect(b"{", what)
        seen: set[str] = set()
        if self.take(b"}"):
            return
        while True:
            key = self.string(f"a key of {what}")
            if key in seen:
                raise self.source.error(f"{what} has a second {key!r}")
            seen.add(key)
            self.expect(b":", f"the value of {key!r}")
            yield key
            if self.take(b"}"):
                return
            self.expect(b",", f"or }} of {what}")

    def string(self, what: str) -> str:
        """A string, with its escapes resolved."""
        if self.peek() != b'"':
            raise self.unexpected(what)
        source = self.source
        while True:
            match = _STRING.match(source.text, source.at)
            assert match is not None
            end = match.end()
            if source.text[end : end + 1] == b'"':
                break
            at_edge = len(source.text) - end <= 1  # perhaps a backslash whose character is still to come
            if not at_edge or not source.fill():
                raise source.error("malformed: a string that does not end")
        text, source.at = source.text[source.at : end + 1], end + 1
        try:
            return json.loads(text)
        except ValueError as error:
            raise source.error(f"malformed string: {error}") from None

    def word(self) -> bytes:
        """What stands up to the next blank or mark; b"" in front of a mark."""
        self.peek()
        source = self.source
        while True:
            match = _WORD.match(source.text, source.at)
            assert match is not None
            if match.end() < len(source.text) or not source.fill():
                break
        source.at = match.end()
        return match[0]

    def whole_or_null(self, what: str) -> int | None:
        """A whole number of 64 bits, or null."""
        if self.peek() in (b"", b'"', b"[", b"{"):
            raise self.unexpected(f"the whole number {what}")
        place = self.source.offset
        word = self.word()
        if word == b"null":
            return None
        if not _WHOLE.fullmatch(word):
            raise AutoshardError(f"{what} is no whole number: {shown(word)}", where=f"byte {place}")
        if len(word) > 20 or int(word) not in _INT64:
            raise AutoshardError(f"{what} does not fit 64 bits: {shown(word)}", where=f"byte {place}")
        return int(word)

    def skip(self, depth: int = 0) -> None:
        """Consume any value."""
        if depth > _DEEPEST:
            raise self.source.error(f"malformed: nested more than {_DEEPEST} levels deep")
        first = self.peek()
        if first == b"{":
            for _ in self.members("an object"):
                self.skip(depth + 1)
        elif first == b"[":
            self.source.at += 1
            if self.take(b"]"):
                return
            self.skip(depth + 1)
            while not self.take(b"]"):
                self.expect(b",", "or ] of a list")
                self.skip(depth + 1)
        elif first == b'"':
            self.string("a string")
        else:
            word = self.word()
            if not _SCALAR.fullmatch(word):
                self.source.at -= len(word)
                raise self.unexpected("a value of JSON")

    def end(self) -> None:
        """Nothing but blanks is left."""
        if self.peek():
            raise self.unexpected("the end of the file")

    def unexpected(self, wanted: str) -> AutoshardError:
        """The error that something else than `wanted` is next."""
        if not self.peek():
            return self.source.error(f"cut off: the file ends where {wanted} should be")
        source = self.source
        found = shown(source.text[source.at : source.at + _SHOWN // 2])
        return source.error(f"malformed: {found} where {wanted} should be")


def shown(word: bytes) -> str:
    """A piece of the file as a message repeats it."""
    text = word[:_SHOWN].decode("utf-8", "backslashreplace")
    return repr(text) if len(word) <= _SHOWN else f"{text!r}..."
