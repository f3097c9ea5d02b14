"""The child process, `python -m autoshard.xla.compile_worker FOLDER`: compiles what `autoshard.xla.compiling` left there.

`request.json` names the target and the flags, `module.mlir` is ready for XLA. The answer is `result.json` and `compiled.hlo`; what XLA
dumps goes where the flags say.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.xla.gpus import target_config
from autoshard.xla.options import compile_options

_DEVICES_OF_CHIP = {"v4": {"chip_config_name": "megacore"}}
"""Options of a topology: the two cores of a v4 chip are one device, as jax has them."""


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text())
    from autoshard.mlir.context import ir, new_context

    devices = _devices(request["kind"], request["slice"], request["num_devices"])
    if len(devices) != request["num_devices"]:
        raise AutoshardError(f"the target has {len(devices)} devices, not {request['num_devices']}")
    by_id = {device.id: device for device in devices}
    devices = [by_id[id_] for id_ in request["device_ids"]]
    from jaxlib import xla_client

    options = compile_options(
        len(devices), request["is_annotated"], [device.id for device in devices], request["flags"]
    )
    module = ir.Module.parse((folder / "module.mlir").read_bytes(), new_context())
    client = devices[0].client
    compile_ = client.compile_and_load if request["kind"] == "cpu" else client.compile
    executable = compile_(module, xla_client.DeviceList(tuple(devices)), options)
    memory = executable.get_compiled_memory_stats()
    (folder / "compiled.hlo").write_text(_hlo_text(executable))
    sizes = {
        kind: getattr(memory, f"{kind}_size_in_bytes") for kind in ("argument", "output", "alias", "temp")
    }
    (folder / "result.json").write_text(json.dumps(sizes))


def _hlo_text(executable: Any) -> str:
    try:
        return "\n".join(one.to_string() for one in executable.hlo_modules())
    except (
        RuntimeError
    ) as error:  # seen of libtpu 0.0.51 for tpu7x, whose asynchronous ops XLA does not read back
        raise AutoshardError(
            f"it compiled the module, and the HLO that it made cannot be read back: {error}",
            fix="leave --full out: the fast form reads what the compiler dumps before it generates code",
        ) from None


def _devices(kind: str, slice_name: str, count: int) -> list[Any]:
    match kind:
        case "tpu":
            return tpu_devices(slice_name)
        case "gpu":
            return gpu_devices(slice_name)
        case _:
            return cpu_devices(count)


def gpu_devices(slice_name: str) -> list[Any]:
    """Devices of nodes of GPUs that are not there, in order of their ids."""
    from jaxlib import xla_client

    name, _, shape = slice_name.partition(":")
    plugin = find_spec("jax_plugins.xla_cuda12")  # of the extra cuda; importing it would take jax
    assert plugin is not None
    assert plugin.origin is not None
    library = Path(plugin.origin).parent / "xla_cuda_plugin.so"
    api = xla_client.load_pjrt_plugin_dynamically("cuda", str(library))
    xla_client.initialize_pjrt_plugin("cuda")
    topology = xla_client.make_c_api_device_topology(
        api, name, topology=f"1x{shape}", target_config=target_config(name)
    )
    devices: list[Any] = topology._make_compile_only_devices()
    return sorted(devices, key=lambda device: device.id)


def cpu_devices(count: int) -> list[Any]:
    from jaxlib import xla_client

    return list(xla_client.make_cpu_client(num_devices=count).devices())


def tpu_devices(slice_name: str) -> list[Any]:
    """Devices of a slice that is not there, which can be compiled for, in order of their ids."""
    import libtpu  # pyright: ignore[reportMissingImports]  # the extra tpu
    from jaxlib import xla_client

    xla_client.load_pjrt_plugin_dynamically("tpu", libtpu.get_library_path())
    xla_client.initialize_pjrt_plugin("tpu")
    options = _DEVICES_OF_CHIP.get(slice_name.partition(":")[0], {})
    topology = xla_client.make_tfrt_tpu_c_api_device_topology(slice_name, **options)
    devices: list[Any] = topology._make_compile_only_devices()
    return sorted(devices, key=lambda device: device.id)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
