"""Every figure of the shipped profiles: its unit, magnitude and source, and the traps of published tables."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import costmodels
from costmodels import load, names

DIRECTORY = Path(costmodels.__file__).parent / "hardware"
NAMES = names()

BOUNDS = {
    "_tflop_per_s": (10, 10_000),
    "_top_per_s": (100, 10_000),
    "_gflop_per_s": (1_000, 200_000),
    "hbm_gb": (8, 1_000),
    "hbm_gib": (8, 1_000),
    "_gb_per_s": (1, 10_000),
    "_us": (0.1, 100),
    "_fraction": (0.5, 1),
    "_efficiency": (0.5, 1),
    "_speedup": (1, 2),
    "matrix_tile": (8, 256),
    "_chips": (4, 10_000),
    "dimensions": (2, 3),
    "wraparound_multiple": (4, 16),
    "devices_per_chip": (2, 2),
}


def figures(name: str) -> list[tuple[str, str, Any, str]]:
    """(table, key, value, source) of all that a profile says."""
    tables: dict[str, Any] = tomllib.loads((DIRECTORY / f"{name}.toml").read_text())
    return [
        (table, key, value, entries.get(f"{key}_source", entries.get("source", "")))
        for table, entries in tables.items()
        for key, value in entries.items()
        if not key.endswith("source")
    ]


def test_every_chip_is_shipped() -> None:
    """The chips that the design names are there, by these names."""
    assert list(NAMES) == [
        *("a100", "b200", "gb200-nvl72", "h100", "h200", "mi300x"),
        *("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    """A figure nobody can look up is a rumour; the loaded profile gives the same source as the file."""
    hardware = load(name)
    for table, key, _, source in figures(name):
        assert len(source) > 10, f"{name}: {table}.{key}"
        assert hardware.source(f"{table}.{key}") == source


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_its_unit_in_its_name_and_a_sane_magnitude(name: str) -> None:
    """A figure in the wrong unit is off by a factor of a thousand or so, which these bounds catch."""
    for table, key, value, _ in figures(name):
        if isinstance(value, (bool, str)):
            continue
        bounds = [limits for suffix, limits in BOUNDS.items() if key.endswith(suffix)]
        assert bounds, f"{name}: {table}.{key} has no unit"
        assert bounds[0][0] <= value <= bounds[0][1], f"{name}: {table}.{key} = {value}"


def test_no_sparse_figures() -> None:
    """1979 TFLOP/s is H200's sparse bf16 figure, which shipped tables give as the dense one."""
    assert load("h200").peak_flop_per_s("bf16") == 989e12
    assert load("h100").peak_flop_per_s("f8E4M3FN") == 1979e12
    assert load("b200").peak_flop_per_s("bf16") == 2250e12


def test_decimal_and_binary_gigabytes_are_told_apart() -> None:
    """GB are 10^9 bytes and GiB 2^30; terabytes a second are never 1024^4."""
    assert load("h100").hbm_bytes == 80 * 10**9
    assert load("tpu-v4").hbm_bytes == 32 * 2**30
    assert load("tpu-v5e").hbm_bytes == 16 * 10**9
    assert load("h200").hbm_bytes_per_s == 4.8e12


def test_the_default_budget_is_what_programs_can_have() -> None:
    """On v5e all of the decimal 16 GB, since XLA offers 15.75 GiB; on v4 at most 30.75 of 32 GiB."""
    assert load("tpu-v5e").usable_hbm_bytes == 16 * 10**9 <= 15.75 * 2**30
    assert load("tpu-v4").usable_hbm_bytes <= 30.75 * 2**30


def test_a_device_of_tpu7x_is_half_a_chip() -> None:
    """JAX shows two devices a chip: each has half of the memory, its bandwidth and the peak."""
    half = load("tpu7x")
    assert half.hbm_bytes == 96 * 2**30
    assert half.hbm_bytes_per_s == 3690e9
    assert half.peak_flop_per_s("bf16") == 1153.5e12


@pytest.mark.parametrize(("name", "nominal", "achievable"), [("tpu-v5e", 50, 45), ("tpu-v6e", 100, 90)])
def test_links_have_both_figures_and_models_use_the_achievable(
    name: str, nominal: float, achievable: float
) -> None:
    """Google's nominal link figure is a tenth above what the scaling book measures."""
    link = load(name).link
    assert (link.nominal_gb_per_s, link.bytes_per_ns) == (nominal, achievable)
