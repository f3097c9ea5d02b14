"""Compiles a planned module for devices that need not be there, in a child process, and reads what became of it.

XLA:TPU spends nearly all its time on code generation, which changes neither collectives nor memory: a fast compilation is ended as soon
as the scheduled, buffer-assigned module has been dumped.
"""

import importlib.metadata
import json
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autoshard.arguments import Taken, checked
from autoshard.errors import AutoshardError
from autoshard.hardware import load_hardware
from autoshard.mlir.meshes import module_meshes
from autoshard.mlir.repeats import DEFAULT_TRIP_COUNT
from autoshard.mlir.source import SourceModule, load
from autoshard.progress import Progress, silent
from autoshard.sharding import Mesh
from autoshard.xla.collectives import CompiledCollective, Walked, collectives_in
from autoshard.xla.compiled import Compiled, CompiledTime, DoesNotFitError
from autoshard.xla.flops import matrix_flops
from autoshard.xla.fusions import fusion_cycles
from autoshard.xla.heap import CompiledBuffer, held_in_heap
from autoshard.xla.hlo import HloModule, parse_hlo
from autoshard.xla.interconnect import scheduler_ns
from autoshard.xla.labels import Labels, label
from autoshard.xla.launching import run_worker, worker_environment
from autoshard.xla.layouts import pin_transforms
from autoshard.xla.makers import Makers
from autoshard.xla.memory import CompiledMemory, memory_of_assignment, out_of_memory
from autoshard.xla.module import Model, Program, read_program
from autoshard.xla.prepare import for_one_device, for_partitions
from autoshard.xla.probe import PROBE, add_probe
from autoshard.xla.schedule import SchedulePrice, read_schedule
from autoshard.xla.targets import Target, parse_target, require_compiler

_TPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock is of the chips, and none is used
    "TPU_SKIP_MDS_QUERY": "1",  # no questions to the cloud's metadata server
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # of the machine that it looks for; topologies do not depend on it
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_LOG_DIR": "disabled",
}
_GPU_FLAGS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""Nothing can be timed to choose kernels by; without that, Triton finds no tiles for some products. Collectives do not depend on it."""

_FINAL = "after_optimizations_after_buffer_assignment.txt"
_ASSIGNMENT = "after_optimizations-buffer-assignment.txt"
_LIVES = "after_optimizations-live-range.txt"
_SCHEDULE = ".schedule.txt"
_OF_PROBE = "(the probe that autoshard adds to have collectives priced)"


@dataclass(frozen=True, slots=True)
class _Dumped:
    """What a compilation left: the final HLO, and where the compiler says them, its schedule and its memory."""

    hlo_text: str
    schedule: str | None
    memory: CompiledMemory
    held: tuple[CompiledBuffer, ...]


@checked(target=Taken.of('a target as text, as in "tpu:v5e:4x4"', str, Target))
def compile_planned(
    model: Model,
    target: str | Target,
    *,
    full: bool | None = None,
    device_order: Sequence[int] = (),
    time_limit_s: float | None = None,
    progress: Progress = silent,
) -> Compiled:
    """Compile a module with its sdy shardings for all devices of `target`.

    full: with code generation, which adds the compiler's price of each fusion; minutes for TPUs. None: for all but TPUs.
    device_order: ids of the devices that the places of the mesh stand for, as `Plan.device_order` has them; (): in their order.
    time_limit_s: for all, where a program is compiled a second time without the probe.

    Raises:
        AutoshardError: no such target or its compiler is not installed, a mesh of another size or none, XLA's refusal, no time left.
        DoesNotFitError: the program needs more memory than the devices have.
        NativeAbortError: the compiler ended its own process.
    """
    target = target if isinstance(target, Target) else parse_target(target)
    require_compiler(target)
    is_full = target.kind != "tpu" if full is None else full
    if target.kind != "tpu" and not is_full:
        raise AutoshardError(
            "only compilations for TPUs have a fast form", where=f"target {target}", fix="leave --fast out"
        )
    source = model if isinstance(model, SourceModule) else load(model)
    ids = tuple(device_order) or tuple(range(target.num_devices))

    start = time.monotonic()

    def compiled(*, is_probed: bool) -> Compiled:
        return _compiled(source, target, ids, is_full, time_limit_s, start, progress, is_probed=is_probed)

    if target.kind != "tpu" or target.num_devices == 1:
        return compiled(is_probed=False)
    try:
        found = compiled(is_probed=True)
    except DoesNotFitError:
        return compiled(is_probed=False)  # the probe may be what does not fit
    if found.time is None or any(one.is_asynchronous for one in found.collectives):
        return found
    alone = compiled(is_probed=False)
    priced = found.time if found.collectives else replace(found.time, exposed_ns={}, synchronous_ns={})
    return replace(alone, time=priced, compile_s=found.compile_s + alone.compile_s)


def _compiled(
    source: SourceModule,
    target: Target,
    ids: Sequence[int],
    is_full: bool,
    time_limit_s: float | None,
    begun: float,
    progress: Progress,
    *,
    is_probed: bool,
) -> Compiled:
    """With the probe that makes the scheduler price collectives, or as it is.

    A program that has no asynchronous collective is not scheduled so: the probe's would run inside its products, which write over nothing
    then (libtpu 0.0.52: ResNet-50's forward pass on v5e with its logits gathered takes 1.74 GB, and 2.15 beside the probe).
    """
    program = read_program(source, "the planned module")
    mesh = _mesh(program, target)
    if target.num_devices == 1:
        for_one_device(program)
    else:
        for_partitions(program, target.num_devices)
    if target.kind == "cpu":
        pin_transforms(program.module)
    labels = label(program.module, source.name)
    probe = add_probe(program.main, mesh, target) if is_probed and mesh is not None else None
    progress(f"compiling for {target}", None)
    start = time.monotonic()
    dumped = _compile(program, target, ids, is_full, probe, time_limit_s, start - begun)
    seconds = time.monotonic() - start
    progress("reading what the compiler made", None)
    return _read(target, ids, is_full, dumped, labels, seconds)


def _mesh(program: Program, target: Target) -> Mesh | None:
    """The largest, which must have the target's devices."""
    size = program.num_mesh_devices
    if size is None and target.num_devices > 1:
        raise AutoshardError(
            "no sdy.mesh, so it is not planned",
            where=program.name,
            fix="plan it first, or compile for one device",
        )
    if (size or 1) != target.num_devices:
        raise AutoshardError(
            f"its mesh has {size} devices, {target} has {target.num_devices}",
            where=program.name,
            fix=f"name a target of {size} devices, or plan for a mesh of {target.num_devices}",
        )
    return max(module_meshes(program.module), key=lambda mesh: mesh.num_devices, default=None)


def _compile(
    program: Program,
    target: Target,
    ids: Sequence[int],
    is_full: bool,
    probe: int | None,
    time_limit_s: float | None,
    spent_s: float,
) -> _Dumped:
    with tempfile.TemporaryDirectory(prefix="autoshard-compile-") as name:
        folder, dump = Path(name), Path(name) / "dump"
        dump.mkdir()
        flags: dict[str, str | bool | int] = dict(_GPU_FLAGS) if target.kind == "gpu" else {}
        if target.kind == "tpu":
            flags = {
                "xla_dump_to": str(dump),
                "xla_dump_hlo_as_text": True,
                "xla_dump_latency_hiding_schedule": True,
            }
        request = {
            "kind": target.kind,
            "slice": "" if target.kind == "cpu" else target.slice_name,
            "num_devices": target.num_devices,
            "device_ids": ids,
            "is_annotated": program.is_annotated,
            "flags": flags,
        }
        (folder / "request.json").write_text(json.dumps(request))
        with (folder / "module.mlir").open("wb") as file:
            program.module.write_bytecode(file)
        try:
            run_worker(
                "autoshard.xla.compile_worker",
                folder,
                f"XLA for {target}",
                environment=worker_environment((), _TPU_ENVIRONMENT if target.kind == "tpu" else {}),
                time_limit_s=time_limit_s,
                spent_s=spent_s,
                fix="allow more time, or compile a smaller program",
                has_enough=None if is_full else lambda: _is_dumped(dump),
            )
        except AutoshardError as error:
            if found := out_of_memory(error.reason):
                raise DoesNotFitError(*found, error.reason, where=error.where) from None
            raise
        return _dumped(folder, dump, probe, target)


def dumped_file(dump: Path, ending: str) -> Path | None:
    """The dump of the module itself: what XLA takes out of it to compile for other cores (tpu7x) has later numbers."""
    first = min((path.name.partition(".")[0] for path in dump.glob("module_*")), default="module_")
    return next(dump.glob(f"{first}.*{ending}"), None)


def dumped_schedule(dump: Path) -> Path | None:
    """The schedule of the module itself, which has the module's name without its number."""
    final = dumped_file(dump, _FINAL)
    if final is None:
        return None
    _, _, named = final.name.partition(".")
    found = (
        file
        for file in dump.glob(f"*{_SCHEDULE}")
        if named.startswith(file.name.removesuffix("schedule.txt"))
    )
    return max(found, key=lambda file: len(file.name), default=None)


def _is_dumped(dump: Path) -> bool:
    """Whether the final module is there to its end; it is the last to be written.

    Its last computation is the entry. What has been written so far may end with any other's brace.
    """
    final = dumped_file(dump, _FINAL)
    if final is None or final.stat().st_size == 0:
        return False
    with final.open("rb") as file:
        file.seek(max(0, final.stat().st_size - 16))
        if not file.read().rstrip().endswith(b"\n}"):
            return False
    return b"\nENTRY " in final.read_bytes()


def _dumped(folder: Path, dump: Path, probe: int | None, target: Target) -> _Dumped:
    schedule = dumped_schedule(dump)
    result = folder / "result.json"
    final = folder / "compiled.hlo" if result.exists() else dumped_file(dump, _FINAL)
    assert final is not None, "the worker is stopped only when the final module is there"
    assignment, lives = dumped_file(dump, _ASSIGNMENT), dumped_file(dump, _LIVES)
    held: tuple[CompiledBuffer, ...] = ()
    if target.kind == "tpu" and assignment is not None:
        assigned = assignment.read_text()
        memory = memory_of_assignment(assigned, probe)
        if lives is not None:
            held = held_in_heap(assigned, lives.read_text())
    else:
        sizes = json.loads(result.read_text())
        memory = CompiledMemory(sizes["argument"], sizes["output"], sizes["alias"], sizes["temp"])
    return _Dumped(final.read_text(), None if schedule is None else schedule.read_text(), memory, held)


def _read(
    target: Target, ids: Sequence[int], is_full: bool, dumped: _Dumped, labels: Labels, seconds: float
) -> Compiled:
    module = parse_hlo(dumped.hlo_text)
    makers = Makers(module)
    walked = collectives_in(module)
    own = replace(walked, collectives=tuple(one for one in walked.collectives if not _is_probe(one)))
    flops = matrix_flops(module)
    schedule = (
        None if dumped.schedule is None else read_schedule(dumped.schedule, own.collectives, walked.trips)
    )
    return Compiled(
        str(target),
        _compiler(target),
        is_full,
        target.num_devices,
        tuple(replace(one, where=tuple(labels.where(name) for name in one.where)) for one in own.collectives),
        dumped.memory,
        None if schedule is None else _time(target, ids, module, own, schedule, flops, is_full),
        flops,
        tuple(
            f"the trip count of loop {name} does not show; taken for {DEFAULT_TRIP_COUNT}, as in plans"
            for name in walked.unknown_loops
        ),
        round(seconds, 2),
        labels.readers,
        labels.readable(dumped.hlo_text),
        tuple(replace(one, where=_held_by(labels, makers.op_name(one.name))) for one in dumped.held),
    )


def _time(
    target: Target,
    ids: Sequence[int],
    module: HloModule,
    walked: Walked,
    schedule: SchedulePrice,
    flops: int,
    is_full: bool,
) -> CompiledTime:
    peak = None if target.profile is None else load_hardware(target.profile).peak_flop_per_s("bf16")
    scheduled = schedule.scheduled | _names_in(module, schedule.computations)
    unscheduled = [
        one
        for one in walked.collectives
        if not {one.name, one.priced_as} & scheduled and not one.is_asynchronous and one.times > 1
    ]
    prices = [scheduler_ns(one, target, ids) for one in unscheduled]
    known = [price * one.times for price, one in zip(prices, unscheduled, strict=True) if price is not None]
    return CompiledTime(
        None if peak is None else round(flops * 1e9 / peak),
        round(fusion_cycles(module) * 1000 / schedule.cycles_per_us) if is_full else None,
        schedule.exposed_ns,
        schedule.synchronous_ns,
        round(sum(known)) if len(known) == len(prices) else None,
    )


def _names_in(module: HloModule, computations: Collection[str]) -> frozenset[str]:
    """Of the instructions of those computations: an asynchronous one that nothing runs beside has another name once it is scheduled."""
    found = (module.computations[name] for name in computations if name in module.computations)
    return frozenset(one.name for computation in found for one in computation.instructions)


def _held_by(labels: Labels, name: str) -> str:
    return _OF_PROBE if PROBE in name else labels.where(name)


def _is_probe(one: CompiledCollective) -> bool:
    return any(PROBE in name for name in one.where)


def _compiler(target: Target) -> str:
    name = {"tpu": "libtpu", "gpu": "jax-cuda12-pjrt"}.get(target.kind, "jaxlib")
    return f"{name} {importlib.metadata.version(name)}"
