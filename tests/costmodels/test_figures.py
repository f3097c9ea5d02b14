"""Every figure of the shipped profiles: its unit, magnitude and source, and the traps of published tables."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import costmodels
from costmodels import load, names
from costmodels.figures import FullMesh, Torus

DIRECTORY = Path(costmodels.__file__).parent / "hardware"
NAMES = names()

BOUNDS = {
    "_tflop_per_s": (10, 10_000),
    "_top_per_s": (100, 10_000),
    "_gflop_per_s": (1_000, 200_000),
    "hbm_gb": (8, 1_000),
    "hbm_gib": (8, 1_000),
    "_mib": (16, 256),
    "_kib": (16, 256),
    "_gb_per_s": (1, 10_000),
    "_us": (0.1, 100),
    "_fraction": (0.5, 1),
    "_efficiency": (0.4, 1),
    "_share": (0.1, 1),
    "_speedup": (1, 2),
    "matrix_tile": (8, 256),
    "row_bytes": (16, 128),
    "results_at_once": (100_000, 10_000_000),
    "_chips": (4, 10_000),
    "dimensions": (2, 3),
    "wraparound_multiple": (4, 16),
    "devices_per_chip": (2, 2),
    "sublanes": (8, 8),
    "lanes": (128, 128),
    "word_bits": (32, 32),
    "heap_slack": (0.01, 0.3),
    "scattered_tiles": (1000, 20000),
    "nested_flop_per_byte": (50, 2000),
    "nested_from_channels": (1, 64),
    "product_ratio": (0.5, 4),
    "_devices": (2, 1024),
    "covering_ratio": (1, 10),
}


def figures(name: str) -> list[tuple[str, str, Any, str]]:
    """(table, key, value, source) of all that a profile says."""
    tables: dict[str, Any] = tomllib.loads((DIRECTORY / f"{name}.toml").read_text())
    return [
        (table, key, value, entries.get(f"{key}_source", entries.get("source", "")))
        for table, entries in tables.items()
        if table != "calibration"
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
    assert load("tpu-v5e").hbm_bytes == 16 * 2**30
    assert load("h200").hbm_bytes_per_s == 4.8e12


def test_the_default_budget_is_what_programs_can_have() -> None:
    """What XLA:TPU says is available, in GiB to two digits, and no more: 15.75 of 16 on v5e, half of a chip on a device of tpu7x."""
    offered = {"tpu-v4": 30.75, "tpu-v5e": 15.75, "tpu-v5p": 95.73, "tpu-v6e": 31.24, "tpu7x": 94.74}
    for name, gib in offered.items():
        assert (gib - 0.02) * 2**30 < load(name).usable_hbm_bytes <= gib * 2**30


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


@pytest.mark.parametrize("name", NAMES)
def test_figures_of_a_chip_go_together(name: str) -> None:
    """One figure off by a factor of a thousand, or of eight (bits for bytes), or of two (sparse for dense) leaves one of these bands."""
    hardware = load(name)
    chip = hardware.chip
    peak = hardware.peak_flop_per_s("bf16")
    assert 100 < peak / hardware.hbm_bytes_per_s < 600  # FLOP a byte; 295 on H100, 240 on v5e
    assert 0.015 < hardware.hbm_bytes / hardware.hbm_bytes_per_s < 0.045  # seconds to read all memory once
    assert 5 < peak / hardware.peak_flop_per_s("f32", "vector") < 200
    of_bytes = hardware.peak_flop_per_s("i8") / peak
    assert of_bytes == 1 or 1.9 < of_bytes < 2.1
    assert 0.9 <= hardware.usable_hbm_bytes / hardware.hbm_bytes <= 1
    assert 0.1 < chip.kernel_overhead_us < 10


@pytest.mark.parametrize("name", NAMES)
def test_figures_of_links_go_together(name: str) -> None:
    """All links of a chip together carry a third to a fifteenth of what its memory does; the network is slower, and farther away."""
    hardware = load(name)
    link, topology = hardware.link, hardware.topology
    links = 1
    if isinstance(topology, Torus | FullMesh):
        links = 2 * topology.dimensions if isinstance(topology, Torus) else topology.node_chips - 1
    assert 3 < hardware.chip.hbm_gb_per_s / (links * link.nominal_gb_per_s) < 15
    assert 0.7 * link.nominal_gb_per_s <= link.bytes_per_ns <= link.nominal_gb_per_s
    assert 1_000 < link.bytes_per_ns * link.latency_ns < 20_000_000  # bytes that a link holds
    if hardware.network is not None:
        assert 4 < links * link.bytes_per_ns / hardware.network.bytes_per_ns < 200
        assert hardware.network.latency_ns > link.latency_ns
    if hardware.core_link is not None:
        assert hardware.core_link.bytes_per_ns > link.bytes_per_ns


@pytest.mark.parametrize("name", NAMES)
def test_listed_figures_are_those_of_the_file(name: str) -> None:
    """What `autoshard hardware NAME` lists is every figure of the file, with its source."""
    listed = {(figure.table, figure.key): (figure.value, figure.source) for figure in load(name).figures()}
    for table, key, value, source in figures(name):
        if (table, key) != ("topology", "kind"):
            assert listed[table, key] == (value, source)
