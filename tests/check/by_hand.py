"""A module of three ops and a plan for it, with every figure written down from the formulas.

y = x @ w, contracted over "y" and scattered over it; z = tanh(y) is returned; w' = -w is next step's w.
"""

import math
from dataclasses import replace
from functools import lru_cache

import costmodels
from autoshard.check import Subject
from autoshard.mlir.listing import Argument, DataFlow, Listing, Op, Result, Source, Value
from autoshard.plans import (
    EmittedCollective,
    NamedSharding,
    Plan,
    PlannedCollective,
    PlannedUse,
    PlannedValue,
    Price,
)
from autoshard.program import RESULT_SITE, build_program
from autoshard.sharding import Mesh, OpShardingRule, TensorType, parse_rule

MESH = Mesh.of([("x", 4), ("y", 2)])
X, W, Y = TensorType((64, 32), "f32"), TensorType((32, 16), "f32"), TensorType((64, 16), "f32")
DOT = parse_rule("([i, k],[k, j])->([i, j]) {i=64, j=16, k=32} reduction={k}")

XY_ROWS, X_ROWS, Y_ROWS = '[{"x", "y"}, {}]', '[{"x"}, {}]', '[{"y"}, {}]'
X_BY_Y = '[{"x"}, {"y"}]'


def op(name: str, operands: tuple[int, ...], result: int, rule: OpShardingRule, flops: int) -> Op:
    is_matmul = name == "stablehlo.dot_general"
    return Op(name, operands, (result,), rule, flops, is_matmul, 1, 0, f"{name}:{result}")


def listing() -> Listing:
    return Listing(
        MESH,
        "a" * 64,
        (Value(X, "x"), Value(W, "w"), Value(Y, "y"), Value(Y, "z"), Value(W, "w'")),
        (
            op("stablehlo.dot_general", (0, 1), 2, DOT, 2 * 64 * 32 * 16),
            op("stablehlo.tanh", (2,), 3, OpShardingRule.elementwise(Y.shape, 1), 12 * 64 * 16),
            op("stablehlo.negate", (1,), 4, OpShardingRule.elementwise(W.shape, 1), 32 * 16),
        ),
        (),
        (Argument(0, "x", None, False, None), Argument(1, "w", None, True, 1)),
        (Result(3, "z", None), Result(4, "w'", None)),
        (),
    )


@lru_cache
def hardware() -> costmodels.Hardware:
    return costmodels.load("tpu-v5e")


def subject(of: Listing | None = None) -> Subject:
    chips = hardware()
    return Subject(build_program(of or listing()), chips, chips.place([("x", 4), ("y", 2)], (4, 2)))


def price() -> Price:
    """On one device x and w are [16, 16], the product before the scatter [16, 16], after it [8, 16], each 4 bytes an element.
    What tanh reads of the product counts with the product, whose result it would be worked out on if it were not summed.

    In memory a row of 16 takes the 128 lanes of a tile, and what comes and goes leaves gaps of 6 %. The result, [8, 16] too, is there
    from the start: what the product leaves is scattered into it, and counts as far as it exceeds an eighth of the result.
    """
    chips = hardware()
    whole, scattered = 16 * 16 * 4, 8 * 16 * 4
    dot_ns = chips.matmul_ns(m=16, k=16, n=16, dtype="f32", bytes=3 * whole + scattered)
    tanh_ns = chips.kernel_ns(12 * 8 * 16, scattered, "f32")
    negate_ns = chips.kernel_ns(16 * 16, 2 * whole, "f32")
    scatter_ns = subject().communication.reduce_scatter_ns(whole, ["y"])
    compute_ns = dot_ns + tanh_ns + negate_ns
    in_tiles, scattered_in_tiles = 16 * 128 * 4, 8 * 128 * 4
    peak_bytes = (
        2 * in_tiles + scattered_in_tiles
    )  # both arguments, and the result; the rest is in vector memory
    sent = (EmittedCollective("reduce_scatter", 2, whole),)
    scatter = PlannedCollective(
        "reduce_scatter", ("y",), whole, scatter_ns, 1, "stablehlo.dot_general", emitted=sent
    )
    return Price(compute_ns + scatter_ns, compute_ns, scatter_ns, peak_bytes, (scatter,))


def needed_bytes() -> int:
    """Of memory that need not be vector memory: partial sums too, and what the scattered ones take beyond the result's bytes."""
    in_tiles, scattered_in_tiles = 16 * 128 * 4, 8 * 128 * 4
    beyond = math.floor(1.06 * scattered_in_tiles) - Y.num_bytes // 8
    return price().peak_bytes + math.floor(1.06 * in_tiles) + beyond


def plan() -> Plan:
    figures = price()
    return Plan(
        module_sha256="a" * 64,
        mesh=(("x", 4), ("y", 2)),
        mesh_name="mesh",
        hardware="tpu-v5e",
        topology=(4, 2),
        form="shardy",
        lowering="shardy",
        memory_bytes=needed_bytes(),
        carry=((1, 1),),
        status="optimal",
        proved="by hand",
        price=figures,
        lower_bound_ns=figures.step_ns,
        smallest_peak_bytes=figures.peak_bytes,
        arguments=(
            NamedSharding("x", str(X), X_BY_Y, 1024),
            NamedSharding("w", str(W), Y_ROWS, 1024, is_carried=True),
        ),
        results=(
            NamedSharding("z", str(Y), XY_ROWS, 512),
            NamedSharding("w'", str(W), Y_ROWS, 1024, is_carried=True),
        ),
        values={
            0: PlannedValue(X_BY_Y),
            1: PlannedValue(Y_ROWS),
            2: PlannedValue(X_ROWS, XY_ROWS),
            3: PlannedValue(XY_ROWS),
            4: PlannedValue(Y_ROWS),
        },
        uses=(
            PlannedUse(0, 0, X_BY_Y),
            PlannedUse(0, 1, Y_ROWS),
            PlannedUse(1, 0, XY_ROWS),
            PlannedUse(2, 0, Y_ROWS),
            PlannedUse(RESULT_SITE, 0, XY_ROWS),
            PlannedUse(RESULT_SITE, 1, Y_ROWS),
        ),
        cloneable=(),
    )


def with_value(of: Plan, value: int, planned: PlannedValue) -> Plan:
    return replace(of, values={**of.values, value: planned})


def with_use(of: Plan, op: int, operand: int, sharding: str) -> Plan:
    """The plan with one use read otherwise."""
    uses = tuple(
        replace(use, sharding=sharding) if (use.op, use.operand) == (op, operand) else use for use in of.uses
    )
    return replace(of, uses=uses)


def looping() -> Listing:
    """One value goes round a loop of 5 trips: its condition (op 1) and body (ops 2, 3) read it, and so does op 4 after it."""
    rule = OpShardingRule.elementwise(W.shape, 1)

    def at(index: int, region: int, repeat: int) -> Op:
        operand = 0 if index == 0 else 2 if index == 3 else 1
        return replace(
            op("stablehlo.sort", (operand,), (4, 5, 2, 3, 6)[index], rule, 512), region=region, repeat=repeat
        )

    flow = DataFlow("while", 1, (Source(4, 1, 1), Source(3, 4, 5)), 1, 4, 1, "loop", body=2)
    return Listing(
        MESH,
        "b" * 64,
        tuple(Value(W, f"v{number}") for number in range(7)),
        (at(0, 0, 1), at(1, 1, 5), at(2, 2, 5), at(3, 2, 5), at(4, 0, 1)),
        (flow,),
        (Argument(0, "v0", None, False, None),),
        (Result(6, "v6", None),),
        (),
    )
