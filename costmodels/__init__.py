"""Prices of collectives and kernels on named hardware; plain numbers in, whole nanoseconds out.

`load("tpu-v5e")` gives a `Hardware`; its `place` lays a device mesh on the chips and gives a `Communication`. Both take
numpy arrays in place of numbers; the `*_table` functions answer with pandas tables. What is listed here is stable; README.md
in this folder has examples of each. Knows no compiler and no sharding, and can be used alone.
"""

from .amounts import whole_ns
from .calibrating import Calibrated, calibrate
from .calibration import Calibration
from .collectives import KINDS, Communication
from .compute import Roofline, bits
from .errors import HardwareError
from .hardware import SCHEDULED, Hardware
from .listing import Figure
from .notation import placement_text
from .profiles import load, names
from .tables import collective_table, kernel_table, matmul_table

__all__ = [
    "KINDS",
    "SCHEDULED",
    "Calibrated",
    "Calibration",
    "Communication",
    "Figure",
    "Hardware",
    "HardwareError",
    "Roofline",
    "bits",
    "calibrate",
    "collective_table",
    "kernel_table",
    "load",
    "matmul_table",
    "names",
    "placement_text",
    "whole_ns",
]
