"""Measurements made from a known profile, with noise where it is asked for."""

import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from costmodels import KINDS, Hardware, calibrate, load
from costmodels.figures import Link

GROUPS = {"h100": [(2,), (8,), (16,), (32,)], "mi300x": [(2,), (4,), (8,)]}
TORUS = [(4,), (8,), (4, 4)]
SIZES = [2**power for power in range(10, 31, 4)]


def changed(hardware: Hardware) -> Hardware:
    """The same chip with other links and efficiencies."""

    def other(link: Link | None) -> Link | None:
        return link and msgspec.structs.replace(
            link,
            achievable_gb_per_s=link.bytes_per_ns * 0.7,
            latency_us=link.latency_us * 1.7,
            overhead_us=link.overhead_us and link.overhead_us * 0.6,
        )

    chip = msgspec.structs.replace(
        hardware.chip, matrix_efficiency=0.61, hbm_efficiency=0.8, kernel_overhead_us=4.2
    )
    links = {name: other(getattr(hardware, name)) for name in ("link", "network", "core_link")}
    return msgspec.structs.replace(hardware, chip=chip, **links)


def collectives(
    hardware: Hardware, groups: Sequence[tuple[int, ...]], noise: float = 0.0, kinds: Sequence[str] = KINDS
) -> str:
    """CSV of every kind over every group with every size."""
    random_ = random.Random(7)
    rows = ["kind,bytes,group,axes,time_us"]
    for kind in kinds:
        for group in groups:
            for size in SIZES:
                ns = getattr(hardware, f"{kind}_ns")(size, group) * random_.gauss(1, noise)
                rows.append(f"{kind},{size},{math.prod(group)},{'x'.join(map(str, group))},{ns / 1e3!r}")
    return "\n".join(rows) + "\n"


def products(hardware: Hardware, noise: float = 0.0) -> str:
    """CSV of products bound by memory, by the matrix unit, and by the launch."""
    random_ = random.Random(8)
    rows = ["m,k,n,dtype,time_us"]
    for m in (16, 128, 1024, 4096, 8192):
        for k in (128, 1024, 8192):
            ns = hardware.matmul_ns(m=m, k=k, n=4096, dtype="bf16") * random_.gauss(1, noise)
            rows.append(f"{m},{k},4096,bf16,{ns / 1e3!r}")
    return "\n".join(rows) + "\n"


def streams(hardware: Hardware, noise: float = 0.0) -> str:
    """CSV of kernels that only read and write, from launches to long ones."""
    random_ = random.Random(9)
    rows = ["kind,bytes,time_us"]
    for size in (0, 10**4, 10**5, 10**7, 10**8, 10**9):
        rows.append(f"memory,{size},{hardware.kernel_ns(0, size, 'f32') * random_.gauss(1, noise) / 1e3!r}")
    return "\n".join(rows) + "\n"


def calibrated(name: str, noise: float) -> Hardware:
    """A shipped profile fitted to what a changed one would measure, written and read again."""
    truth = changed(load(name))
    with tempfile.TemporaryDirectory() as folder:
        tables = [Path(folder) / f"{name}.csv" for name in ("collectives", "products", "streams")]
        tables[0].write_text(collectives(truth, GROUPS.get(name, TORUS), noise, ("all_gather", "all_reduce")))
        tables[1].write_text(products(truth, noise))
        tables[2].write_text(streams(truth, noise))
        made = Path(folder) / "made.toml"
        made.write_text(calibrate(name, tables).text())
        return load(made)
