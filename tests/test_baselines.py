"""What the baselines split."""

from collections.abc import Sequence

import pytest

from autoshard import pipeline
from autoshard.plans import Baseline, Plan
from tests.check.test_programs import data_parallel, fully_sharded

MESH = (("x", 4), ("y", 2))


def perceptron(batch: str, product: str, demand: str = "") -> str:
    """Positions of a batch times an array, and the array again as state that is carried."""
    return f"""func.func @main(
    %w: tensor<32x16xf32> {{tf.aliasing_output = 0 : i32{demand}}}, %small: tensor<1xf32>, %x: tensor<{batch}x32xf32>
  ) -> (tensor<32x16xf32>, tensor<{batch}x16xf32>) {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [{product}] x [0]
    : (tensor<{batch}x32xf32>, tensor<32x16xf32>) -> tensor<{batch}x16xf32>
  %1 = stablehlo.add %w, %w : tensor<32x16xf32>
  return %1, %0 : tensor<32x16xf32>, tensor<{batch}x16xf32>
}}"""


def planned(monkeypatch: pytest.MonkeyPatch, baseline: object, text: str) -> Plan:
    monkeypatch.setattr(pipeline, "solve", baseline)
    return pipeline.plan_loaded(
        pipeline.load_module(text.encode(), pipeline.Request(MESH, memory_bytes=None))
    )


def shardings(plan: Plan) -> dict[str, str]:
    found = {argument.name: str(argument.sharding) for argument in plan.arguments}
    return found | {f"result {number}": str(one.sharding) for number, one in enumerate(plan.results)}


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e", "tpu-v5e:scheduler"])
def test_fully_replicated(hardware: str) -> None:
    """Each device does what one alone would; work is not split where that is cheaper, though all values are whole."""
    text = """func.func @main(%a: tensor<4096x16384xbf16>, %b: tensor<16384x4096xbf16>) -> tensor<4096x4096xbf16> {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<4096x16384xbf16>, tensor<16384x4096xbf16>) -> tensor<4096x4096xbf16>
      return %0 : tensor<4096x4096xbf16>
    }"""
    alone, *_ = _baselines(text, (("x", 1),), hardware)
    replicated, *_ = _baselines(text, (("x", 4),), hardware)
    assert (replicated.name, replicated.price) == ("fully replicated", alone.price)


def _baselines(text: str, mesh: tuple[tuple[str, int], ...], hardware: str) -> Sequence[Baseline]:
    request = pipeline.Request(mesh, hardware, memory_bytes=None)
    return pipeline.plan_loaded(pipeline.load_module(text.encode(), request)).baselines


def test_data_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch alone."""
    found = shardings(planned(monkeypatch, data_parallel, perceptron("8", "1")))
    assert found["arg0"] == "[{}, {}]"
    assert found["arg2"] == '[{"x", "y"}, {}]'
    assert found["result 1"] == '[{"x", "y"}, {}]'


def test_fully_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays along their largest dimension, with the state that they become; what is small stays whole."""
    found = shardings(planned(monkeypatch, fully_sharded, perceptron("8", "1")))
    assert found["arg0"] == found["result 0"] == '[{"x", "y"}, {}]'
    assert found["arg1"] == "[{}]"
    assert found["arg2"] == found["result 1"] == '[{"x", "y"}, {}]'


def test_axes_that_the_batch_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that not all axes divide: its positions are split over the others."""
    plan = planned(monkeypatch, fully_sharded, perceptron("4x6", "2"))
    found = shardings(plan)
    assert found["arg2"] == found["result 1"] == '[{"x"}, {"y"}, {}]'
    assert shardings(planned(monkeypatch, data_parallel, perceptron("4x6", "2")))["arg2"] == '[{"x"}, {}, {}]'
    assert plan.baselines[2].note.endswith("what follows the batch over y")


@pytest.mark.parametrize(
    ("mesh", "note"),
    [
        ((("x", 3), ("y", 2)), "arg2 over y"),
        ((("x", 2), ("y", 3), ("z", 4)), "arg2 over x,z"),
        ((("x", 2), ("y", 8)), "arg2 over y"),
        ((("x", 3), ("y", 5)), "arg2 whole: no axis divides the batch"),
        ((("x", 1),), "arg2 on one device"),
    ],
)
def test_the_batch_is_split_into_the_most_parts(mesh: tuple[tuple[str, int], ...], note: str) -> None:
    """Over any axes that divide it, not only over the first of the mesh."""
    _, data, _ = _baselines(perceptron("8", "1"), mesh, "tpu-v5e")
    assert data.note == note


def test_demands_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user wrote of an array is not a baseline's to decide; without another one there is nothing to split."""
    demand = ', sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>'
    text = 'sdy.mesh @mesh = <["x"=4, "y"=2]>\n' + perceptron("8", "1", demand)
    plan = planned(monkeypatch, data_parallel, text)
    assert shardings(plan)["arg0"] == '[{}, {"y"}]'
    assert plan.baselines[2].note == "no other array can be split"
