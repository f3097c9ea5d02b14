"""What is stored whole where parts of it are taken."""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.program.records import Sliced
from autoshard.sharding import TensorType
from tests.check.test_programs import arbitrary

U, F, B = "tensor<64x4096x512xui32>", "tensor<64x4096x512xf32>", "tensor<64x4096x512xbf16>"
KEY = "tensor<64x4096xui32>"


def chain(ops: int, made: str = "%d") -> str:
    """So many ops on what an index and a key make, the last of them a conversion."""
    lines = [
        f"{made}0 = stablehlo.iota dim = 2 : {U}",
        f"{made}k = stablehlo.broadcast_in_dim %key, dims = [0, 1] : ({KEY}) -> {U}",
        *(
            f"{made}{n + 1} = stablehlo.{('add', 'xor')[n % 2]} {made}{n}, {made}k : {U}"
            for n in range(ops - 1)
        ),
        f"{made} = stablehlo.convert {made}{ops - 1} : ({U}) -> {B}",
    ]
    return "\n".join(lines)


def refused(
    module: str, mesh: tuple[tuple[str, int], ...], seeds: Iterable[int]
) -> Iterator[tuple[str, int]]:
    """What the checker has against arbitrary plans, and their peaks."""
    loaded = pipeline.load_module(module.encode(), pipeline.Request(mesh=mesh, memory_bytes=None))
    for seed in seeds:
        plan = pipeline.plan_loaded(loaded, seed=seed)
        report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
        yield "" if report.passed else report.to_text(), plan.price.peak_bytes


def module(ops: int, *cuts: str) -> str:
    """The values that are made by so many ops, whole on every device, cut so for each reader."""
    sharding = "#sdy.sharding<@mesh, {}>"
    body = [chain(ops), f"%e = sdy.sharding_constraint %d <@mesh, [{{}}, {{}}, {{}}]> : {B}"]
    for number, cut in enumerate(cuts):
        body += [
            f"%f{number} = sdy.sharding_constraint %e <@mesh, {cut}> : {B}",
            f"%o{number} = stablehlo.negate %f{number} : {B}",
        ]
    results = ", ".join(f"{B} {{sdy.sharding = {sharding.format(cut)}}}" for cut in cuts)
    returned = ", ".join(f"%o{number}" for number in range(len(cuts)))
    types = ", ".join(B for _ in cuts)
    return "\n".join(
        [
            'sdy.mesh @mesh = <["x"=4, "y"=4]>',
            f"func.func @main(%key: {KEY} {{sdy.sharding = {sharding.format('[{}, {}]')}}}) -> ({results}) {{",
            *body,
            f"return {returned} : {types}",
            "}",
        ]
    )


ROWS, PLACES, WORDS = '[{"x", "y"}, {}, {}]', '[{}, {"x", "y"}, {}]', '[{}, {}, {"x", "y"}]'
WHOLE, PART = 64 * 4096 * 512 * 2, 64 * 4096 * 512 * 2 // 16


@pytest.mark.parametrize(
    ("ops", "cuts", "stored"),
    [
        (6, [ROWS], 0),
        (7, [ROWS], 2 * WHOLE),  # integers of 32 bits
        (2, [ROWS, ROWS], 0),
        (2, [ROWS, PLACES], WHOLE),
        (12, [ROWS, WORDS], WHOLE),
    ],
)
def test_peak(ops: int, cuts: list[str], stored: int) -> None:
    """By what libtpu 0.0.52 stores for v5e 4x4 beside the results."""
    loaded = pipeline.load_module(module(ops, *cuts).encode(), pipeline.Request(memory_bytes=None))
    peak = pipeline.cost_loaded(loaded).price.peak_bytes
    least = stored + len(cuts) * PART
    assert least <= peak <= least + 3 * PART


@pytest.mark.parametrize(("ops", "is_long"), [(3, False), (6, False), (7, True)])
def test_what_is_in_front_of_a_slice(ops: int, is_long: bool) -> None:
    """As wide as two ops before the end."""
    loaded = pipeline.load_module(module(ops, ROWS).encode(), pipeline.Request(memory_bytes=None))
    found = list(loaded.program.sliced.values())
    assert Sliced(TensorType((64, 4096, 512), "ui32"), is_long) in found


TWICE = f"""func.func @main(%key: {KEY}, %a: {B}, %b: {B}) -> ({B}, {B}) {{
  {chain(3)}
  {chain(9, "%long")}
  %p = stablehlo.add %d, %a : {B}
  %q = stablehlo.multiply %d, %b : {B}
  %r = stablehlo.subtract %q, %long : {B}
  return %p, %r : {B}, {B}
}}"""


def test_plans_hold_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker finds the same in plans whose readers take parts."""
    monkeypatch.setattr(pipeline, "solve", arbitrary)
    found = list(refused(TWICE, (("x", 4), ("y", 2)), range(2, 26, 3)))
    assert {text for text, _ in found} == {""}
    assert np.ptp([peak for _, peak in found]) >= WHOLE // 8


ROW, WEIGHTS = "tensor<64x4096xf32>", "tensor<512x512xbf16>"
FOUR_READERS = f"""func.func @main(%key: {ROW}, %w: {WEIGHTS}, %v: {WEIGHTS}, %c: {F}) -> ({B}, {B}, {F}, {F}) {{
  %0 = stablehlo.broadcast_in_dim %key, dims = [0, 1] : ({ROW}) -> {F}
  %1 = stablehlo.add %0, %0 : {F}
  %2 = stablehlo.multiply %1, %0 : {F}
  %b = stablehlo.convert %2 : ({F}) -> {B}
  %p = stablehlo.dot_general %b, %w, contracting_dims = [2] x [0] : ({B}, {WEIGHTS}) -> {B}
  %q = stablehlo.dot_general %b, %v, contracting_dims = [2] x [0] : ({B}, {WEIGHTS}) -> {B}
  %r = stablehlo.add %2, %c : {F}
  %s = stablehlo.reverse %2, dims = [0] : {F}
  return %p, %q, %r, %s : {B}, {B}, {F}, {F}
}}"""


@pytest.mark.parametrize("seed", [40, 89])
def test_who_reads_the_value_itself_takes_no_part_of_a_copy(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a gathered copy that the others share; that reader pays nothing, and nothing is stored for it."""
    monkeypatch.setattr(pipeline, "solve", arbitrary)
    assert [text for text, _ in refused(FOUR_READERS, (("x", 8),), [seed])] == [""]
