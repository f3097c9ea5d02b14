"""Right plans verify and wrong ones do not."""

import pytest

from autoshard.xla import VerifyReport, verify
from tests import programs
from tests.xla.by_hand import data_parallel, with_shardings

BATCH = {
    "mlp_train": ("x", "labels"),
    "transformer_train": ("tokens", "targets"),
    "transformer_train_scan": ("tokens", "targets"),
    "decode_step": ("cache", "token"),
    "convnet_train": ("images", "labels"),
    "moe_train": ("x", "y"),
    "moe_sorted_train": ("x", "y"),
    "embedding_train": ("tokens", "targets"),
    "rnn_train": ("y",),
    "fixed_point": ("matrix", "b"),
    "fft_mixer": ("x",),
    "dropout_train": ("x",),
}
MEGATRON = {
    "state['params']['embedding']": '[{"model"}, {}]',
    "state['mu']['embedding']": '[{"model"}, {}]',
    "state['nu']['embedding']": '[{"model"}, {}]',
    "tokens": '[{"data"}, {}]',
    "targets": '[{"data"}, {}]',
    **{
        f"state['{moment}']['layers'][{layer}]['{name}']": sharding
        for moment in ("params", "mu", "nu")
        for layer in (0, 1)
        for name, sharding in {
            "q": '[{}, {"model"}, {}]',
            "k": '[{}, {"model"}, {}]',
            "v": '[{}, {"model"}, {}]',
            "o": '[{"model"}, {}, {}]',
            "up": '[{}, {"model"}]',
            "down": '[{"model"}, {}]',
        }.items()
    },
}


def failures(report: VerifyReport) -> str:
    return "" if report.passed else report.to_text()


def test_every_program_is_tried() -> None:
    """A new program needs its batch arguments here."""
    assert set(BATCH) == set(programs.PROGRAMS)


@pytest.mark.parametrize("name", BATCH)
def test_data_parallel(name: str) -> None:
    """The batch over all eight devices computes what one device computes."""
    text = programs.PROGRAMS[name]()
    report = verify(data_parallel(text, *BATCH[name]), text.encode(), 8)
    assert not failures(report)
    assert len(report.rows_with("passed")) == len(report.rows)


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param('<["data"=4, "model"=2]>', marks=pytest.mark.slow),
        pytest.param('<["data"=2, "model"=2, "spare"=2]>', marks=pytest.mark.slow),
        '<["model"=2, "data"=2, "spare"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>',
    ],
)
def test_megatron_on_partly_replicated_meshes(mesh: str) -> None:
    """Shards are cut and joined right where an axis is unused, and for devices in any order."""
    text = programs.transformer_train()
    report = verify(with_shardings(text, MEGATRON, mesh), text.encode(), 8)
    assert not failures(report)
    assert report.collectives["all-reduce"] > 4


@pytest.mark.slow
@pytest.mark.parametrize("program", [programs.transformer_train, programs.transformer_train_scan])
def test_bfloat16(program: object) -> None:
    """Rounding in bfloat16 stays within a tolerance that is far below the size of a gradient."""
    assert callable(program)
    text = str(program("bfloat16"))
    report = verify(data_parallel(text, "tokens", "targets"), text.encode(), 8)
    assert report.narrowest_float == "bf16"
    assert not failures(report)


def test_wrong_constant_fails() -> None:
    """A learning rate that is 1 % off shows in every weight, though the weights hardly differ."""
    text = programs.mlp_train()
    wrong = data_parallel(text, "x", "labels").replace(b"dense<1.000000e-01>", b"dense<1.010000e-01>")
    report = verify(wrong, text.encode(), 8)
    assert not report.passed
    assert {row.name for row in report.rows_with("FAILED")} == {
        f"result[0]['{w}']" for w in ("b1", "b2", "w1", "w2")
    }


def test_wrong_bfloat16_gradient_fails() -> None:
    """A gradient of half the size shows in Adam's float32 moments, though those mostly consist of their past."""
    text = programs.transformer_train("bfloat16")
    count = "dense<1.280000e+02>"  # number of tokens that the loss is a mean over
    assert text.count(count) == 2
    wrong = text.replace(count, "dense<2.560000e+02>")
    report = verify(data_parallel(wrong, "tokens", "targets"), text.encode(), 8)
    failed = {row.name for row in report.rows_with("FAILED")}
    moments = {row.name for row in report.rows if row.name.startswith("result[0]['mu']")}
    assert len(moments & failed) > 0.9 * len(moments)


def test_explicit_reshards() -> None:
    """A plan in shardy form runs as it is written: its reshards become the collectives that they stand for."""
    plan = b"""
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>})
          -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a", "b"}]>}) {
        %0 = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : tensor<16x8xf32>
        %1 = sdy.reshard %0 <@mesh, [{}, {"a"}]> : tensor<16x8xf32>
        %2 = stablehlo.exponential %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"a"}]>]>} : tensor<16x8xf32>
        %3 = sdy.reshard %2 <@mesh, [{}, {"a", "b"}]> : tensor<16x8xf32>
        return %3 : tensor<16x8xf32>
      }"""
    report = verify(plan, plan, 8)
    assert not failures(report)
    assert report.collectives == {"all-to-all": 1}


def test_named_computation() -> None:
    """A named computation is spliced in with the shardings at its edges."""
    plan = b"""
      sdy.mesh @mesh = <["a"=8]>
      func.func @entry(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<16x8xf32> {
        %0 = sdy.named_computation<"f">(%x) in_shardings=[<@mesh, [{}, {"a"}]>] out_shardings=[<@mesh, [{}, {"a"}]>]
            (%y: tensor<16x8xf32>) {
          %1 = stablehlo.tanh %y : tensor<16x8xf32>
          sdy.return %1 : tensor<16x8xf32>
        } : (tensor<16x8xf32>) -> tensor<16x8xf32>
        return %0 : tensor<16x8xf32>
      }"""
    report = verify(plan, plan, 8)
    assert not failures(report)
    assert report.collectives == {"all-to-all": 1}


def test_transform_beside_collectives() -> None:
    """A Fourier transform whose neighbours are collectives along other dimensions compiles."""
    plan = b"""
      sdy.mesh @mesh = <["a"=8]>
      func.func @main(%x: tensor<16x16x32xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a"}, {}]>})
          -> (tensor<16x16x32xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}) {
        %0 = stablehlo.fft %x, type = FFT, length = [32] : (tensor<16x16x32xcomplex<f32>>) -> tensor<16x16x32xcomplex<f32>>
        %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"a"}, {}]> : tensor<16x16x32xcomplex<f32>>
        %2 = sdy.sharding_constraint %1 <@mesh, [{}, {}, {}]> : tensor<16x16x32xcomplex<f32>>
        return %2 : tensor<16x16x32xcomplex<f32>>
      }"""
    assert not failures(verify(plan, plan, 8))


def test_manual_computation() -> None:
    """A module whose collectives are written out has no meaning on one device and is compared on its own mesh."""
    plan = b"""
      sdy.mesh @mesh = <["a"=8]>
      func.func @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<2x8xf32> {
        %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{}, {}]>]
            manual_axes={"a"} (%y: tensor<2x8xf32>) {
          %1 = "stablehlo.all_reduce"(%y) ({
          ^bb0(%p: tensor<f32>, %q: tensor<f32>):
            %2 = stablehlo.add %p, %q : tensor<f32>
            stablehlo.return %2 : tensor<f32>
          }) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids,
              replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
          sdy.return %1 : tensor<2x8xf32>
        } : (tensor<16x8xf32>) -> tensor<2x8xf32>
        return %0 : tensor<2x8xf32>
      }"""
    assert not failures(verify(plan, plan, 8))


def test_copies_that_differ_fail() -> None:
    """A sum that was never completed differs between devices that should hold the same."""
    original = b"func.func @main(%x: tensor<16x8xf32>) -> tensor<2x8xf32> {\n"
    body = b"""%0 = stablehlo.reshape %x : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
        %c = stablehlo.constant dense<0.0> : tensor<f32>
        %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0]
          : (tensor<8x2x8xf32>, tensor<f32>) -> tensor<2x8xf32>
        return %1 : tensor<2x8xf32>
      }"""
    wrong = b"""
      sdy.mesh @mesh = <["a"=8]>
      func.func @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<2x8xf32> {
        %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{}, {}]>]
            manual_axes={"a"} (%y: tensor<2x8xf32>) {
          sdy.return %y : tensor<2x8xf32>
        } : (tensor<16x8xf32>) -> tensor<2x8xf32>
        return %0 : tensor<2x8xf32>
      }"""
    assert not verify(wrong, original + body, 8).passed


def test_seed_decides_the_inputs() -> None:
    """The same seed gives the same report, to the digit."""
    text = programs.mlp_train()
    plan = data_parallel(text, "x", "labels")
    assert verify(plan, text.encode(), 8, seed=3) == verify(plan, text.encode(), 8, seed=3)


@pytest.mark.slow
def test_embedded_example() -> None:
    """The embedded example, data parallel: about 3 minutes and 12 GB on two cores."""
    from importlib.resources import files

    text = (files("autoshard") / "examples" / "transformer_train.mlir").read_text()
    assert not failures(verify(data_parallel(text, "batch"), text.encode(), 8))
