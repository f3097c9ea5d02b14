"""A hardware profile's TOML text -> its figures and their sources, with errors that name file, key and line.

Knows TOML and msgspec's messages; knows nothing of what a figure means.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .errors import HardwareError

Tables = dict[str, Any]
Sources = tuple[tuple[str, str], ...]


def read_tables(path: Path) -> tuple[str, Tables]:
    """The text and the TOML tables of `path`.

    Raises:
        HardwareError: the file cannot be read, or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as error:
        raise HardwareError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise HardwareError("is not UTF-8 text", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"is not TOML: {error}", where=str(path)) from error


def split_sources(tables: Tables) -> tuple[Tables, Sources]:
    """The tables without their `source` and `<key>_source` entries, and the source of each figure by path."""
    figures: Tables = {}
    sources: list[tuple[str, str]] = []
    for name, table in tables.items():
        if not isinstance(table, dict) or name == "calibration":
            figures[name] = table
            continue
        shared = table.get("source", "")
        own = {key: table[f"{key}_source"] for key in table if f"{key}_source" in table}
        figures[name] = {
            key: value
            for key, value in table.items()
            if key != "source" and not (key.endswith("_source") and key.removesuffix("_source") in own)
        }
        sources += [(f"{name}.{key}", str(own.get(key, shared))) for key in figures[name]]
    return figures, tuple(sources)


def check_finite(figures: Tables, text: str, path: Path) -> None:
    """Refuses `inf` and `nan`, which TOML allows and no figure can be."""
    for table, key, value in _numbers(figures):
        if not math.isfinite(value):
            where = f"{path}:{line_of(text, table, key)}"
            raise HardwareError(f"{key} is {value}", where=where, fix="Write a finite number.")


def explained(
    error: msgspec.ValidationError, path: Path, text: str, known_keys: dict[str, tuple[str, ...]]
) -> HardwareError:
    """msgspec's complaint as one that names the file, the line, the key and the remedy.

    `known_keys`: the keys of each table by its name, "" for the top level.
    """
    message, _, pointer = str(error).partition(" - at `$")
    table, _, key = pointer.rstrip("`").lstrip(".").partition(".")
    if unknown := re.search(r"unknown field `([^`]*)`", message):
        key = unknown[1]
        guess = difflib.get_close_matches(key, known_keys.get(table, ()), 1, cutoff=0.5)
        reason = f"{key} is not a known key"
        fix = f"Did you mean {guess[0]}?" if guess else f"Known keys: {', '.join(known_keys.get(table, ()))}."
    elif missing := re.search(r"missing required field `([^`]*)`", message):
        reason = f"{missing[1]} is missing from {f'[{table}]' if table else 'the file'}"
        fix = f"Add the {'figure' if table else 'table or figure'} {missing[1]}."
    else:
        reason = f"{key or table}: {message}" if table else message
        written = (
            "true or false" if "Expected `bool" in message else "a positive number in the unit of its name"
        )
        fix = f"Write {key} as {written}." if key else ""
    return HardwareError(reason, where=f"{path}:{line_of(text, table, key)}", fix=fix)


def line_of(text: str, table: str, key: str) -> int:
    """The line (from 1) of `key` in `[table]`; of the table's header if the key is not there; else 1."""
    current, header = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if match := re.match(r"\[+\s*([^\]\s]+)\s*\]", stripped):
            current = match[1]
            header = number if current == (table or key) else header
        elif key and current == table and re.match(rf'["\']?{re.escape(key)}["\']?\s*=', stripped):
            return number
    return header


def _numbers(figures: Tables) -> Iterator[tuple[str, str, float]]:
    for name, table in figures.items():
        if isinstance(table, dict):
            yield from ((name, key, value) for key, value in table.items() if isinstance(value, float))
