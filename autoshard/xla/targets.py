"""What to compile for: `tpu:FAMILY:TOPOLOGY` (a slice of TPUs), `gpu:NAME:NODESxGPUS`, `cpu:N` (virtual devices)."""

import importlib.util
import math
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.hardware import Layout, load_hardware, place_mesh
from autoshard.xla.gpus import gpu_names

CORES = {"v2": 2, "v3": 2, "v4": 1, "v5e": 1, "v5p": 1, "v6e": 1, "tpu7x": 2}
"""Devices that libtpu 0.0.51 makes of a chip, by family; the two cores of a v4 chip are joined (megacore), as in jax."""

PROFILES = {"v4": "tpu-v4", "v5e": "tpu-v5e", "v5p": "tpu-v5p", "v6e": "tpu-v6e", "tpu7x": "tpu7x"}
"""The hardware profile of a family; the older ones have none."""

_FORMS = "tpu:FAMILY:TOPOLOGY (as tpu:v5e:4x4), gpu:NAME:NODESxGPUS (as gpu:h100:2x8) or cpu:N (as cpu:8)"
_CUDA_PLUGIN = "jax_plugins.xla_cuda12"


@dataclass(frozen=True, slots=True)
class Target:
    """`topology`: of TPUs chips along each dimension, as slices are named; of GPUs nodes and GPUs of each."""

    kind: str  # "tpu", "gpu" or "cpu"
    num_devices: int
    family: str = ""
    topology: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"cpu:{self.num_devices}" if self.kind == "cpu" else f"{self.kind}:{self.slice_name}"

    @property
    def slice_name(self) -> str:
        """As libtpu names it."""
        return f"{self.family}:{'x'.join(map(str, self.topology))}"

    @property
    def profile(self) -> str | None:
        return self.family if self.kind == "gpu" else PROFILES.get(self.family)


def parse_target(text: str) -> Target:
    """Raises AutoshardError: a kind, family or shape that does not exist; those that do are named."""
    kind, _, rest = text.strip().partition(":")
    match kind:
        case "cpu":
            return _cpu(text, rest)
        case "tpu":
            return _tpu(text, rest)
        case "gpu":
            return _gpu(text, rest)
        case _:
            raise AutoshardError(f"no such target {text!r}", fix=f"give {_FORMS}")


def require_compiler(target: Target) -> None:
    """Raises AutoshardError: the package that compiles for the target is not installed."""
    needed = {"tpu": ("libtpu", "TPUs", "tpu"), "gpu": (_CUDA_PLUGIN, "GPUs", "cuda")}
    if target.kind in needed:
        package, devices, extra = needed[target.kind]
        if not _is_installed(package):
            raise AutoshardError(
                f"the compiler for {devices} is not installed",
                where=f"target {target}",
                fix=f"install the extra {extra}: pip install 'autoshard[{extra}]'",
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _cpu(text: str, rest: str) -> Target:
    if not rest.isdecimal() or int(rest) < 1:
        raise AutoshardError(
            f"cannot read the number of CPU devices in {text!r}", fix="write a number from 1 on, as in cpu:8"
        )
    return Target("cpu", int(rest))


def _tpu(text: str, rest: str) -> Target:
    family, _, shape = rest.partition(":")
    if family not in CORES:
        raise AutoshardError(
            f"no TPU family {family!r}", where=f"target {text}", fix=f"the families are {', '.join(CORES)}"
        )
    sizes = shape.split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes) or len(sizes) not in (2, 3):
        raise AutoshardError(
            f"cannot read the topology {shape!r}",
            where=f"target {text}",
            fix="write the chips along each dimension, as in 4x4 (v2, v3, v5e, v6e) or 2x2x4 (v4, v5p, tpu7x)",
        )
    topology = tuple(map(int, sizes))
    target = Target("tpu", math.prod(topology) * CORES[family], family, topology)
    if target.profile is not None:  # libtpu makes topologies that no slice has
        try:
            place_mesh(
                load_hardware(target.profile), [("devices", target.num_devices)], Layout(topology[::-1])
            )
        except AutoshardError as error:
            raise AutoshardError(error.reason, where=f"target {text}", fix=error.fix) from None
    return target


def _gpu(text: str, rest: str) -> Target:
    name, _, shape = rest.partition(":")
    if name not in gpu_names():
        raise AutoshardError(
            f"no GPU {name!r}",
            where=f"target {text}",
            fix=f"those that can be described to XLA are {', '.join(gpu_names())}",
        )
    sizes = shape.split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes) or len(sizes) > 2:
        raise AutoshardError(
            f"cannot read the number of GPUs {shape!r}",
            where=f"target {text}",
            fix="write GPUs, or nodes and GPUs of each, as in 8 or 2x8",
        )
    topology = tuple(map(int, sizes))
    nodes, gpus = (1, *topology) if len(topology) == 1 else topology
    return Target("gpu", nodes * gpus, name, (nodes, gpus))
