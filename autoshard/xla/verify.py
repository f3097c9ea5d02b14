"""Runs a module on virtual CPU devices, and a planned one against its original on the same random inputs."""

from collections.abc import Sequence

import numpy as np

from autoshard.errors import AutoshardError
from autoshard.xla.compare import Result, compare
from autoshard.xla.dtypes import numpy_dtype
from autoshard.xla.hlo import collectives_of
from autoshard.xla.inputs import draw_inputs, nudge
from autoshard.xla.layouts import pin_transforms
from autoshard.xla.module import Model, Port, Program, read_program
from autoshard.xla.outside import refuse_outside
from autoshard.xla.prepare import for_one_device, for_partitions, walk
from autoshard.xla.process import Execution, execute
from autoshard.xla.ranges import ranges_of
from autoshard.xla.report import VerifyReport
from autoshard.xla.rounding import narrowest_float, roundings_of

_NUDGED_RUNS = 2  # one may by chance leave a scalar as it was


def run(
    model: Model, num_devices: int, inputs: Sequence[np.ndarray], time_limit_s: float | None = None
) -> list[np.ndarray]:
    """Full results of `main` on full `inputs`; on one device any sharding in the module is ignored.

    Raises:
        AutoshardError: not a module, one that waits for a host, inputs not of main's types, a mesh of another size, XLA's refusal,
            no time left.
        NativeAbortError: XLA ended its process.
    """
    program = _read(model, "the module")
    _check_inputs(program.arguments, inputs)
    return _execute(program, num_devices, [inputs], time_limit_s).outputs[0]


def verify(
    planned: Model,
    against: Model,
    num_devices: int,
    seed: int = 0,
    carry: Sequence[tuple[int, int]] | None = None,
    time_limit_s: float | None = None,
) -> VerifyReport:
    """Run `against` on one device and `planned` on `num_devices`, on the same inputs, and compare all results.

    `carry`: (result, argument) pairs of state that is fed to the next step; None takes the donated arguments.
    `time_limit_s` holds for each of the two processes.

    Raises:
        AutoshardError: as `run`, or mains of different types.
        NativeAbortError: XLA ended its process.
    """
    original = _read(against, "the original module")
    candidate = _read(planned, "the planned module")
    _check_same_types("argument", original.arguments, candidate.arguments, candidate.name)
    _check_same_types("result", original.results, candidate.results, candidate.name)
    _check_devices(candidate, num_devices)
    narrowest = narrowest_float(original.module)
    runs = _draw_runs(original, seed)
    carried = _carried(original, carry)
    reference = _execute(original, _devices_for_original(original), runs, time_limit_s).outputs
    sharded = _execute(candidate, num_devices, runs[:1], time_limit_s)
    rows = [
        compare(
            Result(
                port,
                reference[0][i],
                sharded.outputs[0][i],
                sharded.spreads[0][i],
                [run[i] for run in reference[1:]],
                runs[0][carried[i]] if i in carried else None,
                [run[carried[i]] for run in runs[1:]] if i in carried else None,
            ),
            narrowest,
        )
        for i, port in enumerate(original.results)
    ]
    return VerifyReport(num_devices, seed, narrowest, tuple(rows), collectives_of(sharded.hlo_text))


def _read(model: Model, role: str) -> Program:
    program = read_program(model, role)
    refuse_outside(program)
    return program


def _devices_for_original(original: Program) -> int:
    """One, unless its manual computations are written for a mesh."""
    is_manual = any(op.name == "sdy.manual_computation" for op in walk(original.module))
    return original.num_mesh_devices or 1 if is_manual else 1


def _draw_runs(program: Program, seed: int) -> list[list[np.ndarray]]:
    """The inputs to compare on, then the same inputs nudged."""
    inputs = draw_inputs(program.arguments, ranges_of(program.module, program.main), seed)
    roundings = roundings_of(program.module, program.main)
    return [inputs, *(nudge(inputs, program.arguments, roundings, seed + i) for i in range(_NUDGED_RUNS))]


def _carried(program: Program, carry: Sequence[tuple[int, int]] | None) -> dict[int, int]:
    """Argument that a result takes the place of, where they have the same type."""
    if carry is None:
        carry = [(port.alias, i) for i, port in enumerate(program.arguments) if port.alias is not None]
    for result, argument in carry:
        if not (0 <= result < len(program.results) and 0 <= argument < len(program.arguments)):
            raise AutoshardError(f"no result {result} or no argument {argument} to carry", where=program.name)
    return {
        result: argument
        for result, argument in carry
        if program.results[result].type == program.arguments[argument].type
    }


def _execute(
    program: Program, num_devices: int, runs: Sequence[Sequence[np.ndarray]], time_limit_s: float | None
) -> Execution:
    _check_devices(program, num_devices)
    if num_devices == 1:
        for_one_device(program)
    else:
        for_partitions(program, num_devices)
    pin_transforms(program.module)
    return execute(program, num_devices, runs, time_limit_s)


def _check_devices(program: Program, num_devices: int) -> None:
    if num_devices < 1:
        raise AutoshardError(f"{num_devices} devices", fix="give at least one device")
    if num_devices == 1:
        return
    size = program.num_mesh_devices
    if size is None:
        raise AutoshardError("no sdy.mesh, so it is not planned", where=program.name, fix="plan it first")
    if size != num_devices:
        raise AutoshardError(
            f"its mesh has {size} devices, not {num_devices}",
            where=program.name,
            fix=f"use {size} devices, or plan for a mesh of {num_devices}",
        )


def _check_same_types(kind: str, original: Sequence[Port], planned: Sequence[Port], where: str) -> None:
    if len(original) != len(planned):
        raise AutoshardError(f"main has {len(planned)} {kind}s, in the original {len(original)}", where=where)
    for i, (theirs, ours) in enumerate(zip(original, planned, strict=True)):
        if theirs.type != ours.type:
            raise AutoshardError(
                f"{kind} {i} of main is {ours.type}, in the original {theirs.type}", where=where
            )


def _check_inputs(arguments: Sequence[Port], inputs: Sequence[np.ndarray]) -> None:
    if len(inputs) != len(arguments):
        raise AutoshardError(f"{len(inputs)} inputs for {len(arguments)} arguments")
    for i, (array, port) in enumerate(zip(inputs, arguments, strict=True)):
        if array.shape != port.type.shape or array.dtype != numpy_dtype(port.type.dtype):
            raise AutoshardError(
                f"input {i} is {array.dtype}{list(array.shape)}, the argument is {port.type}"
            )
