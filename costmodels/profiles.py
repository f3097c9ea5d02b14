"""Hardware by name. A profile is a TOML file; the shipped ones lie in `hardware/` beside this module."""

import difflib
import os
import reprlib
import typing
from pathlib import Path
from typing import Any

import msgspec

from .calibration import Calibration
from .errors import HardwareError
from .hardware import SCHEDULED, Chip, Hardware, Link, Scheduler, Topology, Torus
from .reading import check_finite, explained, read_tables, split_sources
from .sparse_core import SparseCore
from .tiles import Tiles
from .vector_memory import VectorMemory

_SHIPPED = Path(__file__).parent / "hardware"

_NOT_WRITTEN = frozenset({"sources", "priced_by"})
"""Fields of a profile that its file has no keys for."""


def names() -> list[str]:
    """The shipped profiles."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def load(name_or_path: str | os.PathLike[str]) -> Hardware:
    """A shipped profile by name, with or without ".toml", or a user's own by path; either with ":scheduler" behind it (`scheduled`).

    Raises:
        HardwareError: no name, an unknown one, or a file that is not a valid profile.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HardwareError(
            f"{reprlib.repr(name_or_path)} is no name or path of a profile",
            fix=f"Known: {', '.join(names())}.",
        )
    text = os.fspath(name_or_path)
    if text.endswith(SCHEDULED):
        return _scheduled(text)
    shipped = _SHIPPED / f"{text.removesuffix('.toml')}.toml"
    if text.removesuffix(".toml") in names():
        return _read(shipped)
    is_named = bool(text.strip())
    if isinstance(name_or_path, os.PathLike) or (
        is_named and (text.endswith(".toml") or Path(text).exists())
    ):
        return _read(Path(text))
    guess = difflib.get_close_matches(text, names(), 1)
    raise HardwareError(
        (f'no hardware is called "{text}"' if is_named else "the hardware's name or file is missing")
        + (f", did you mean {guess[0]}?" if guess else ""),
        fix=f"Known: {', '.join(names())}; or give the path of a profile of your own.",
    )


def _scheduled(text: str) -> Hardware:
    """With the times of the compiler's scheduler in the place of the hardware's."""
    profile = text.removesuffix(SCHEDULED)
    if not profile or profile.endswith(SCHEDULED):
        raise HardwareError(
            f'"{text}" is no profile with {SCHEDULED} behind it',
            fix=f"Write it once behind a name or a file, as in tpu-v5e{SCHEDULED}.",
        )
    found = load(profile).at_scheduler()
    if found is None:
        known = [name for name in names() if load(name).scheduler is not None]
        raise HardwareError(
            f'what a scheduler takes collectives for is not known of "{profile}"',
            fix=f"Known of {', '.join(known)}; a profile of your own needs a [scheduler] table.",
        )
    return found


def _read(path: Path) -> Hardware:
    text, tables = read_tables(path)
    figures, sources = split_sources(tables)
    check_finite(figures, text, path)
    try:
        for key in _NOT_WRITTEN & figures.keys():
            raise msgspec.ValidationError(f"Object contains unknown field `{key}`")
        hardware = msgspec.convert({"name": path.stem} | figures, Hardware)
    except msgspec.ValidationError as error:
        raise explained(error, path, text, _known_keys(figures)) from error
    return msgspec.structs.replace(hardware, sources=sources)


def _known_keys(figures: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    kinds = {kind.__struct_config__.tag: kind for kind in typing.get_args(Topology)}
    written = figures.get("topology")
    kind = kinds.get(written.get("kind"), Torus) if isinstance(written, dict) else Torus
    tables = tuple(key for key in Hardware.__struct_fields__ if key not in _NOT_WRITTEN)
    link = Link.__struct_fields__
    return {
        "calibration": Calibration.__struct_fields__,
        "": tables,
        "chip": Chip.__struct_fields__,
        "link": link,
        "core_link": link,
        "network": link,
        "tiles": Tiles.__struct_fields__,
        "scheduler": Scheduler.__struct_fields__,
        "vector_memory": VectorMemory.__struct_fields__,
        "sparse_core": SparseCore.__struct_fields__,
        "topology": ("kind", *kind.__struct_fields__),
    }
