"""Numbers as people read them, and back. GB and GiB are told apart: 1 GB = 10^9 bytes, 1 GiB = 2^30 bytes."""

import re

from autoshard.errors import AutoshardError

_DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """`16GB`, `15.75GiB`, `17000000000` in bytes.

    Raises:
        AutoshardError: no number, or a unit that is not one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.
    """
    match = _SIZE.fullmatch(text)
    units = _DECIMAL | _BINARY
    unit = (match.group(2) or "B").upper() if match else ""
    if match is None or unit not in units:
        raise AutoshardError(
            f"cannot read the memory size {text!r}",
            fix="write a number and a unit, as in 16GB (10^9) or 15.75GiB (2^30)",
        )
    size = round(float(match.group(1)) * units[unit])
    if size <= 0:
        raise AutoshardError(
            f"a memory size of {text!r} holds nothing", fix="give a positive size, or none for no limit"
        )
    return size


def bytes_text(count: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:.0f} {unit}"
    return f"{count} B"


def time_text(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns} ns"


def times_text(ns: int, other_ns: int) -> tuple[str, str]:
    """Two times that differ, with as many digits as it takes to see that."""
    texts = time_text(ns), time_text(other_ns)
    return texts if ns == other_ns or texts[0] != texts[1] else (f"{ns} ns", f"{other_ns} ns")
