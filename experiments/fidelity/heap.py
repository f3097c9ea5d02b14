"""How much larger XLA's heap of temporary buffers is than what is alive in it at its peak, from the compiler's own dumps.

    XLA_FLAGS="--xla_dump_to=DUMP --xla_dump_hlo_as_text" ... compile ...
    python experiments/fidelity/heap.py DUMP...

Of every folder DUMP: the heap in the first memory space (`preallocated-temp` of the buffer assignment), the most bytes of its values
that are alive at one time by the live ranges, and their ratio; at the end the median of the ratios. The profiles' `heap_slack` is that
median less one. Values that share a buffer in place count twice where their ranges meet, so that single ratios can be below one.
"""

import argparse
import re
import statistics
from pathlib import Path

import numpy as np

from autoshard.xla.heap import heap_values, live_ranges_of
from costmodels.heap import alive_bytes

ALLOCATION = re.compile(r"allocation \d+: size (\d+), (?!color).*preallocated-temp")


def alive_at_peak(assignment: str, live_ranges: str) -> int:
    values = dict(heap_values(assignment))
    lives = [
        (begin, end + 1, values[n].bytes) for n, begin, end in live_ranges_of(live_ranges) if n in values
    ]
    return alive_bytes(*np.asarray(lives, dtype=np.int64).reshape(-1, 3).T)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dumps", type=Path, nargs="+", metavar="DUMP")
    ratios: list[float] = []
    for dump in parser.parse_args().dumps:
        for assignment in sorted(dump.glob("*after_optimizations-buffer-assignment.txt")):
            name = assignment.name.replace("buffer-assignment", "live-range")
            text = assignment.read_text()
            heap = sum(map(int, ALLOCATION.findall(text)))
            alive = alive_at_peak(text, assignment.with_name(name).read_text())
            if alive:
                ratios.append(heap / alive)
                print(f"{dump.name:50} heap {heap:>14} alive {alive:>14} ratio {ratios[-1]:.3f}")
    if ratios:
        print(f"median of {len(ratios)}: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
