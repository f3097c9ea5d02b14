"""Prices of collectives and kernels on named hardware; plain numbers in, whole nanoseconds out.

`load("tpu-v5e")` gives a `Hardware`; its `place` lays a device mesh on the chips and gives a `Communication`.
Knows no compiler and no sharding, and can be used alone.
"""

from .collectives import Communication
from .errors import HardwareError
from .hardware import Hardware, load, names

__all__ = ["Communication", "Hardware", "HardwareError", "load", "names"]
