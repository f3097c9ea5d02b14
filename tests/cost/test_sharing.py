"""Who reads a value as it settles neither pays for the copy that others share, nor widens it; and the written plan costs the same."""

import numpy as np
import pytest

from autoshard import pipeline
from autoshard.cost.sharing import find_sharing, tells_settled
from autoshard.mlir.forms import Form
from autoshard.plans import Plan
from autoshard.sharding import Mesh, MeshAxis, TensorSharding, parse_sharding
from costmodels import load

W, X = "tensor<1024x1024xf32>", "tensor<4096x1024xf32>"
ROWS = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}'
TRAINED = f"""
  sdy.mesh @mesh = <["x"=4, "y"=4]>
  func.func @main(%w: {W} {ROWS}, %x: {X} {ROWS}) -> ({W} {ROWS}) {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : ({X}, {W}) -> {X}
    %1 = stablehlo.tanh %0 : {X}
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : ({X}, {W}) -> {X}
    %3 = stablehlo.tanh %2 : {X}
    %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : ({X}, {X}) -> {W}
    %5 = stablehlo.subtract %w, %4 : {W}
    return %5 : {W}
  }}"""
"""Two products read the weight as bfloat16 and whole, the update in float32 and in parts."""
SLICED = """
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (
      tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
      tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.tanh %a : tensor<64x64xf32>
    %1 = stablehlo.exponential %a : tensor<64x64xf32>
    %2 = stablehlo.negate %a : tensor<64x64xf32>
    return %0, %1, %2 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
  }"""


def planned(text: str, form: Form = "xla") -> Plan:
    """Held by the checker and by Shardy's passes, and by the price of what is written."""
    request = pipeline.Request(hardware="tpu-v5e", memory_bytes=None, form=form, overlap="none")
    loaded = pipeline.load_module(text.encode(), request)
    plan = pipeline.plan_loaded(loaded)
    report = pipeline.check_plan(text.encode(), plan, deep=True)
    assert report.passed, report.to_text()
    written = pipeline.write_planned(loaded, plan)
    again = pipeline.cost_loaded(pipeline.load_module(written.encode(), request)).price
    assert (again.step_ns, again.peak_bytes) == (plan.price.step_ns, plan.price.peak_bytes)
    return plan


@pytest.mark.parametrize(("form", "bytes_per_element"), [("xla", 2), ("shardy", 4)])
def test_a_weight_is_gathered_once(form: Form, bytes_per_element: int) -> None:
    """As narrow as its products read it, whatever the update takes of the part that a device keeps."""
    found = [c for c in planned(TRAINED, form).price.collectives if c.kind != "reduce_scatter"]
    placed = load("tpu-v5e").place([("x", 4), ("y", 4)])
    assert [(c.kind, c.repeat) for c in found] == [("all_gather", 1)]
    assert found[0].ns == pytest.approx(
        placed.all_gather_ns(1024 * 1024 * bytes_per_element, ["x", "y"]), rel=0.1
    )


@pytest.mark.parametrize("form", ["xla", "shardy"])
def test_a_slice_is_taken_once(form: Form) -> None:
    """Beside who reads all of it."""
    kinds = [c.kind for c in planned(SLICED, form).price.collectives]
    assert kinds == ["all_slice"]


def shardings(mesh: Mesh, *texts: str) -> list[TensorSharding]:
    return [parse_sharding(text, mesh) for text in texts]


def test_what_hubs_are_told() -> None:
    """Any two layouts on meshes of one axis; of more what is gathered."""
    one = Mesh((MeshAxis("x", 2), MeshAxis("y", 1)))
    two = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
    for mesh, others in ((one, True), (two, False)):
        split, whole, moved = shardings(mesh, '[{"x", "y"}, {}]', '[{"x"}, {}]', '[{"x"}, {"y"}]')
        assert tells_settled(split, whole, mesh)
        assert tells_settled(whole, split, mesh) == others
        assert tells_settled(split, moved, mesh) == others


def test_choices_of_a_hub() -> None:
    """Those that say how the value settles stand in the place of the one that does not; narrow ones are there for narrow readers."""
    mesh = Mesh((MeshAxis("x", 2),))
    known = shardings(mesh, '[{"x"}, {}]', "[{}, {}]")
    both = np.asarray([0, 1])
    few = find_sharing(both, [both, both], [False, True], known, mesh)
    assert few.is_plain
    assert few.possible(both).all()
    sharing = find_sharing(both, [both] * 3, [True, True, False], known, mesh)
    rows = list(zip(sharing.copies, sharing.settled, sharing.is_narrow, strict=True))
    assert rows == [(0, -1, False), (1, -1, False), (1, 0, True), (0, 1, True), (1, 0, False), (0, 1, False)]
    assert sharing.possible(both).tolist() == [
        [True, False, True, False, True, False],
        [False, True, False, True, False, True],
    ]
    assert sharing.takes_copy(np.asarray([0]))[:, 0].tolist() == [True, True, False, True, False, True]
