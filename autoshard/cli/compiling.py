"""`compile`: what the real compiler makes of a planned module, beside what was predicted."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoshard.cli.options import carry_option, json_option, parse_carry, read_model, time_limit_option
from autoshard.cli.progress import progress_bar

if TYPE_CHECKING:
    from autoshard.annotated import AsWritten
    from autoshard.plans import Plan
    from autoshard.progress import Progress
    from autoshard.xla.compiled import DoesNotFitError
    from autoshard.xla.targets import Target


@click.command("compile")
@click.argument("planned")
@click.option(
    "--target",
    required=True,
    metavar="tpu:FAMILY:TOPOLOGY|gpu:NAME:NODESxGPUS|cpu:N",
    help="Devices to compile for, as tpu:v5e:4x4, gpu:h100:2x8 or cpu:8; they need not be there.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    help="Compare with this plan's prediction; memory op by op where `autoshard cost` has the same peak. Default: what that says.",
)
@click.option("--no-predict", is_flag=True, help="Compare with nothing, which is quicker.")
@click.option(
    "--hardware",
    metavar="NAME|FILE.toml",
    help="Chip profile of the prediction. Default: the target's, tpu-v5e for CPUs.",
)
@carry_option
@click.option(
    "--fast/--full",
    "fast",
    default=None,
    help="Stop before code generation (default for TPUs, minutes quicker), or go on, which also prices each fusion.",
)
@click.option(
    "--keep-hlo",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the compiler's final HLO to FILE.",
)
@time_limit_option("Give up compiling after so long.", default=None, is_above_zero=True)
@json_option
@click.option(
    "--all", "show_all", is_flag=True, help="Print every compiled collective, and every difference."
)
def compile_command(
    planned: str,
    target: str,
    plan_file: Path | None,
    no_predict: bool,
    hardware: str | None,
    carry: str,
    fast: bool | None,
    keep_hlo: Path | None,
    time_limit: float | None,
    as_json: bool,
    show_all: bool,
) -> None:
    """Compile PLANNED with XLA for devices that need not be there, and compare collectives, memory and time with the prediction.

    Exit status 1 when the compiler finds that the program does not fit into device memory.
    """
    from autoshard.errors import AutoshardError
    from autoshard.hardware import load_hardware
    from autoshard.mlir import files
    from autoshard.xla.compile_report import CompileReport
    from autoshard.xla.compiled import DoesNotFitError
    from autoshard.xla.compiling import compile_planned
    from autoshard.xla.prediction import prediction_of
    from autoshard.xla.targets import parse_target

    found = parse_target(target)
    if keep_hlo is not None:
        files.require_writable(keep_hlo)
    for option, given in (("--plan", plan_file), ("--hardware", hardware)):
        if given is not None and no_predict:
            raise AutoshardError(f"{option} and --no-predict contradict each other", fix="give one of them")
    plan = None if plan_file is None else _plan(plan_file, found)
    held, at_scheduler = None, None
    profile = hardware or found.profile or "tpu-v5e"
    load_hardware(profile)
    model = read_model(planned)
    with progress_bar() as progress:
        try:
            compiled = compile_planned(
                model,
                found,
                full=None if fast is None else not fast,
                time_limit_s=time_limit,
                device_order=() if plan is None else plan.device_order,
                progress=progress,
            )
        except DoesNotFitError as error:
            _report_misfit(error, as_json)
            sys.exit(1)
        if keep_hlo is not None:
            files.write_text(keep_hlo, compiled.hlo_text)
        if not no_predict and (plan is None or compiled.held):
            as_written = _priced(model, found, profile, carry, progress)
            held = as_written.held()
            theirs = None if found.profile is None else as_written.at_scheduler_of(found.profile)
            at_scheduler = None if theirs is None else theirs.plan()
            if plan is None:
                plan = as_written.plan()
            elif held.peak_bytes != plan.price.peak_bytes:
                held = None
    source = (
        "autoshard cost of the module as written"
        if plan_file is None or plan is None
        else f"the plan {plan_file}{_elsewhere(plan, found)}"
    )
    places = {} if plan is None or plan_file is None else _places(model, plan)
    prediction = None if plan is None else prediction_of(plan, source, held, at_scheduler)
    report = CompileReport(compiled, prediction, places)
    click.echo(report.to_json() if as_json else report.to_text(show_all=show_all), nl=as_json)


def _plan(file: Path, target: "Target") -> "Plan":
    from autoshard.errors import AutoshardError
    from autoshard.plans import read_plan
    from autoshard.report import shape_text

    found = read_plan(file)
    devices = math.prod(size for _, size in found.mesh)
    if devices != target.num_devices:
        raise AutoshardError(
            f"the plan is for {devices} devices, {target} has {target.num_devices}",
            where=str(file),
            fix=f"name a target of {devices} devices, or plan for a mesh of {target.num_devices}",
        )
    if found.device_order and target.kind != "cpu" and not _is_on(found, target):
        raise AutoshardError(
            f"the plan places its mesh on {shape_text(found.topology, found.slices)}, the target is {target}",
            where=str(file),
            fix="name the target of the plan's topology"
            if (found.slices or 1) == 1
            else f"targets are one slice each: name cpu:{devices}, or leave --plan out",
        )
    return found


def _is_on(plan: "Plan", target: "Target") -> bool:
    return plan.topology == target.topology and (plan.slices or 1) == 1


def _elsewhere(plan: "Plan", target: "Target") -> str:
    """Where the prediction is for another topology than the target's."""
    from autoshard.report import shape_text

    return (
        ""
        if _is_on(plan, target) or target.kind == "cpu"
        else f", which is for {shape_text(plan.topology, plan.slices)}"
    )


def _places(model: str | bytes, plan: "Plan") -> dict[str, str]:
    """Places in the written module as the plan has them, where the module that was planned is still there."""
    from autoshard.errors import AutoshardError
    from autoshard.mlir.source import load
    from autoshard.xla.places import places_before

    try:
        original = load(plan.module_path) if plan.module_path else None
    except AutoshardError:
        return {}
    if original is None or original.sha256 != plan.module_sha256:
        return {}
    return places_before(load(model), replace(original, name=plan.module_name or original.name))


def _priced(
    model: str | bytes, target: "Target", hardware: str, carry: str, progress: "Progress"
) -> "AsWritten":
    """The module's shardings as `autoshard cost` prices them."""
    from autoshard.loading import load_module
    from autoshard.pipeline import price_as_written
    from autoshard.requests import Request

    request = Request(hardware=hardware, topology=target.topology or None, carry=parse_carry(carry))
    return price_as_written(load_module(model, request, progress), progress)


def _report_misfit(error: "DoesNotFitError", as_json: bool) -> None:
    if as_json:
        data = {
            "fits": False,
            "used_bytes": error.used_bytes,
            "available_bytes": error.available_bytes,
            "error": error.reason,
        }
        click.echo(json.dumps(data, indent=1))
    else:
        from autoshard.report.units import bytes_text

        used, available = bytes_text(error.used_bytes), bytes_text(error.available_bytes)
        click.echo(f"does not fit: {used} needed of {available} a device", err=True)
        click.echo(f"autoshard: {error}", err=True)
