"""The child process, `python -m autoshard.xla.worker FOLDER`: runs what `autoshard.xla.process` left there.

`request.json` names the number of devices and the types of main's arguments and results; `module.mlir` is
ready for XLA; `inputs/RUN/INDEX` and `outputs/RUN/INDEX` hold the arrays as raw bytes. The answer is
`result.json` and `compiled.hlo`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.sharding import TensorType
from autoshard.xla import storage
from autoshard.xla.options import compile_options
from autoshard.xla.tiles import Tiling, cut, join, tiling_of


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text())
    executor = Executor(
        (folder / "module.mlir").read_bytes(), request["num_devices"], request["is_annotated"]
    )
    (folder / "compiled.hlo").write_text(executor.hlo_text())
    arguments, results = (
        [TensorType(tuple(shape), dtype) for shape, dtype in request[key]] for key in ("arguments", "results")
    )
    spreads: list[list[float]] = []
    for run in range(request["runs"]):
        inputs = storage.load_all(folder / "inputs" / str(run), arguments)
        joined = executor.run(inputs, results)
        storage.save_all(folder / "outputs" / str(run), [full for full, _ in joined])
        spreads.append([spread for _, spread in joined])
    answer = {"temp_bytes": executor.temp_bytes(), "spreads": spreads}
    (folder / "result.json").write_text(json.dumps(answer))


class Executor:
    """A module compiled for virtual CPU devices by XLA with the Shardy partitioner."""

    def __init__(self, module: bytes, num_devices: int, is_annotated: tuple[list[bool], list[bool]]) -> None:
        from jaxlib import xla_client

        from autoshard.mlir.context import ir, new_context

        self._xla = xla_client
        _register_custom_calls(xla_client)
        client = xla_client.make_cpu_client(num_devices=num_devices)
        self._devices = xla_client.DeviceList(tuple(client.devices()))
        options = compile_options(num_devices, is_annotated)
        parsed = ir.Module.parse(module, new_context())
        self._executable: Any = client.compile_and_load(parsed, self._devices, options)

    def hlo_text(self) -> str:
        return "\n".join(module.to_string() for module in self._executable.hlo_modules())

    def temp_bytes(self) -> int:
        return int(self._executable.get_compiled_memory_stats().temp_size_in_bytes)

    def run(self, inputs: list[np.ndarray], results: list[TensorType]) -> list[tuple[np.ndarray, float]]:
        """Each full result, and by how much the copies of it that devices hold differ."""
        placed = [
            self._place(array, sharding)
            for array, sharding in zip(inputs, self._shardings("parameter", len(inputs)), strict=True)
        ]
        outputs = self._executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [
            join([_to_numpy(shard) for shard in shards], self._tiling(sharding, type_.rank), type_.shape)
            for shards, sharding, type_ in zip(
                outputs, self._shardings("output", len(results)), results, strict=True
            )
        ]

    def _shardings(self, kind: str, count: int) -> list[Any]:
        found = getattr(self._executable, f"get_{kind}_shardings")()
        if found is None:
            return [None] * count
        return [
            self._xla.HloSharding.from_proto(sharding) for sharding in found[:count]
        ]  # without results: one

    def _tiling(self, sharding: Any, rank: int) -> Tiling:
        return tiling_of(sharding, rank, len(self._devices))

    def _place(self, full: np.ndarray, sharding: Any) -> Any:
        xla = self._xla
        tiling = self._tiling(sharding, full.ndim)
        shards = cut(full, tiling)
        is_cut = sharding is not None and tiling.owner is None
        hlo_sharding = sharding if is_cut else xla.HloSharding.replicate()
        return xla.batched_device_put(
            _Aval(full),
            xla.GSPMDSharding(self._devices, hlo_sharding),
            shards,
            list(self._devices),
            enable_x64=True,
        )


class _Aval:
    """What the bindings ask of an array's abstract value."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.weak_type = False


def _to_numpy(array: Any) -> np.ndarray:
    return np.asarray(array._single_device_array_to_np_array_did_copy()[0])


def _register_custom_calls(xla_client: Any) -> None:
    """LAPACK kernels, which jax would register for linear algebra on a CPU."""
    try:
        from jaxlib import lapack

        lapack.prepare_lapack_call("potrf", np.dtype(np.float32))  # finds LAPACK; kernels without it crash
    except ImportError:  # it needs scipy; without it XLA names the call that it misses
        return
    for name, target, api_version in lapack.registrations()["cpu"]:
        xla_client.register_custom_call_target(name, target, platform="cpu", api_version=api_version)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
