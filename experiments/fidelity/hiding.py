"""Up to which part of memory XLA's scheduler runs collectives behind compute: `autoshard.requests.HIDING_MEMORY_SHARE`.

One product that scatters its sum while it runs, on a slice of 16 devices, beside an argument that every device has whole; what is waited
for is bisected over the argument's size. The last line of each target is what the module takes just below and above, of what a program can
have.

python experiments/fidelity/hiding.py [tpu:v5e:4x4 tpu:v6e:4x4 tpu:v5p:2x2x4]
"""

import argparse

from covering import TARGETS, module

from autoshard.hardware import load_hardware
from autoshard.xla.compiling import compile_planned

ROWS, SIDE = 2048, 4096
FROM, TO, STEPS = 0.85, 0.98, 7


def beside(argument_bytes: int) -> bytes:
    rows = argument_bytes // 4096
    argument = f"%beside: tensor<{rows}x1024xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}, %a:"
    return module(ROWS, SIDE, "sum").replace("%a:", argument, 1).encode()


def measured(target: str, argument_bytes: int) -> tuple[int, int]:
    """What is waited for, ns, and what the module takes, bytes."""
    found = compile_planned(beside(argument_bytes), target)
    assert found.time is not None
    return found.time.exposed_ns.get("collective-permute", 0), found.memory.total_bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET")
    for target in parser.parse_args().targets:
        usable = load_hardware(f"tpu-{target.split(':')[1]}").usable_hbm_bytes
        below, above = FROM, TO
        (least, below_bytes), (most, above_bytes) = (
            measured(target, int(usable * share)) for share in (below, above)
        )
        print(target, f"waits for {least} ns with {FROM} beside it, {most} with {TO}", flush=True)
        if least == most:
            continue
        for _ in range(STEPS):
            share = (below + above) / 2
            waited, bytes_ = measured(target, int(usable * share))
            if waited < (least + most) / 2:
                below, below_bytes = share, bytes_
            else:
                above, above_bytes = share, bytes_
        print(target, f"between {below_bytes / usable:.4f} and {above_bytes / usable:.4f}", flush=True)


if __name__ == "__main__":
    main()
