"""GPUs as XLA's compiler wants them described where there are none."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _figures() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "gpus.toml").read_text())


def gpu_names() -> tuple[str, ...]:
    return tuple(name for name in _figures() if name != "common")


def target_config(name: str) -> str:
    """A GpuTargetConfigProto as text."""
    figures = {**_figures()["common"], **_figures()[name]}
    description, capability = figures.pop("name"), figures.pop("compute_capability")
    fields = "\n".join(f"  {key}: {value}" for key, value in figures.items())
    return (
        f"gpu_device_info {{\n{fields}\n  cuda_compute_capability {{ major: {capability} }}\n}}\n"
        f'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: 10 }}\ndevice_description_str: "{description}"\n'
    )
