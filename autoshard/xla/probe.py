"""Adds one tiny asynchronous collective to main, so that XLA:TPU's latency-hiding scheduler lays out and prices all of main.

It leaves computations without an asynchronous op alone. The collective has an argument and a result of its own (the last ones), reads and
feeds nothing else. Rings of permutes become asynchronous on most families; on v5e, where permutes of larger slices do not, an all-gather
along the first physical dimension that has several chips does.
"""

import math
from collections.abc import Sequence
from typing import Any

from autoshard.mlir.context import ir
from autoshard.mlir.signature import attributes_of, set_attributes
from autoshard.sharding import Mesh
from autoshard.xla.targets import Target

PROBE = "autoshard.probe"
"""Part of the op name of everything made of it."""

_CHANNEL = (
    "channel_handle = #stablehlo.channel_handle<handle = 99998, type = 1>"  # a number that no other one has
)
_TILE = (8, 128)


def add_probe(main: ir.Operation, mesh: Mesh, target: Target) -> int:
    """Which argument of main it has become. `mesh` has all of the target's devices."""
    if target.family == "v5e":
        op, shard, gathered = _gather(target)
    else:
        op, shard, gathered = _ring(target), (1,), (1,)
    axes = "{" + ", ".join(f'"{name}"' for name in mesh.axis_names) + "}"
    sharding = f"<{mesh.symbol}, [{', '.join([axes, *['{}'] * (len(shard) - 1)])}]>"
    whole, result = (_type((mesh.num_devices, *local[1:])) for local in (shard, gathered))
    body = f"""{mesh.symbol} = {mesh.definition}
    func.func @probe(%whole: {whole}) -> {result} {{
      %0 = sdy.manual_computation(%whole)
          in_shardings=[{sharding}] out_shardings=[{sharding}] manual_axes={axes} (%shard: {_type(shard)}) {{
        %1 = {op} : ({_type(shard)}) -> {_type(gathered)} loc("{PROBE}")
        sdy.return %1 : {_type(gathered)}
      }} : ({whole}) -> {result}
      return %0 : {result}
    }}"""
    made = ir.Module.parse("sdy.mesh " + body, main.context)
    return _join(main, made, ir.Attribute.parse(f"#sdy.sharding{sharding}", main.context))


def _join(main: ir.Operation, made: ir.Module, sharding: ir.Attribute) -> int:
    function: Any = made.body.operations[1]
    computation = function.regions[0].blocks[0].operations[0].operation
    type_: Any = ir.TypeAttr(main.attributes["function_type"]).value
    inputs, results = list(type_.inputs), list(type_.results)
    block = main.regions[0].blocks[0]
    unknown = ir.Location.unknown(main.context)
    terminator: Any = block.operations[len(block.operations) - 1].operation
    added = computation.clone(ir.InsertionPoint(terminator))
    added.operands[0] = block.add_argument(computation.operands[0].type, unknown)
    with ir.InsertionPoint(terminator), terminator.location:
        ir.Operation.create(terminator.name, operands=[*terminator.operands, added.results[0]])
    terminator.erase()
    ports = (("arg_attrs", len(inputs)), ("res_attrs", len(results)))
    for key, count in ports:
        set_attributes(main, key, [*attributes_of(main, key, count), {"sdy.sharding": sharding}])
    wider = ir.FunctionType.get(
        [*inputs, added.operands[0].type], [*results, added.results[0].type], main.context
    )
    main.attributes["function_type"] = ir.TypeAttr.get(wider, main.context)
    return len(inputs)


def _ring(target: Target) -> str:
    count = target.num_devices
    pairs = ", ".join(f"[{i}, {(i + 1) % count}]" for i in range(count))
    return (
        f'"stablehlo.collective_permute"(%shard) <{{{_CHANNEL}, '
        f"source_target_pairs = dense<[{pairs}]> : tensor<{count}x2xi64>}}>"
    )


def _gather(target: Target) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The op and the types of a shard before and after it."""
    dimension = next(i for i, size in enumerate(target.topology) if size > 1)
    stride, size = math.prod(target.topology[:dimension]), target.topology[dimension]
    firsts = [i for i in range(target.num_devices) if i // stride % size == 0]
    groups = ", ".join(f"[{', '.join(str(first + stride * k) for k in range(size))}]" for first in firsts)
    op = (
        f'"stablehlo.all_gather"(%shard) <{{all_gather_dim = 1 : i64, {_CHANNEL}, '
        f"replica_groups = dense<[{groups}]> : tensor<{len(firsts)}x{size}xi64>, use_global_device_ids}}>"
    )
    return op, (1, 1, *_TILE), (1, size, *_TILE)


def _type(shape: Sequence[int]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"
