"""Fitting profiles: what was put in comes out, what cannot be is refused, and a profile knows what it was fitted to."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costmodels
from costmodels import Hardware, HardwareError, calibrate, load
from costmodels.descent import bounded_least_squares
from costmodels.measurements import CollectiveRuns, Layout

from .synthetic import GROUPS, TORUS, changed, collectives, products, streams

NAMES = ["h100", "mi300x", "tpu-v5e", "tpu7x"]


def figures(hardware: Hardware) -> dict[str, object]:
    return {f"{row.table}.{row.key}": row.value for row in hardware.figures()}


def tables(folder: Path, hardware: Hardware, noise: float = 0.0) -> list[Path]:
    paths = [folder / f"{name}.csv" for name in ("collectives", "products", "streams")]
    paths[0].write_text(collectives(hardware, GROUPS.get(hardware.name, TORUS), noise))
    paths[1].write_text(products(hardware, noise))
    paths[2].write_text(streams(hardware, noise))
    return paths


@pytest.mark.parametrize("name", NAMES)
def test_measurements_made_from_a_profile_give_it_back(name: str, tmp_path: Path) -> None:
    """Within a thousandth, from the figures of another; nothing that was not measured moves, and no source is lost."""
    truth, base = changed(load(name)), load(name)
    made = calibrate(name, tables(tmp_path, truth))
    before, expected, found = figures(base), figures(truth), figures(made.hardware)
    fitted = set(made.calibration.fitted)
    assert {
        "link.latency_us",
        "link.overhead_us",
        "link.achievable_gb_per_s",
        "chip.matrix_efficiency",
    } <= fitted
    for key, value in found.items():
        if key in fitted:
            assert value == pytest.approx(expected[key], rel=2e-3), key
            assert made.hardware.source(key).startswith("calibrated: ")
        else:
            assert value == before[key]
            assert made.hardware.source(key) == base.source(key)
    assert made.calibration.worst < 1e-3
    assert made.warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_noise(name: str, tmp_path: Path) -> None:
    """With 5 % of noise bandwidth, latency and efficiency are within 5 %, and the stated errors say so."""
    truth = changed(load(name))
    made = calibrate(name, tables(tmp_path, truth, noise=0.05))
    expected = figures(truth)
    for row in made.figures:
        if row.name in ("link.achievable_gb_per_s", "link.latency_us", "chip.matrix_efficiency"):
            assert row.after == pytest.approx(expected[row.name], rel=0.05), row
            assert 0 < row.relative_error < 0.05
    assert 0.03 < made.calibration.rms < 0.07


def test_a_few_disturbed_runs_do_not_decide(tmp_path: Path) -> None:
    """One run in ten that took five times as long moves the bandwidth by less than 3 %."""
    truth = changed(load("tpu-v5e"))
    lines = collectives(truth, TORUS, noise=0.02).splitlines()
    for index in range(5, len(lines), 10):
        *row, time = lines[index].split(",")
        lines[index] = ",".join([*row, repr(5 * float(time))])
    table = tmp_path / "t.csv"
    table.write_text("\n".join(lines))
    made = calibrate("tpu-v5e", [table])
    assert made.hardware.link.bytes_per_ns == pytest.approx(truth.link.bytes_per_ns, rel=0.03)


def test_errors_are_those_of_few_points(tmp_path: Path) -> None:
    """As many points as figures fit whatever the noise; figures are not said to be surer than the other points are near."""
    (tmp_path / "t.csv").write_text(
        "kind,bytes,axes,time_us\n"
        + "".join(
            f"all_reduce,{size},4,{time}\n"
            for size, time in ((1 << 10, 6), (1 << 20, 31), (10 << 20, 250), (100 << 20, 2400))
        )
    )
    made = calibrate("tpu-v5e", [tmp_path / "t.csv"])
    assert made.calibration.rms > 0.005
    assert min(row.relative_error for row in made.figures) > made.calibration.rms / 4


def test_the_file_is_the_profile(tmp_path: Path) -> None:
    """What is written loads as what was made, twice the same text, with the tables' hashes, points and residuals."""
    paths = tables(tmp_path, changed(load("h100")), noise=0.05)
    made = calibrate("h100", paths, name="mine")
    (tmp_path / "mine.toml").write_text(made.text())
    assert load(tmp_path / "mine.toml") == made.hardware
    assert calibrate("h100", paths, name="mine").text() == made.text()
    calibration = made.calibration
    assert calibration.base == "h100"
    assert [len(sha) for sha in calibration.sha256] == [64, 64, 64]
    assert len(calibration.residual) == sum(len(path.read_text().splitlines()) - 1 for path in paths)
    again = calibrate(tmp_path / "mine.toml", paths)
    assert again.hardware.link.bytes_per_ns == pytest.approx(made.hardware.link.bytes_per_ns, rel=1e-3)


def test_one_group_size_keeps_the_ratio_of_latency_and_overhead(tmp_path: Path) -> None:
    """They cannot be told apart, so both are scaled."""
    truth = changed(load("h100"))
    table = tmp_path / "t.csv"
    table.write_text(collectives(truth, [(8,)], kinds=["all_gather"]))
    made, base = calibrate("h100", [table]).hardware, load("h100")
    assert made.link.latency_ns / made.link.overhead_ns == pytest.approx(
        base.link.latency_ns / base.link.overhead_ns, rel=1e-4
    )
    assert made.all_gather_ns(0, (8,)) == pytest.approx(truth.all_gather_ns(0, (8,)), rel=1e-3)
    assert made.topology == base.topology


def test_outside_of_what_was_measured(tmp_path: Path) -> None:
    """Bytes, devices and kinds that no table had are named; a shipped profile has nothing to say."""
    (tmp_path / "c.csv").write_text(collectives(load("h100"), [(4,), (8,)], kinds=["all_gather"]))
    made = calibrate("h100", [tmp_path / "c.csv"]).hardware
    assert made.outside_measured("all_gather", bytes=2**20, devices=8) == ""
    assert "bytes from 1024 to 1.07374e+09" in made.outside_measured("all_gather", bytes=2**40, devices=8)
    assert "devices from 4 to 8, not 2" in made.outside_measured("all_gather", bytes=2**20, devices=2)
    assert made.outside_measured("all_reduce", bytes=2**20, devices=8) == "no all_reduce was measured"
    assert made.outside_measured("matmul", "bf16", m=1, k=1, n=1) == ""
    assert load("h100").outside_measured("all_reduce", bytes=1, devices=10**6) == ""
    (tmp_path / "m.csv").write_text(products(load("h100")))
    made = calibrate("h100", [tmp_path / "m.csv"]).hardware
    assert made.outside_measured("matmul", "bf16", m=64, k=1024, n=4096) == ""
    assert "m from 16 to 8192, not 1" in made.outside_measured("matmul", "bf16", m=1, k=1024, n=4096)
    assert made.outside_measured("matmul", "f32", m=64, k=1024, n=4096) == "no matmul in f32 was measured"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bounded_least_squares_is_the_least(data: st.DataObject) -> None:
    """No point within the bounds is better, and the answer keeps them."""
    count = data.draw(st.integers(1, 4))
    number = st.floats(-10, 10).map(lambda x: round(x, 3))
    matrix = np.array([[data.draw(number) for _ in range(count)] for _ in range(6)])
    target = np.array([data.draw(number) for _ in range(6)])
    least = np.array([abs(data.draw(number)) for _ in range(count)])
    x = bounded_least_squares(matrix, target, least)
    assert (x >= least).all()
    best = np.sum((matrix @ x - target) ** 2)
    for _ in range(5):
        other = least + np.array([abs(data.draw(number)) for _ in range(count)])
        assert best <= np.sum((matrix @ other - target) ** 2) * (1 + 1e-6) + 1e-6


HEAD = "kind,bytes,group,time_us\n"
GOOD = "all_gather,1024,4,5\nall_gather,1048576,4,30\nall_gather,16777216,4,400\nall_gather,4194304,8,150\n"
FLAT = "".join(f"all_gather,{2**i},{g},{5 + g}\n" for i in range(10, 30, 3) for g in (4, 8))
FALLING = "".join(f"all_gather,{2**i},4,{50 - i}\n" for i in range(10, 30, 2))


def of_link(factor: float) -> str:
    """Rows of a link that is so many times faster than that of tpu-v5e."""
    base = load("tpu-v5e")
    runs = [(size, group) for size in (2**22, 2**24, 2**27, 2**30) for group in (4, 8)]
    return "".join(
        f"all_gather,{size},{group},{base.all_gather_ns(size, (group,)) / factor / 1e3!r}\n"
        for size, group in runs
    )


FAST = "m,k,n,dtype,time_us\n" + "".join(f"{2**i},8192,8192,bf16,{2**i / 100}\n" for i in range(10, 15))
BAD = {
    "negative time": (HEAD + GOOD + "all_gather,1024,4,-5\n", 't.csv:6: a time of "-5"'),
    "zero time": (HEAD + "all_gather,1024,4,0\n", 't.csv:2: a time of "0"'),
    "infinite time": (HEAD + "all_gather,1024,4,inf\n", 't.csv:2: a time of "inf"'),
    "no number": (HEAD + "all_gather,1024,4,fast\n", 't.csv:2: a time of "fast"'),
    "next to no time": (HEAD + "all_gather,1024,4,1e-300\n", 't.csv:2: a time of "1e-300" under time_us is 1e-297 ns'),
    "a time beyond all": (HEAD + "all_gather,1024,4,1e300\n", 't.csv:2: a time of "1e300" under time_us'),
    "seconds as microseconds": (HEAD + "all_gather,1024,4,5e-6\n", "Check the unit of time_us"),
    "bytes of 40 digits": (HEAD + f"all_gather,{10**39},4,5\n", "is too large\n  The largest is 1152921504606846976."),
    "bytes of 5000 digits": (HEAD + f"all_gather,{'9' * 5000},4,5\n", "is too large"),
    "axes of 5000 digits": (f"kind,bytes,axes,time_us\nall_gather,1,{'9' * 5000},5\n", "is too large"),
    "a column twice": ("kind,bytes,group,time_us,Bytes\nall_gather,1,4,5,2\n", "t.csv:1: the header has two columns of one"),
    "a time twice": ("kind,bytes,group,time_us,time_us\nall_gather,1,4,5,2\n", "columns of one meaning: time_us, time_us"),
    "a group twice": ("kind,bytes,group,devices,time_us\nall_gather,1,4,8,5\n", "columns of one meaning: group, devices"),
    "a link far beyond its figure": (HEAD + of_link(90), "4050 GB/s: 81 times the nominal 50 in tpu-v5e\n  Check the unit of the times"),
    "a link of another unit": (HEAD + of_link(1e4), "1.02e+04 times the nominal 50 in tpu-v5e\n  Check the unit of the times"),
    "negative bytes": (HEAD + "all_gather,-1,4,5\n", 't.csv:2: bytes is "-1"'),
    "unknown kind": (HEAD + "broadcast,1024,4,5\n", 't.csv:2: "broadcast" is no kind of measurement'),
    "group of one": (HEAD + "all_gather,1024,1,5\n", "t.csv:2: a group of one device"),
    "too few points": (HEAD + "all_gather,1024,4,5\n", "1 measurement for 2 figures"),
    "times beyond all figures": (HEAD + "all_gather,1024,4,1e15\n" * 3, "no figure of the profile"),
    "one size": (HEAD + "all_gather,1024,4,5\n" * 6, "cannot tell"),
    "no measurements": (HEAD, "has no measurements"),
    "empty": ("", "has no measurements"),
    "no time": ("kind,bytes,group\nall_gather,1,4\n", "has not one time column"),
    "missing cell": (HEAD + "all_gather,1024,4\n", "t.csv:2: 3 cells under 4 headings"),
    "no group": ("kind,bytes,time_us\nall_gather,1024,4\n", "t.csv:2: neither group nor axes"),
    "axes that are names": ("kind,bytes,axes,time_us\nall_gather,1024,x,4\n", 'axes "x" are names'),
    "axes of another group": ("kind,bytes,group,axes,time_us\nall_gather,9,4,4x4,4\n", "a group of 4, but axes of 16"),
    "element type": ("m,k,n,dtype,time_us\n8,8,8,bf17,4\n", '"bf17" is not a known element type'),
    "a link without limit": (HEAD + FLAT, "infinitely fast"),
    "a link that speeds up": (HEAD + FALLING, "infinitely fast"),
    "faster than the peak": (FAST, "faster than"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(case: str, tmp_path: Path) -> None:
    """What is wrong is named with file and line, or with the figures that the table cannot give."""
    text, expected = BAD[case]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(HardwareError) as caught:
        calibrate("tpu-v5e", [tmp_path / "t.csv"])
    assert expected in str(caught.value)
    assert "t.csv" in str(caught.value)


def test_spellings_and_units(tmp_path: Path) -> None:
    """Kinds are read however they are spelled, comments and blank lines skipped, times in any unit."""
    base = load("tpu-v5e")
    rows = {
        "time_ns": 1.0,
        "time_us": 1e3,
        "time": 1e3,
        "time_ms": 1e6,
        "time_s": 1e9,
    }
    for heading, unit in rows.items():
        lines = [f"kind, bytes, group size, {heading}".replace("group size", "group_size"), "# comment", ""]
        lines += [
            f"All-Gather, {b}, 4, {base.all_gather_ns(b, (4,)) / unit!r}" for b in (1024, 2**20, 2**24, 2**28)
        ]
        (tmp_path / "t.csv").write_text("\n".join(lines))
        made = calibrate("tpu-v5e", [tmp_path / "t.csv"])
        assert made.hardware.link.bytes_per_ns == pytest.approx(45, rel=1e-3)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    """Spreadsheets begin UTF-8 with one: tables and profiles are read as without."""
    (tmp_path / "t.csv").write_text(HEAD + GOOD, encoding="utf-8-sig")
    (tmp_path / "plain.csv").write_text(HEAD + GOOD)
    made = [calibrate("tpu-v5e", [tmp_path / name], name="mine") for name in ("t.csv", "plain.csv")]
    assert made[0].figures == made[1].figures
    (tmp_path / "mine.toml").write_text(made[0].text(), encoding="utf-8-sig")
    assert load(tmp_path / "mine.toml") == made[0].hardware


def test_columns_without_a_heading(tmp_path: Path) -> None:
    """Spreadsheets leave them behind; they mean nothing."""
    rows = "".join(f"{row},,\n" for row in (HEAD + GOOD).splitlines())
    (tmp_path / "t.csv").write_text(rows)
    assert len(calibrate("tpu-v5e", [tmp_path / "t.csv"]).calibration.residual) == 4


def test_a_link_above_its_figure(tmp_path: Path) -> None:
    """A link of the next generation is fitted, with a warning that suspects the unit as well."""
    (tmp_path / "t.csv").write_text(HEAD + of_link(3))
    made = calibrate("tpu-v5e", [tmp_path / "t.csv"])
    assert made.hardware.link.bytes_per_ns == pytest.approx(135, rel=0.01)
    assert "above its nominal 50: check the unit" in made.warnings[0]


def test_prices_between_whole_nanoseconds() -> None:
    """What a profile says of a measurement is its price before it is rounded, however long it is."""
    hardware = load("h100")
    layout = Layout((("x", 8),), None, ("x",), 8)
    sizes = (0, 1, 12345, 2**30, 2**59)
    found = CollectiveRuns("all_reduce", layout, sizes, (1.0,) * 5).predicted_ns(hardware)
    prices = [hardware.all_reduce_ns(size, (8,)) for size in sizes]
    assert found == pytest.approx(prices, rel=1e-9, abs=1)


def test_axes_of_a_mesh(tmp_path: Path) -> None:
    """With a mesh, axes are its names and sub-axes, laid as the mesh is."""
    base = load("tpu-v5e")
    mesh = (("x", 8), ("y", 2))
    model = base.place(mesh, (4, 4))
    lines = ["kind,bytes,axes,time_ns"]
    for text, group in (("x", ["x"]), ('"x,y"', ["x", "y"]), ("x:(2)4", [("x", 2, 4)])):
        lines += [f"all_reduce,{b},{text},{model.all_reduce_ns(b, group)}" for b in (1024, 2**20, 2**28)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    made = calibrate("tpu-v5e", [tmp_path / "t.csv"], mesh=mesh, topology=(4, 4))
    assert made.hardware.link.bytes_per_ns == pytest.approx(45, rel=1e-3)
    assert {r.devices for r in made.calibration.range} == {(4.0, 16.0)}


RANK = "#  Rank {rank:2} Group  0 Pid 4242 on {host} device {device} [0x07] NVIDIA H100 80GB HBM3\n"
COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"


def nccl(hardware: Hardware, hosts: int, kind: str, title: str) -> str:
    """What nccl-tests would print of this hardware."""
    devices = 8 * hosts
    ranks = [RANK.format(rank=r, host=f"node{r // 8}", device=r % 8) for r in range(devices)]
    nothing = f"{0:12} {0:12}     float     sum      -1"
    rows = [f"{nothing} 0.20 0.00 0.00 0 0.20 0.00 0.00 0\n"]
    for size in (2**15, 2**20, 2**25, 2**30):
        us = getattr(hardware, f"{kind}_ns")(size, (devices,)) / 1e3
        rows.append(
            f"{size:12} {size // 4:12}     float     sum      -1 {us:9.3f}  1.00  1.00      0  {us:.3f} 1.00 1.00 0\n"
        )
    return (
        title
        + "".join(ranks)
        + COLUMNS
        + "#        (B)    (elements)\n"
        + "".join(rows)
        + "# Avg bus bandwidth    : 1\n"
    )


def test_nccl_tests(tmp_path: Path) -> None:
    """Kind, devices and nodes are in the text; rows of no bytes are left out; two files make one profile."""
    truth = changed(load("h100"))
    (tmp_path / "a").write_text(nccl(truth, 1, "all_reduce", "# Collective test starting: all_reduce_perf\n"))
    (tmp_path / "b").write_text(nccl(truth, 4, "all_gather", "# Collective test starting: all_gather_perf\n"))
    (tmp_path / "c").write_text(nccl(truth, 1, "all_gather", "# Collective test starting: all_gather_perf\n"))
    made = calibrate("h100", [tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert made.hardware.link.bytes_per_ns == pytest.approx(truth.link.bytes_per_ns, rel=0.01)
    assert made.hardware.network is not None and truth.network is not None
    assert made.hardware.network.bytes_per_ns == pytest.approx(truth.network.bytes_per_ns, rel=0.01)
    assert len(made.calibration.residual) == 12
    assert {r.kind: r.devices for r in made.calibration.range} == {
        "all_reduce": (8, 8),
        "all_gather": (8, 32),
    }


@pytest.mark.parametrize("count", ["1", "1.04858e+06", "nan"])
def test_nccl_tests_with_wrong_values(count: str, tmp_path: Path) -> None:
    """Rows whose results were wrong are left out and told by line; of a table without others there is nothing to fit."""
    title = "# Collective test starting: all_reduce_perf\n"
    lines = nccl(load("h100"), 1, "all_reduce", title).splitlines()
    rows = [index for index, line in enumerate(lines) if line.lstrip()[:1].isdecimal() and " float " in line]
    for index in rows[-2:]:
        lines[index] = lines[index].replace(" 1.00  1.00      0 ", f" 1.00  1.00 {count} ")
    (tmp_path / "t").write_text("\n".join(lines))
    (tmp_path / "unchecked").write_text("\n".join(lines).replace(f" {count} ", " N/A "))
    (tmp_path / "right").write_text(nccl(load("h100"), 1, "all_reduce", title))
    with pytest.raises(HardwareError, match="wrong values in all 4 rows"):
        (tmp_path / "wrong").write_text(
            (tmp_path / "right").read_text().replace(" 1.00  1.00      0 ", f" 1.00  1.00 {count} ")
        )
        calibrate("h100", [tmp_path / "wrong"])
    made = calibrate("h100", [tmp_path / "t", tmp_path / "right"])
    told = f"t: 2 rows in which NCCL counted wrong values left out (lines {rows[-2] + 1}, {rows[-1] + 1})"
    assert made.warnings[0].endswith(told)
    assert len(made.calibration.residual) == 6
    assert calibrate("h100", [tmp_path / "unchecked"]).warnings == ()


def test_nccl_tests_that_do_not_say(tmp_path: Path) -> None:
    """Kind and devices can be given; without, and of a kind that has no price, the error says so."""
    text = nccl(load("h100"), 1, "all_reduce", "")
    bare = "\n".join(line for line in text.splitlines() if "Rank" not in line)
    (tmp_path / "out.txt").write_text(bare)
    for kind, expected in (
        (None, "which collective"),
        ("all_reduce", "how many devices"),
        ("reduce", "no kind"),
    ):
        with pytest.raises(HardwareError, match=expected):
            calibrate("h100", [tmp_path / "out.txt"], kind=kind)
    made = calibrate("h100", [tmp_path / "out.txt"], kind="all_reduce", devices=8)
    assert made.hardware.link.bytes_per_ns == pytest.approx(370, rel=0.01)
    (tmp_path / "all_reduce_perf.log").write_text(text)
    assert calibrate("h100", [tmp_path / "all_reduce_perf.log"]).hardware.link.bytes_per_ns == pytest.approx(
        370, rel=0.01
    )
    (tmp_path / "broadcast_perf.log").write_text(text)
    with pytest.raises(HardwareError, match='"broadcast" is no kind'):
        calibrate("h100", [tmp_path / "broadcast_perf.log"])


def test_launch_and_memory(tmp_path: Path) -> None:
    """Kernels that only move memory give bandwidth and overhead; the figures of links stay."""
    truth = changed(load("h100"))
    lines = ["kind,bytes,time_ns"] + [
        f"memory,{b},{truth.kernel_ns(0, b, 'f32')}" for b in (0, 10**6, 10**8, 10**9)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    made = calibrate("h100", [tmp_path / "t.csv"]).hardware
    assert made.chip.hbm_efficiency == pytest.approx(0.8, rel=1e-3)
    assert made.chip.kernel_overhead_us == pytest.approx(4.2, rel=1e-3)
    was = load("h100").chip
    figures = {"hbm_efficiency": was.hbm_efficiency, "kernel_overhead_us": was.kernel_overhead_us}
    assert msgspec.structs.replace(made.chip, **figures) == was
    assert made.link == load("h100").link


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_a_shipped_gpu_is_what_its_tables_say(name: str, tmp_path: Path) -> None:
    """`autoshard calibrate` on the tables that were measured gives the profile's figures back, from other ones."""
    folder = Path(__file__).parents[2] / "experiments" / "calibration" / "results" / name
    tables = [folder / f"{table}.csv" for table in ("matmul", "memory", "launch")]
    shipped = load(name)
    assert shipped.calibration is not None
    text = (Path(costmodels.__file__).parent / "hardware" / f"{name}.toml").read_text()
    text = text[: text.index("\n[calibration]\n")]
    for figure in shipped.calibration.fitted:
        key = figure.removeprefix("chip.")
        text = re.sub(rf"^{key} = .*$", f"{key} = {3.0 if key.endswith('_us') else 0.75}", text, flags=re.M)
    (tmp_path / "other.toml").write_text(text)
    made = calibrate(tmp_path / "other.toml", tables)
    assert made.calibration.sha256 == shipped.calibration.sha256
    assert set(made.calibration.fitted) == set(shipped.calibration.fitted)
    expected, found = figures(shipped), figures(made.hardware)
    for key in made.calibration.fitted:
        assert found[key] == pytest.approx(expected[key], rel=5e-3), key


@pytest.mark.parametrize("dtypes", [["bf16"], ["f32"], ["bf16", "f32"]], ids="+".join)
def test_misaligned_products_alone_keep_what_they_lose(dtypes: list[str], tmp_path: Path) -> None:
    """What they lose cannot be told from what all products lose."""
    hardware = load("h200")
    rows = [
        f"1024,{k},4095,{dtype},{hardware.matmul_ns(m=1024, k=k, n=4095, dtype=dtype) * 1.2 / 1e3}"
        for dtype in dtypes
        for k in (1023, 4095, 8191, 16383)
    ]
    (tmp_path / "m.csv").write_text("m,k,n,dtype,time_us\n" + "\n".join(rows))
    made = calibrate("h200", [tmp_path / "m.csv"]).hardware.chip
    assert made.misaligned_efficiency == hardware.chip.misaligned_efficiency
    for dtype in dtypes:
        key = "matrix_efficiency" if dtype == "bf16" else f"{dtype}_matrix_efficiency"
        assert getattr(made, key) == pytest.approx(getattr(hardware.chip, key) / 1.2, rel=0.02)


def test_misaligned_products_that_are_faster_are_no_measurements(tmp_path: Path) -> None:
    """The message names the sizes, not a peak."""
    hardware = load("h200")
    sizes = [(4096, k, n) for k in (4096, 8192, 1024) for n in (4096, 4095)]
    rows = [
        f"{m},{k},{n},bf16,{hardware.matmul_ns(m=m, k=k, n=4096, dtype='bf16') * (0.8 if n % 8 else 1) / 1e3}"
        for m, k, n in sizes
    ]
    (tmp_path / "m.csv").write_text("m,k,n,dtype,time_us\n" + "\n".join(rows))
    with pytest.raises(HardwareError, match="no multiple of row_bytes faster than others"):
        calibrate("h200", [tmp_path / "m.csv"])


def test_products_alone_scale_both_overheads(tmp_path: Path) -> None:
    """That of a kernel and what a product takes beyond it cannot be told apart without kernels that are no products."""
    truth = msgspec.structs.replace(
        load("h200"), chip=msgspec.structs.replace(load("h200").chip, kernel_overhead_us=2.64)
    )
    (tmp_path / "m.csv").write_text(products(truth))
    base, made = load("h200").chip, calibrate("h200", [tmp_path / "m.csv"]).hardware.chip
    assert base.matrix_overhead_us is not None
    assert made.matrix_overhead_us is not None
    assert made.kernel_overhead_us + made.matrix_overhead_us == pytest.approx(
        2.64 + base.matrix_overhead_us, rel=1e-3
    )
    assert made.kernel_overhead_us / made.matrix_overhead_us == pytest.approx(
        base.kernel_overhead_us / base.matrix_overhead_us, rel=1e-3
    )
