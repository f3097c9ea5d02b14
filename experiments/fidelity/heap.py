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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ALLOCATION = re.compile(r"allocation \d+: size (\d+)(, color \d+)?.*preallocated-temp")
VALUE = re.compile(r" value: <\d+ (.+?) @\d+> \(size=(\d+),offset=\d+\)")
RANGE = re.compile(r"\s*(\S+):(\d+)-(\d+)$")


def heap_of(assignment: str) -> tuple[int, dict[str, int]]:
    """Bytes of the heap in the first memory space, and of each of its values."""
    size, values, is_inside = 0, dict[str, int](), False
    for line in assignment.splitlines():
        if line.startswith("allocation"):
            found = ALLOCATION.match(line)
            is_inside = found is not None and found[2] is None
            size += int(found[1]) if found is not None and is_inside else 0
        elif is_inside and (found := VALUE.match(line)) is not None:
            values[found[1] if "{" in found[1] else f"{found[1]}{{}}"] = int(found[2])
    return size, values


def ranges_of(live_ranges: str) -> Iterator[tuple[str, int, int]]:
    """The first and the last instruction of every buffer."""
    begun = live_ranges.partition("BufferLiveRange:")[2].partition("Live ranges at")[0]
    for line in begun.splitlines():
        if (found := RANGE.match(line)) is not None:
            yield found[1], int(found[2]), int(found[3])


def alive_at_peak(values: dict[str, int], live_ranges: str) -> int:
    changes: Counter[int] = Counter()
    for name, first, last in ranges_of(live_ranges):
        changes[first] += values.get(name, 0)
        changes[last + 1] -= values.get(name, 0)
    peak = held = 0
    for time in sorted(changes):
        held += changes[time]
        peak = max(peak, held)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dumps", type=Path, nargs="+", metavar="DUMP")
    ratios: list[float] = []
    for dump in parser.parse_args().dumps:
        for assignment in sorted(dump.glob("*after_optimizations-buffer-assignment.txt")):
            name = assignment.name.replace("buffer-assignment", "live-range")
            heap, values = heap_of(assignment.read_text())
            alive = alive_at_peak(values, assignment.with_name(name).read_text())
            if alive:
                ratios.append(heap / alive)
                print(f"{dump.name:50} heap {heap:>14} alive {alive:>14} ratio {ratios[-1]:.3f}")
    if ratios:
        print(f"median of {len(ratios)}: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
