"""XLA's runs in one process that stays, for tests that need hundreds of them; what kills it fails a test."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from autoshard.xla.module import read_program
from autoshard.xla.prepare import for_one_device
from autoshard.xla.worker import Executor


class Worker:
    """`with Worker() as worker: worker.results(module, 8)`."""

    def __enter__(self) -> Self:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def results(self, module: str, num_devices: int) -> Sequence[NDArray[np.float32]]:
        """What XLA computes of the module as it is written, or on one device of the module without Shardy, on the same random inputs."""
        return self._pool.submit(_computed, module.encode(), num_devices).result()


def _computed(module: bytes, num_devices: int) -> list[NDArray[np.float32]]:
    program = read_program(module, "the module")
    if num_devices == 1:
        for_one_device(program)
    executor = Executor(str(program.module).encode(), num_devices, program.is_annotated)
    draw = np.random.default_rng(0)
    inputs = [draw.standard_normal(port.type.shape, np.float32) for port in program.arguments]
    results = executor.run(inputs, [port.type for port in program.results])
    assert all(spread == 0 for _, spread in results), "devices hold different copies"
    return [np.asarray(whole) for whole, _ in results]
