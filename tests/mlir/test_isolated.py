"""What a pass does to its process never reaches ours."""

import os
import signal
import subprocess
import sys

import pytest

from autoshard.errors import AutoshardError, NativeAbortError
from autoshard.mlir import isolated, worker
from autoshard.mlir.isolated import PassRunner, bytecode, run_isolated
from tests.mlir.modules import main_of, source_of

TEXT = main_of("return %a : tensor<8x16xf32>")


def test_the_module_comes_back_with_names_and_locations() -> None:
    text = TEXT.replace(
        "%a: tensor<8x16xf32>", '%a: tensor<8x16xf32> {jax.arg_name = "w"} loc("w"("f.py":1:2))'
    )
    source = source_of(text)
    done = run_isolated(source.module.operation, "canonicalize")
    assert done.operation.get_asm(enable_debug_info=True) == source.module.operation.get_asm(
        enable_debug_info=True
    )


def test_an_abort_is_an_error_that_names_the_pass() -> None:
    """Propagation looks up @main and dies where there is none."""
    text = TEXT.replace("@main", "@one") + "\nfunc.func @two() { return }"
    module = source_of(text.replace("@one", "@main")).module
    renamed = str(module).replace("@main", "@one")
    from autoshard.mlir.context import ir, new_context

    with pytest.raises(NativeAbortError, match=r"(?s)sdy-propagation-pipeline died \(SIG(ABRT|SEGV)\).*main"):
        run_isolated(ir.Module.parse(renamed, new_context()).operation, "sdy-propagation-pipeline")


def test_endless_recursion_in_a_pass_is_an_error_too() -> None:
    text = main_of(
        """%0 = call @f(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
        return %0 : tensor<8x16xf32> }
        func.func private @f(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
          %0 = call @f(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
          return %0 : tensor<8x16xf32>"""
    )
    with pytest.raises(NativeAbortError, match="sdy-flatten-call-graph died"):
        run_isolated(source_of(text).module.operation, "sdy-flatten-call-graph")


def test_a_refusal_says_what_mlir_said() -> None:
    twice = "sdy-add-data-flow-edges,sdy-add-data-flow-edges"
    text = main_of("%0 = stablehlo.optimization_barrier %a : tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>")
    with pytest.raises(AutoshardError, match="expected input"):
        run_isolated(source_of(text).module.operation, twice)


def test_a_pass_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that is stopped nothing ends; the next one is answered by another."""
    runner = PassRunner()

    def runner_of(process: int) -> PassRunner:
        assert process == os.getpid()
        return runner

    monkeypatch.setattr(isolated, "_runner_of", runner_of)
    module = source_of(TEXT).module.operation
    run_isolated(module, "canonicalize")
    assert runner.process is not None
    runner.process.send_signal(signal.SIGSTOP)
    with pytest.raises(NativeAbortError, match="did not end within"):
        run_isolated(module, "canonicalize", timeout_s=0.1)
    assert run_isolated(module, "canonicalize")
    runner.end()


def test_a_process_that_somebody_killed_is_started_again() -> None:
    runner, job = PassRunner(), ("canonicalize", bytecode(source_of(TEXT).module.operation), 60)
    first = runner.answer(*job)
    assert runner.process is not None
    runner.process.kill()
    runner.process.wait()
    assert runner.answer(*job) == first
    runner.end()


def test_a_fork_that_is_killed_while_it_answers_is_an_error() -> None:
    """Half an answer and then another would be read as one that never ends: the worker sends whole ones."""
    read, written = os.pipe()
    script = f"""
import os, signal
from multiprocessing import Pipe
from autoshard.mlir import worker
worker._passed = lambda *_: b"x" * 10_000_000
real = os.fdopen
def dying(fd, mode):
    made = real(fd, mode)
    if mode == "wb":
        made.write(b"x" * 100_000)
        made.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return made
worker.os.fdopen = dying
ours, theirs = Pipe()
os.write({written}, repr(worker.answer(theirs, None, "", b"")).encode())
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, pass_fds=[written])
    os.close(written)
    with os.fdopen(read, "rb") as said:
        assert said.read() == b"(-9, b'')"


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "__name__", "autoshard.mlir.nowhere")
    status, said = PassRunner().answer("canonicalize", b"", 60)
    assert status == 1 and b"No module named autoshard.mlir.nowhere" in said


def test_a_fork_has_a_worker_of_its_own() -> None:
    """Two processes at one worker would take each other's answers, and the first to end would end it."""
    script = f"""
import os, sys
from autoshard.mlir.context import ir, new_context
from autoshard.mlir.isolated import run_isolated
passes = lambda: run_isolated(ir.Module.parse({TEXT!r}, new_context()).operation, "canonicalize")
passes()
fork = os.fork()
if fork == 0:
    passes()
    sys.exit(7)
assert os.waitpid(fork, 0)[1] >> 8 == 7
passes()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_pass_ends_where_nobody_waits_for_it() -> None:
    script = """
import time
from multiprocessing import Pipe
from autoshard.mlir import worker
from autoshard.mlir.context import new_context
worker._write_passed = lambda *_: time.sleep(600)
ours, theirs = Pipe()
ours.close()
assert worker.answer(theirs, new_context(), "canonicalize", b"") == (-9, b"")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def passes() -> bool:
    return "func.func" in str(run_isolated(source_of(TEXT).module.operation, "canonicalize"))
