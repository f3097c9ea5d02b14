"""What XLA's scheduler waits for of products that scatter their sum, or gather an operand, while they run: `[scheduler] covering_ratio`.

One product on a slice of 16 devices, longer and longer beside one pass of a part; `autoshard compile` says what is waited for, in passes.
A loop of n devices takes two passes a turn, n / 2 turns, and one pass comes apart, which nothing hides in a module of one product. So

    waited - 1 = max(0, n / 2 - ratio * product / pass)

and the last column is the ratio where that is above 0, else the least that it can be.

python experiments/fidelity/covering.py [tpu:v5e:4x4 tpu:v6e:4x4 tpu:v5p:2x2x4]
"""

import argparse

from autoshard.hardware import load_hardware
from autoshard.xla.compiling import compile_planned

SIDES, ROWS = (4096, 1024), (272, 320, 384, 512, 768, 1024, 2048)
DEVICES = 16
TARGETS = ("tpu:v5e:4x4", "tpu:v6e:4x4", "tpu:v5p:2x2x4")


def module(rows: int, side: int, kind: str) -> str:
    """`rows` a device; a weight's gradient that is scattered, or a product with a weight that is split."""
    batch, weight = f"tensor<{DEVICES * rows}x{side}xbf16>", f"tensor<{side}x{side}xbf16>"
    first = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}'
    last = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}]>}'
    other, given, made, summed = (
        (batch, first, weight, "[0] x [0]") if kind == "sum" else (weight, last, batch, "[1] x [0]")
    )
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {batch} {first}, %b: {other} {given}) -> ({made} {first}) {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = {summed} : ({batch}, {other}) -> {made}
        return %0 : {made}
      }}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET")
    for target in parser.parse_args().targets:
        hardware = load_hardware(f"tpu-{target.split(':')[1]}:scheduler")
        placed = hardware.place([("x", 4), ("y", 4)], tuple(map(int, target.split(":")[2].split("x"))))
        for kind in ("sum", "operand"):
            for side in SIDES:
                pass_ns = float(placed.collective_permute_ns(side * side * 2 // DEVICES, ["x", "y"]))
                for rows in ROWS:
                    product_ns = hardware.matmul_ns(m=rows, k=side, n=side, dtype="bf16")
                    time = compile_planned(module(rows, side, kind).encode(), target).time
                    assert time is not None
                    waited = time.exposed_ns.get("collective-permute", 0) / pass_ns
                    print(target, kind, side, _row(float(product_ns) / pass_ns, waited), flush=True)


def _row(length: float, waited: float) -> str:
    if not waited:
        return f"product {length:5.2f} passes: no loop"
    behind = waited - 1
    sign = "=" if behind > 0.1 else ">="
    ratio = (DEVICES // 2 - max(behind, 0)) / length
    return f"product {length:5.2f} passes, waited {waited:5.2f}: ratio {sign} {ratio:.1f}"


if __name__ == "__main__":
    main()
