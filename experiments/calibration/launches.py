"""Small kernels of the programs that `modules.py` measured: launch.csv, as `autoshard calibrate` reads it.

    python experiments/calibration/launches.py FOLDER OUTPUT.csv

FOLDER holds NAME.json.gz of each program. A row is the mean of the bytes and of the time, from one kernel's begin to its end, of a
program's fusions that touch less than 64 KiB.
"""

import argparse
import gzip
import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SMALL = 65536
_WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8}
_TYPE = re.compile(r"\b(" + "|".join(_WIDTHS) + r")\[([\d,]*)\]")
_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*)")


def size(types: str) -> int:
    """Bytes of all types in a text."""
    return sum(
        _WIDTHS[name] * math.prod(map(int, filter(None, dims.split(","))))
        for name, dims in _TYPE.findall(types)
    )


def fusions(hlo: str) -> dict[str, int]:
    """Bytes that each fusion reads and writes, by the name of its kernel; products and scatters are none."""
    parsed = [match for line in hlo.splitlines() if (match := _LINE.match(line))]
    types = {match[1]: match[2] for match in parsed}
    inside = {name for name, body in _computations(hlo) if re.search(r" (dot|scatter|convolution)\(", body)}
    found: dict[str, int] = {}
    for match in parsed:
        called = re.search(r"calls=%?([\w.\-]+)", match[4])
        if match[3] == "fusion" and called is not None and called[1] not in inside:
            operands = re.findall(r"%([\w.\-]+)", match[4].split("), ")[0])
            name = re.sub(r"[.\-]", "_", match[1])
            found[name] = size(match[2]) + sum(size(types.get(operand, "")) for operand in operands)
    return found


def _computations(hlo: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"^(?:ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", hlo, re.S | re.M):
        yield match[1], match[2]


def small_kernels(program: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Bytes and nanoseconds of each run of a small fusion."""
    sizes = fusions(program["hlo"])
    for kernel in program["kernels"]:
        name = re.sub(r"[.\-]", "_", kernel["op"].partition("|")[2])
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
