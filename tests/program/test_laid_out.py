"""Gradients that a transposition alone reads: made turned, or left as they are, with all that is updated copied into their layout."""

from dataclasses import replace

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.program import MinorDims, Program, build_program, minor_of_scattered
from autoshard.program.records import XLA_TPU, Compiler, LaidOut
from tests.mlir.modules import listed, main_of

EARLY = replace(XLA_TPU, lays_out_early=True)
REQUEST = pipeline.Request(hardware="tpu-v5e", memory_bytes=None)


def step(
    order: str,
    *,
    is_read_twice: bool = False,
    is_scaled: bool = True,
    times: int = 1,
    held: str = "",
    updated: str = "",
) -> str:
    """The update of a weight of heads `n`, columns `d` that are summed over and columns `h` of a head, and of its momentum.

    held, updated: attributes of the weight and the momentum as arguments, and as results.
    """
    sizes = {"n": 4, "d": 16 * times, "h": 8 * times}
    n, d, h = sizes.values()
    weight = f"tensor<{'x'.join(str(sizes[dim]) for dim in order)}xf32>"
    made, back, x = f"tensor<{n}x{h}x{d}xf32>", f"tensor<32x{n}x{h}xf32>", f"tensor<32x{d}xf32>"
    return main_of(
        f"""
      %g = stablehlo.dot_general %y, %x, contracting_dims = [0] x [0] : ({back}, {x}) -> {made}
      %t = stablehlo.transpose %g, dims = [{", ".join(str("nhd".index(dim)) for dim in order)}] : ({made}) -> {weight}
      %s = stablehlo.multiply %m, {"%m" if is_scaled else "%t"} : {weight}
      %n = stablehlo.add %s, %t : {weight}
      %u = stablehlo.subtract %w, %n : {weight}
      return %u, %n{", %g" if is_read_twice else ""} : {weight}, {weight}{f", {made}" if is_read_twice else ""}""",
        f"%w: {weight}{held}, %m: {weight}{held}, %x: {x}, %y: {back}",
        f"{weight}{updated}, {weight}{updated}{f', {made}' if is_read_twice else ''}",
    )


def program_for(text: str, compiler: Compiler = EARLY) -> Program:
    return build_program(listed(text), compiler=compiler)


def updated(program: Program, value: int) -> dict[int, LaidOut]:
    """The copies that kernels take which read the value, by the kernel's time."""
    return {
        time: copy
        for (time, operand), copies in program.laid_out.items()
        for copy in copies
        for kernel in program.kernels
        if kernel.time == time and kernel.uses[operand].value == value
    }


@pytest.mark.parametrize(
    ("order", "minor"),
    [
        ("ndh", ((1,), (2,), True)),
        ("hdn", ((1,), (0,), True)),
        ("hnd", ((2,), (0,), True)),
        ("dnh", None),  # made turned
        ("nhd", None),  # made so
    ],
)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_what_is_updated_is_copied_as_a_gradient_lies_that_stays_as_it_is_made(
    order: str, minor: MinorDims | None, is_scaled: bool
) -> None:
    """The weight and its momentum, whether the gradient meets them or what is made of them; nothing that has another shape."""
    program = program_for(step(order, is_scaled=is_scaled))
    weight, momentum = (argument.value for argument in program.listing.arguments[:2])
    if minor is None:
        assert not program.laid_out
    else:
        copies = [copy for there in program.laid_out.values() for copy in there]
        assert len(copies) == 2 and {copy.dims for copy in copies} == {minor}
        (subtraction,) = (k for k in program.kernels if weight in [use.value for use in k.uses])
        assert updated(program, weight) == {
            subtraction.time: LaidOut(copies[0].type, minor, subtraction.time + 1)
        }
        assert updated(program, momentum) or is_scaled  # which only its square meets
    assert not program_for(step(order, is_scaled=is_scaled), XLA_TPU).laid_out


@pytest.mark.parametrize(
    ("order", "is_read_twice", "expected"),
    [("dnh", False, True), ("dnh", True, False), ("ndh", False, False), ("nhd", False, False)],
)
def test_a_product_is_made_turned(order: str, is_read_twice: bool, expected: bool) -> None:
    """Where a transposition alone reads it and exchanges its operands' dimensions; a sum of it that is scattered lies so then."""
    program = program_for(step(order, is_read_twice=is_read_twice))
    (product,) = (kernel.shape for kernel in program.kernels if kernel.shape.is_matmul)
    assert product.is_turned is expected
    assert minor_of_scattered(product) == ((0, 1), (2,), expected)


def test_plan_and_checker_count_the_copies() -> None:
    """Of a gradient that stays as it is made, what is updated is there twice; of one that is made turned it is not."""
    peaks: dict[str, int] = {}
    for order in ("ndh", "dnh"):
        text = step(order, times=1024)
        loaded = pipeline.load_module(text.encode(), REQUEST)
        plan = pipeline.plan_loaded(loaded)
        assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
        peaks[order] = plan.price.peak_bytes
    weight = 4 * 16384 * 8192 * 4
    assert peaks["ndh"] >= peaks["dnh"] + 2 * weight / 16


def added(product: str, made: str, permutation: str, weight: str, ending: str = "") -> Program:
    """The update of `%w` by a transposed product of `%y` and `%x`."""
    result = "%u, %v" if ending else "%u"
    results = f"{weight}, {weight}" if ending else weight
    y, x, dims = product.split("|")
    return program_for(
        main_of(
            f"""
      %g = stablehlo.dot_general %y, %x, {dims} : ({y}, {x}) -> {made}
      %t = stablehlo.transpose %g, dims = [{permutation}] : ({made}) -> {weight}
      %u = stablehlo.subtract %w, %t : {weight}
      {ending}
      return {result} : {results}""",
            f"%w: {weight}, %x: {x}, %y: {y}",
            results,
        )
    )


def test_results_of_attention_are_no_gradients() -> None:
    """Products that are several: heads that go behind positions are laid out for what reads them."""
    program = added(
        "tensor<8x4x16x32xf32>|tensor<8x4x32x64xf32>|batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2]",
        "tensor<8x4x16x64xf32>", "0, 2, 1, 3", "tensor<8x16x4x64xf32>",
    )  # fmt: skip
    assert not program.laid_out


def test_dimensions_of_one_element_are_nowhere() -> None:
    program = added(
        "tensor<32x1x1x64xf32>|tensor<32x16xf32>|contracting_dims = [0] x [0]",
        "tensor<1x1x64x16xf32>", "0, 3, 1, 2", "tensor<1x16x1x64xf32>",
    )  # fmt: skip
    (product,) = (kernel.shape for kernel in program.kernels if kernel.shape.is_matmul)
    assert product.is_turned and not program.laid_out


def test_a_copy_is_there_for_the_last_update() -> None:
    """What is written first runs last here: two updates read the weight."""
    weight = "tensor<4x16x8xf32>"
    program = added(
        "tensor<32x4x8xf32>|tensor<32x16xf32>|contracting_dims = [0] x [0]", "tensor<4x8x16xf32>", "0, 2, 1", weight,
        f"%v = stablehlo.add %w, %t : {weight}",
    )  # fmt: skip
    (argument, *_) = program.listing.arguments
    updates = [
        kernel.time for kernel in program.kernels if argument.value in [use.value for use in kernel.uses]
    ]
    copies = updated(program, argument.value)
    assert {time: copy.end for time, copy in copies.items()} == {min(updates): max(updates) + 1}


def test_what_is_updated_in_parts_is_copied_in_parts() -> None:
    """A weight and its momentum that every device has whole, of which updates whose results are split read parts."""
    peaks: list[int] = []
    for axes in ("", '"x", "y"'):
        held, updated = (
            f" {{sdy.sharding = #sdy.sharding<@mesh, [{{{one}}}, {{}}, {{}}]>}}" for one in ("", axes)
        )
        text = step("ndh", times=1024, held=held, updated=updated)
        loaded = pipeline.load_module(text.encode(), REQUEST)
        plan = pipeline.plan_loaded(loaded)
        assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
        peaks.append(plan.price.peak_bytes)
    weight = 4 * 16384 * 8192 * 4
    assert peaks[0] - peaks[1] > 2 * 2 * 0.75 * weight
