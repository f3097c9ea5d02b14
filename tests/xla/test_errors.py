"""What a user can do wrong, and what XLA can do to us, each as one clear error."""

from pathlib import Path

import numpy as np
import pytest

from autoshard.errors import AutoshardError, NativeAbortError
from autoshard.xla import launching, run, verify
from tests.xla.by_hand import with_shardings

DOUBLE = """
func.func @main(%x: tensor<8x4xf32> {{jax.arg_name = "x"{argument}}}) -> (tensor<8x4xf32> {{{result}}}) {{
  %0 = stablehlo.add %x, %x : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}}"""
PLAIN = DOUBLE.format(argument="", result="")
MESH = 'sdy.mesh @mesh = <["a"=8]>\n'
X = np.arange(32, dtype=np.float32).reshape(8, 4)


def test_no_such_file(tmp_path: Path) -> None:
    """A path that leads nowhere is named."""
    with pytest.raises(AutoshardError, match=r"absent\.mlir: no such file"):
        verify(tmp_path / "absent.mlir", PLAIN.encode(), 8)


def test_not_mlir() -> None:
    """MLIR's own words say what is wrong with a text."""
    with pytest.raises(AutoshardError, match="custom op 'hello' is unknown"):
        verify(b"hello", PLAIN.encode(), 8)


def test_different_signature() -> None:
    """The first argument that differs is named with both types."""
    other = PLAIN.replace("8x4", "8x2")
    with pytest.raises(
        AutoshardError, match="argument 0 of main is tensor<8x2xf32>, in the original tensor<8x4xf32>"
    ):
        verify((MESH + other).encode(), PLAIN.encode(), 8)


def test_different_number_of_results() -> None:
    """A result too few is counted."""
    other = "func.func @main(%x: tensor<8x4xf32>) { return }"
    with pytest.raises(AutoshardError, match="main has 0 results, in the original 1"):
        verify((MESH + other).encode(), PLAIN.encode(), 8)


@pytest.mark.parametrize(
    ("module", "devices", "message"),
    [
        (MESH + PLAIN, 0, "0 devices"),
        (MESH + PLAIN, -3, "-3 devices"),
        (PLAIN, 8, "no sdy.mesh"),
        (MESH + PLAIN, 4, "its mesh has 8 devices, not 4"),
        ("sdy.mesh @empty_mesh = <[]>" + PLAIN, 8, "no sdy.mesh"),
    ],
)
def test_devices(module: str, devices: int, message: str) -> None:
    """The mesh must have as many devices as are asked for."""
    with pytest.raises(AutoshardError, match=message):
        verify(module.encode(), PLAIN.encode(), devices)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [([], "0 inputs for 1 arguments"), ([X[:4]], "input 0 is"), ([X.astype(np.float64)], "input 0 is")],
)
def test_wrong_inputs(inputs: list[np.ndarray], message: str) -> None:
    """Inputs must be what main takes."""
    with pytest.raises(AutoshardError, match=message):
        run(PLAIN.encode(), 1, inputs)


def test_dynamic_shape() -> None:
    """Nothing can be drawn for an unknown size."""
    with pytest.raises(AutoshardError, match=r"tensor<\?x4xf32> is not a tensor of known shape"):
        run(PLAIN.replace("8x4", "?x4").encode(), 1, [X])


def test_refusal_in_xlas_words() -> None:
    """A donated argument that comes out sharded otherwise is refused by XLA, and we pass on its reason."""
    sharding = ", sdy.sharding = #sdy.sharding<@mesh, {}>, tf.aliasing_output = 0 : i32"
    plan = DOUBLE.format(
        argument=sharding.format('[{"a"}, {}]'), result="sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>"
    )
    with pytest.raises(AutoshardError, match=r"XLA on 8 CPU devices: .*aliased input 0"):
        run((MESH + plan).encode(), 8, [X])


def test_explicit_collectives_are_refused() -> None:
    """XLA takes no sdy collectives; the error says at which stage a plan can be verified."""
    plan = """func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x4xf32> {
      %0 = sdy.all_gather [{"a"}, {}] %x out_sharding=<@mesh, [{}, {}]> : tensor<8x4xf32>
      return %0 : tensor<8x4xf32>
    }"""
    with pytest.raises(
        AutoshardError, match=r"^the module:3: XLA refuses.*\n.*before sdy-reshard-to-collectives"
    ):
        run((MESH + plan).encode(), 8, [X])


_HOST = "channel_handle = #stablehlo.channel_handle<handle = 1, type = {}>, is_host_transfer = true"
_TAKEN = "(!stablehlo.token) -> (tensor<8x4xf32>, !stablehlo.token)"
_GIVEN = "(tensor<8x4xf32>, !stablehlo.token) -> !stablehlo.token"


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (f'%1:2 = "stablehlo.infeed"(%0) <{{layout = [[1, 0]]}}> : {_TAKEN}', r"stablehlo\.infeed"),
        (f'%1:2 = "stablehlo.recv"(%0) <{{{_HOST.format(3)}}}> : {_TAKEN}', r"stablehlo\.recv"),
        (f'%1 = "stablehlo.outfeed"(%x, %0) : {_GIVEN}', r"stablehlo\.outfeed"),
        (f'%1 = "stablehlo.send"(%x, %0) <{{{_HOST.format(2)}}}> : {_GIVEN}', r"stablehlo\.send"),
        (
            "stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) : (tensor<8x4xf32>) -> ()",
            r"a callback into Python \(@xla_ffi_python_cpu_callback\)",
        ),
    ],
)
def test_what_waits_for_the_world_outside_is_refused(op: str, said: str) -> None:
    """Nobody feeds the CPU devices: XLA would wait for ever, or die at a function of a process that is gone."""
    module = f"""
    func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {{
      %0 = stablehlo.create_token : !stablehlo.token
      {op}
      return %x : tensor<8x4xf32>
    }}"""
    with pytest.raises(
        AutoshardError, match=rf"^the original module:4: {said} cannot run here: nothing is there"
    ):
        verify((MESH + PLAIN).encode(), module.encode(), 8, time_limit_s=60)


def test_time_limit() -> None:
    """A run that takes too long is stopped."""
    with pytest.raises(AutoshardError, match=r"not done after 0\.01 s"):
        run(PLAIN.encode(), 1, [X], time_limit_s=0.01)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo 'I0101 log.cc:1] chatter' >&2; echo 'F0101 x.cc:7] Check failed: n > 0' >&2; kill -ABRT $$",
            "SIGABRT: F0101",
        ),
        ("kill -SEGV $$", "SIGSEGV: it printed nothing"),
        ("kill -KILL $$", "want of memory"),
    ],
)
def test_native_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    """XLA ending its process is an error with its last words, not our end."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(launching.sys, "executable", str(interpreter))
    with pytest.raises(NativeAbortError, match=message):
        run(PLAIN.encode(), 1, [X])


def test_unforeseen_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends the process in another way is told in its last words too."""
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'left'\" >&2; exit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(launching.sys, "executable", str(interpreter))
    with pytest.raises(
        AutoshardError, match=r"ended with status 1: ModuleNotFoundError: No module named 'left'"
    ):
        run(PLAIN.encode(), 1, [X])


def test_donated_argument() -> None:
    """A donated argument's buffer is taken over without touching the caller's array."""
    plan = with_shardings(
        DOUBLE.format(argument=", tf.aliasing_output = 0 : i32", result='jax.result_info = "y"'),
        {"x": '[{"data"}, *]'},
    )
    before = X.copy()
    (doubled,) = run(plan, 8, [X])
    assert (doubled == 2 * before).all()
    assert (before == X).all()
