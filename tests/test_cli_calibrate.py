"""`autoshard calibrate`: measurements in, a profile out that the other commands take."""

import json

import pytest

import costmodels
from tests.costmodels.synthetic import changed, collectives, products
from tests.test_cli import MATMUL, Terminal, autoshard

__all__ = ["autoshard"]  # the fixture

TRUTH = changed(costmodels.load("tpu-v5e"))
CALIBRATE = ("calibrate", "c.csv", "m.csv", "--hardware", "tpu-v5e", "-o", "mine.toml")


@pytest.fixture(name="measured")
def _measured(autoshard: Terminal) -> Terminal:
    autoshard.write("c.csv", collectives(TRUTH, [(4,), (8,)], kinds=["all_gather"]))
    autoshard.write("m.csv", products(TRUTH))
    return autoshard


def test_a_fitted_profile(measured: Terminal) -> None:
    """Figures before and after, a residual for each row, and a file that prices as the measured hardware does."""
    done = measured(*CALIBRATE)
    assert (done.status, done.err) == (0, "")
    for text in ("link.latency_us", "chip.matrix_efficiency", "residuals", "rms error 0.00%", "mine.toml"):
        assert text in done.out
    assert done.out.count("all_gather of ") == 2 * 6
    mine = costmodels.load(measured.folder / "mine.toml")
    assert mine.all_gather_ns(10**7, (8,)) == pytest.approx(TRUTH.all_gather_ns(10**7, (8,)), rel=1e-3)
    listed = json.loads(measured("hardware", "mine.toml", "--json").out)["figures"]
    assert listed["link.latency_us"]["source"].startswith("calibrated: 27 measurements")


def test_json(measured: Terminal) -> None:
    """The same as data."""
    data = json.loads(measured(*CALIBRATE, "--json").out)
    assert {row["name"] for row in data["figures"]} >= {"link.latency_us", "chip.hbm_efficiency"}
    assert len(data["calibration"]["residual"]) == 27
    assert data["worst"] < 1e-3


def test_prices_say_where_they_are_extrapolated(measured: Terminal) -> None:
    """A reshard, and a module, that go beyond what was measured carry a warning; within it, none."""
    assert measured(*CALIBRATE).status == 0
    ask = ("cost", "reshard", "--from", '[{"x"}]', "--mesh", "x=4", "--hardware", "mine.toml")
    assert "warning" not in measured(*ask, "--to", "[{}]", "--shape", "65536xf32").out
    small = measured(*ask, "--to", "[{}]", "--shape", "16xf32").out
    assert "warning: mine is extrapolated: all_gather was measured for bytes from 1024" in small
    split = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
    text = 'sdy.mesh @mesh = <["x"=4]>' + MATMUL.replace("64x32xf32>,", f"64x32xf32> {split},", 1)
    done = measured("cost", measured.write("split.mlir", text), "--hardware", "mine.toml", "--form", "shardy")
    assert done.status == 0, done.err
    assert "mine is extrapolated: no " in done.out


def test_kernels_say_where_they_are_extrapolated(measured: Terminal) -> None:
    """Products of sizes or types, and memory traffic, that no table had: the costliest of each is named, the others are counted."""
    rows = "".join(f"memory,{size},{size / 1e6}\n" for size in (10**6, 10**7, 10**8))
    measured.write("r.csv", f"kind,bytes,time_us\n{rows}")
    table = ("calibrate", "m.csv", "r.csv", "--hardware", "tpu-v5e", "-o", "mine.toml")
    assert measured(*table).status == 0

    def cost(sizes: tuple[int, int, int], dtype: str) -> str:
        m, k, n = sizes
        text = f"""
        func.func @main(%a: tensor<{m}x{k}x{dtype}>, %b: tensor<{k}x{n}x{dtype}>) -> tensor<{m}x{n}x{dtype}> {{
          %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
            : (tensor<{m}x{k}x{dtype}>, tensor<{k}x{n}x{dtype}>) -> tensor<{m}x{n}x{dtype}>
          %1 = stablehlo.reverse %0, dims = [0] : tensor<{m}x{n}x{dtype}>
          return %1 : tensor<{m}x{n}x{dtype}>
        }}
        """
        done = measured("cost", measured.write("one.mlir", text), "--mesh", "x=1", "--hardware", "mine.toml")
        assert done.status == 0, done.err
        return done.out

    assert "extrapolated" not in cost((2048, 1024, 4096), "bf16")
    assert "matmul was measured for m from 16 to 8192, not 1" in cost((16384, 1024, 4096), "bf16")
    assert "no matmul in f32 was measured" in cost((2048, 1024, 4096), "f32")
    assert "memory was measured for bytes from 1e+06 to 1e+08, not" in cost((16, 1024, 4096), "bf16")


BAD = {
    "negative time": ("kind,bytes,group,time_us\nall_gather,1,4,-3\n", (), 't.csv:2: a time of "-3"'),
    "too few points": ("kind,bytes,group,time_us\nall_gather,1,4,3\n", (), "1 measurement for 2 figures"),
    "unknown kind": ("kind,bytes,group,time_us\nscan,1,4,3\n", (), '"scan" is no kind of measurement'),
    "unknown base": ("", ("--hardware", "tpu-v99"), "tpu-v99"),
    "a scheduler": ("", ("--hardware", "tpu-v5e:scheduler"), "Start from tpu-v5e."),
    "not TOML": ("", ("-o", "mine.json"), "a profile's file ends in .toml"),
    "a shipped name": ("", ("-o", "tpu-v5e.toml"), "tpu-v5e is a shipped profile"),
    "no folder": ("", ("-o", "no/mine.toml"), "no such folder"),
    "mesh": ("", ("--mesh", "x4"), "cannot read the mesh"),
    "group": ("", ("--group", "1"), "--group"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, autoshard: Terminal) -> None:
    """Exit status 2, one block that says what is wrong, and nothing written."""
    text, more, expected = BAD[case]
    autoshard.write("t.csv", text)
    before = autoshard.files()
    done = autoshard("calibrate", "t.csv", "--hardware", "tpu-v5e", "-o", "mine.toml", *more)
    assert (done.status, done.out) == (2, "")
    assert expected in done.err
    assert autoshard.files() == before


def test_wrong_values_are_told(autoshard: Terminal) -> None:
    """Of nccl-tests: how many rows were left out, and which."""
    head = "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    rows = [(2**12, 20, 0), (2**20, 60, 0), (2**26, 800, 3), (2**26, 400, 0), (2**28, 1500, 0)]
    text = head + "".join(f"{size} 1 float sum -1 {us} 1 1 {wrong} {us} 1 1 0\n" for size, us, wrong in rows)
    autoshard.write("log.txt", text)
    asked = ("--hardware", "h100", "-o", "mine.toml", "--kind", "all_reduce", "--group", "8")
    done = autoshard("calibrate", "log.txt", *asked)
    assert done.status == 0
    assert "warning: log.txt: 1 row in which NCCL counted wrong values left out (line 4)" in done.err
    assert "4 measurements" in done.out


def test_no_table(autoshard: Terminal) -> None:
    """A file that is not there is named."""
    done = autoshard("calibrate", "none.csv", "--hardware", "tpu-v5e", "-o", "mine.toml")
    assert done.status == 2
    assert "none.csv: cannot be read" in done.err
