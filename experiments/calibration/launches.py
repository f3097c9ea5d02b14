"""Small kernels of the programs that `modules.py` measured: launch.csv, as `autoshard calibrate` reads it.

    python experiments/calibration/launches.py FOLDER OUTPUT.csv

FOLDER holds NAME.json.gz of each program. A row is the mean of the bytes and of the time, from one kernel's begin to its end, of a
program's fusions that touch less than 64 KiB.
"""

import argparse
import gzip
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoshard.xla.hlo import bytes_of, parse_hlo

_SMALL = 65536
_OTHERS = {"dot", "scatter", "convolution"}


def fusions(hlo: str) -> dict[str, int]:
    """Bytes that each fusion reads and writes, by the name of its kernel; products and scatters are none."""
    module = parse_hlo(hlo)
    types = {one.name: one.type for one in module.instructions}
    found: dict[str, int] = {}
    for one in module.instructions:
        body = module.computations.get(one.callee("calls") or "")
        if (
            one.opcode == "fusion"
            and body
            and _OTHERS.isdisjoint(inner.opcode for inner in body.instructions)
        ):
            read = sum(bytes_of(types[operand]) for operand in one.operands)
            found[_kernel_name(one.name)] = bytes_of(one.type) + read
    return found


def _kernel_name(name: str) -> str:
    return re.sub(r"[.\-]", "_", name)


def small_kernels(program: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Bytes and nanoseconds of each run of a small fusion."""
    sizes = fusions(program["hlo"])
    for kernel in program["kernels"]:
        name = _kernel_name(kernel["op"].partition("|")[2])
        if sizes.get(name, _SMALL) < _SMALL:
            yield from [(sizes[name], kernel["ns"] / kernel["times"])] * int(kernel["times"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    about = "# small kernels of each program: mean of bytes and of time, from one kernel's begin to its end"
    lines, count = [about, "kind,bytes,time_us"], 0
    for path in sorted(options.folder.glob("*.json.gz")):
        found = list(small_kernels(json.loads(gzip.decompress(path.read_bytes()))))
        count += len(found)
        if found:
            bytes_, ns = (statistics.fmean(each) for each in zip(*found, strict=True))
            lines.append(f"memory,{round(bytes_)},{ns / 1e3:.3f}")
    options.output.write_text("\n".join(lines) + "\n")
    print(f"{count} kernels of {len(lines) - 2} programs")


if __name__ == "__main__":
    main()
