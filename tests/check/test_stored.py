"""Planner and checker agree on what is stored otherwise than it is written: packed comparisons, sums that are added up again, parts."""

import pytest

from autoshard import pipeline
from autoshard.plans import Plan
from tests.mlir.modules import main_of
from tests.program.test_images import convolved
from tests.program.test_packed import ERROR_BACK, GELU, RECTIFIED_BACK, RECTIFIER, perceptron
from tests.program.test_resummed import residual_text
from tests.program.test_turned import mixer_text
from tests.programs.masked import masked_heads

MESH = (("x", 4), ("y", 2))


def planned(text: str, mesh: tuple[tuple[str, int], ...] = MESH) -> Plan:
    """A plan that the checker finds nothing against."""
    text = "\n".join(line for line in text.splitlines() if "sdy.mesh" not in line)
    request = pipeline.Request(mesh=mesh, hardware="tpu-v5e", memory_bytes=None)
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), request), time_limit_s=20)
    report = pipeline.check_plan(text, plan)
    assert report.passed, report.to_text()
    return plan


def as_large(text: str, images: int, rows: int) -> str:
    """A perceptron of so many images and rows, too many for vector memory."""
    sizes = {"<4x8x16x": f"<{images}x{rows}x4096x", "<4x8x8x": f"<{images}x{rows}x1024x"}
    for before, after in (*sizes.items(), ("<8x16x", "<1024x4096x"), ("<16x8x", "<4096x1024x")):
        text = text.replace(before, after)
    return text


@pytest.mark.parametrize(
    ("work", "back", "dtype", "mesh", "most"),
    [
        (RECTIFIER, RECTIFIED_BACK, "f32", (("x", 8),), 0.9),
        (GELU, ERROR_BACK, "bf16", (("x", 64),), 0.8),
        (GELU, ERROR_BACK, "f32", (("x", 8),), 1.001),
    ],
)
def test_perceptrons_take_less_where_comparisons_are_packed(
    work: str, back: str, dtype: str, mesh: tuple[tuple[str, int], ...], most: float
) -> None:
    """32 images a device of 256 rows, beside 64 of 128, which are not packed."""
    devices = mesh[0][1]
    few, many = (
        planned(as_large(perceptron(work, back, dtype), devices * images, rows), mesh).price.peak_bytes
        for images, rows in ((32, 256), (64, 128))
    )
    assert few < most * many


def rectified(columns: int, images: int) -> str:
    """Two convolutions of float32 with a rectifier between, and what goes back."""
    batch, weights = f"tensor<{images}x64x{columns}x{columns}xf32>", "tensor<64x64x3x3xf32>"
    groups = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
    window = f"window = {{stride = [1, 1], pad = [[1, 1], [1, 1]]}} {groups}"
    along = (
        f"dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], {window} : ({batch}, {weights}) -> {batch}"
    )
    back = (
        f"dim_numbers = [f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1], {window} : ({batch}, {batch}) -> {weights}"
    )
    body = f"""
      %zero = stablehlo.constant dense<0.0> : {batch}
      %h = stablehlo.convolution(%x, %w) {along}
      %c = stablehlo.compare GT, %h, %zero : ({batch}, {batch}) -> {batch.replace("f32", "i1")}
      %r = stablehlo.maximum %h, %zero : {batch}
      %y = stablehlo.convolution(%r, %v) {along}
      %e = stablehlo.exponential %y : {batch}
      %dv = stablehlo.convolution(%r, %e) {back}
      %dr = stablehlo.convolution(%e, %v) {along}
      %dh = stablehlo.select %c, %dr, %zero : {batch.replace("f32", "i1")}, {batch}
      %dw = stablehlo.convolution(%x, %dh) {back}
      return %dv, %dw : {weights}, {weights}"""
    return main_of(body, f"%x: {batch}, %w: {weights}, %v: {weights}", f"{weights}, {weights}")


def test_convolutions_take_less_where_comparisons_are_packed() -> None:
    """Images of 32 rows beside as much in images of 64, whatever number of them a device has."""
    small, large = (
        planned(rectified(columns, images), (("x", 8),)).price.peak_bytes
        for columns, images in ((32, 4096), (64, 1024))
    )
    assert small < 0.95 * large


def test_images_that_are_arguments() -> None:
    """Planner and checker have the copy that a convolution reads until its filter's gradient is there."""
    text = convolved("as it is").replace("x32x32", "x512x512").replace("tensor<16x", "tensor<128x")
    copied = planned(text, (("x", 8),)).price.peak_bytes
    assert copied > 512 * 512 * 128 * 4 * 2


def test_work_on_sums_that_are_added_up_again() -> None:
    """Where a rectifier is in the kernel of the sum, the sum itself is no kernel's result."""
    planned(residual_text("ttt"))
    planned(residual_text("tttt", work="%r{n} = stablehlo.maximum %a{n}, %zeros"))


def test_densely_connected_images() -> None:
    """Six parts, five of them of two stored wholes."""
    image = "tensor<8x16x16x32xbf16>"
    groups = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
    window = f"dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{}} {groups}"
    lines = ["%p0 = stablehlo.add %x, %x : " + image]
    for n in range(5):
        lines.append(
            f"%p{n + 1} = stablehlo.convolution(%p{n}, %w) {window} : ({image}, tensor<1x1x32x32xbf16>) -> {image}"
        )
    for name, parts in (("a", range(5)), ("b", range(6))):
        wide = f"tensor<8x16x16x{32 * len(parts)}xbf16>"
        listed = ", ".join(f"%p{n}" for n in parts)
        lines.append(
            f"%{name} = stablehlo.concatenate {listed}, dim = 3 : ({', '.join([image] * len(parts))}) -> {wide}"
        )
    results = "tensor<8x16x16x160xbf16>, tensor<8x16x16x192xbf16>"
    lines.append(f"return %a, %b : {results}")
    planned(main_of("\n".join(lines), f"%x: {image}, %w: tensor<1x1x32x32xbf16>", results))


@pytest.mark.parametrize("devices", [8, 64])
def test_hidden_values_are_there_where_what_goes_back_lies_otherwise(devices: int) -> None:
    """Of 128 images a device, for an image a quarter more than of 96: two hidden values of five and four sums. Of 8 devices loops add up
    the gradients, which are handed them."""
    most, few = (
        planned(
            mixer_text(2, images=devices * images, width=1024, dtype="bf16"), (("x", devices),)
        ).price.peak_bytes
        / images
        for images in (128, 96)
    )
    ratio = most / few
    assert (ratio > 1.15) if devices == 64 else (0.95 < ratio < 1.15), ratio


def test_of_one_sequence_scores_are_stored_in_the_place_of_exponentials() -> None:
    """Two sequences a device have more than twice as much beside arguments and results as one."""
    beside: list[int] = []
    for batch in (16, 32):
        plan = planned(masked_heads(batch=batch, words=2048), (("x", 16),))
        arguments = 4 * batch // 16 * 2048 * 8 * 64 * 2
        results = batch // 16 * 8 * 2048 * (2 * 64 + 2048) * 2
        beside.append(plan.price.peak_bytes - arguments - results)
    assert beside[1] > 2.2 * beside[0]
