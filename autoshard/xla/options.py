"""What XLA is told for one compilation: partitions, Shardy, which ports it may shard as it likes."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def compile_options(
    num_devices: int,
    is_annotated: tuple[list[bool], list[bool]],
    devices: Any = None,
    overrides: Mapping[str, str | bool | int] | None = None,
) -> Any:
    """`is_annotated`: the arguments and results of main that have a sharding; XLA is free to shard the others, and only those.

    `devices`: their ids, where they are not 0, 1, …. `overrides`: flags of XLA for this compilation alone.
    """
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, num_devices
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, num_devices
    build.use_spmd_partitioning = build.use_shardy_partitioner = num_devices > 1
    ids = np.arange(num_devices) if devices is None else np.array(devices)
    build.device_assignment = xla_client.DeviceAssignment.create(ids.reshape(1, num_devices))
    build.allow_spmd_sharding_propagation_to_parameters = [not one for one in is_annotated[0]]
    build.allow_spmd_sharding_propagation_to_output = [not one for one in is_annotated[1]]
    if overrides:
        options.env_option_overrides = list(overrides.items())
    return options
