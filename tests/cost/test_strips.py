"""What few images take in a training step, and when."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check
from autoshard.program import Lives
from tests.check.test_programs import last_start
from tests.program.test_strips import CHANNELS_FIRST, MASKED, ROLES, SWISH, TAPS, WAVES, normalized, strided

COLUMNS, BACK, AGAIN = (
    "images in strips, one for each column of the filter",
    "gradients in strips",
    "read as images again",
)
IMAGES = (
    4 * 8 * 129 * 128 * 2
)  # bytes of four waves of 1024 with what strips overlap by, in lanes, of bfloat16


def module(work: str, pad: str = "[0, 1]") -> bytes:
    rows = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}'
    given = f"%x: {WAVES} {rows}, %v: {TAPS}, %w: {TAPS}"
    return f"""
      sdy.mesh @mesh = <["x"=2]>
      func.func @main({given}) -> ({TAPS}, {TAPS}) {{ {strided(work, pad)} }}""".encode()


def large(text: bytes) -> bytes:
    """Longer waves, more than vector memory has room for."""
    return text.replace(b"1024", b"131072").replace(b"512", b"65536")


def groups() -> bytes:
    """Statistics of groups of channels that are merged with images, four a device, more than vector memory has room for."""
    text = normalized(
        f"%1 = stablehlo.reshape %0 : ({CHANNELS_FIRST}) -> tensor<128x16384xbf16>",
        f"%7 = stablehlo.reshape %6 : (tensor<128x16384xbf16>) -> {CHANNELS_FIRST}",
    )
    rows = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}'
    given = f"%x: {CHANNELS_FIRST} {rows}, %v: tensor<16x16x3x3xbf16>, %w: tensor<16x16x3x3xbf16>"
    return (
        f"""
      sdy.mesh @mesh = <["x"=8]>
      func.func @main({given}) -> tensor<16x16x3x3xbf16> {{ {text} }}""".replace("x64x64x", "x512x512x")
        .replace("16384", "1048576")
        .encode()
    )


def loaded_of(text: bytes, chip: str) -> pipeline.Loaded:
    return pipeline.load_module(text, pipeline.Request(hardware=chip, memory_bytes=None))


def stored(loaded: pipeline.Loaded, note: str) -> list[tuple[int, int, int]]:
    """(begin, end, bytes without gaps of the heap) of what the module takes as it is written, by when it begins."""
    written = price_as_written(loaded)
    tiles = loaded.hardware.tiles
    assert tiles is not None
    items = written.priced.node_items.while_living(Lives(loaded.program.ample_lifetimes))
    return sorted(
        (item.begin, item.end, int(item.bytes[written.choice[node]] / (1 + tiles.heap_slack)))
        for node, item in items
        if item.note == note
    )


@pytest.mark.parametrize(
    ("chip", "counts"), [("tpu-v5e", (3, 3)), ("tpu-v6e", (2, 3)), ("tpu-v5p", (2, 3)), ("tpu-v4", (2, 3))]
)
def test_copies_for_filters(chip: str, counts: tuple[int, int]) -> None:
    """On v5e one of each column until the end; on the others two for the plain filter, and three for a moment where strides pad."""
    loaded = loaded_of(module(SWISH), chip)
    strides, plain = loaded.program.strips.filters  # by time
    copies, back = stored(loaded, COLUMNS), stored(loaded, BACK)
    is_last = chip == "tpu-v5e"
    expected = [
        (strides, plain + 1 if is_last else strides + 1, counts[1] * IMAGES),
        (strides, plain + 1, counts[0] * IMAGES),
    ]
    assert [(begin, end) for begin, end, _ in copies] == sorted((begin, end) for begin, end, _ in expected)
    assert sorted(size for *_, size in copies) == pytest.approx(
        sorted(size for *_, size in expected), rel=1e-6
    )
    assert [(begin, end) for begin, end, _ in back] == [
        (strides, plain + 1 if is_last else strides + 1),
        (plain, plain + 1),
    ]


def test_what_is_read_as_images_again() -> None:
    loaded = loaded_of(module(SWISH), "tpu-v5e")
    ((_, end, size),) = stored(loaded, AGAIN)
    assert size == pytest.approx(4 * 8 * 128 * 128 * 2, rel=1e-6)
    assert end == max(loaded.program.strips.filters)  # which reads what is worked out of it
    assert not stored(loaded_of(module(MASKED), "tpu-v5e"), AGAIN)


@pytest.mark.parametrize("chip", ["tpu-v5e", "tpu-v6e"])
@pytest.mark.parametrize(
    "text", [large(module(SWISH)), large(module(MASKED)), groups()], ids=["swish", "masked", "groups"]
)
def test_the_checker_finds_the_same_peak(text: bytes, chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the plan that splits images."""
    monkeypatch.setattr(pipeline, "solve", last_start)
    loaded = loaded_of(text, chip)
    plan = pipeline.plan_loaded(loaded)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()


def convolution_ns(waves: int, columns: int, chip: str) -> int:
    """Of three columns of many channels, waves over two devices, on the scheduler's matrix unit."""
    given, filter_ = f"tensor<{waves}x{columns}x512xbf16>", "tensor<3x512x512xbf16>"
    rows = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}'
    text = f"""
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%x: {given} {rows}, %v: {filter_}) -> ({given} {rows}) {{
        %0 = stablehlo.convolution(%x, %v) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{pad = [[1, 1]]}} {{{ROLES}}}
          : ({given}, {filter_}) -> {given}
        return %0 : {given}
      }}"""
    return pipeline.cost_loaded(loaded_of(text.encode(), chip)).price.compute_ns


@pytest.mark.parametrize(("columns", "worked_on"), [(1024, 1032), (128, 136), (16, 24), (12, 12)])
def test_strips_work_on_columns_twice(columns: int, worked_on: int) -> None:
    """Four waves a device, of which each strip makes one more than an eighth; eight are whole. So XLA for TPUs counts (libtpu 0.0.52)."""
    few, many = (convolution_ns(waves, columns, "tpu-v5e:scheduler") for waves in (8, 16))
    assert 2 * few / many == pytest.approx(worked_on / columns, rel=0.002)
