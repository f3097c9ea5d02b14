"""A profile as rows: every figure with its unit and its source, in the order of the profile's tables."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

_UNITS = {
    "_tflop_per_s": "TFLOP/s",
    "_top_per_s": "TOP/s",
    "_gflop_per_s": "GFLOP/s",
    "_gb_per_s": "GB/s",
    "_gb": "GB",
    "_gib": "GiB",
    "_mib": "MiB",
    "_kib": "KiB",
    "_us": "µs",
    "_chips": "chips",
    "_tile": "elements",
    "row_bytes": "B",
    "lanes": "elements",
    "word_bits": "bits",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as the profile's file has it; `unit` is "" for a pure number."""

    table: str
    key: str
    value: float | int | bool | str
    unit: str
    source: str


def figures_of(tables: Mapping[str, msgspec.Struct | None], sources: Mapping[str, str]) -> list[Figure]:
    """Every figure that is there, table by table; `sources` by "table.key"."""
    return [
        Figure(table, key, value, unit(key), sources.get(f"{table}.{key}", ""))
        for table, struct in tables.items()
        for key, value in _written(struct).items()
    ]


def unit(key: str) -> str:
    """The unit that a key ends in: "µs" for "latency_us"."""
    return next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")


def _written(struct: msgspec.Struct | None) -> dict[str, float | int | bool | str]:
    """What a table says; the tag of a union ("kind") comes first."""
    if struct is None:
        return {}
    config = struct.__struct_config__
    tag = {str(config.tag_field): str(config.tag)} if config.tag is not None else {}
    found = msgspec.structs.asdict(struct)
    return tag | {
        key: value
        for key, value in found.items()
        if value is not None and not (key == "devices_per_chip" and value == 1)
    }
