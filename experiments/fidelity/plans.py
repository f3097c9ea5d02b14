"""Random legal plans of a program, and what a compiler makes of them, kept in a folder so that nothing is made twice.

FOLDER/PROGRAM/NAME.mlir is the planned module, NAME.plan.json the plan, NAME.TARGET.json what the judge said, and NAME.TARGET.hlo.gz the
compiled HLO where it was asked for. The judge is a script that prints one JSON object: JUDGE MODULE --target TARGET --fast --keep-ops.
Asked without --fast (`--full`), its answers are in NAME.TARGET.full.json.

Three kinds of random plans, each from a seed: `propagated` (random shardings of some arguments, the rest by Shardy's propagation),
`perturbed` (the solver under prices that are off by random factors) and `pinned` (some kernels given a random strategy, the rest
solved). In each, a value with several readers is then brought once to the sharding that is cheapest for them, since XLA makes equal
changes of a value once.

python experiments/fidelity/plans.py PROGRAM... --folder FOLDER [--count 9] [--judge PATH --judge-python PYTHON --target tpu:v5e:4x4]
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.annotated import price_as_written
from autoshard.cost import PricedGraph, decide_hubs, follow
from autoshard.errors import AutoshardError
from autoshard.hardware import load_hardware
from autoshard.mlir import passes
from autoshard.pipeline import (
    AsWritten,
    Loaded,
    Request,
    baseline_choices,
    load_module,
    plan_loaded,
    price_for_planning,
    write_planned,
)
from autoshard.plans import Plan, read_plan
from autoshard.problem import evaluate
from autoshard.sharding import DimSharding, TensorSharding, TensorType, total_size
from autoshard.solve import solve

KINDS = ("propagated", "perturbed", "pinned")
BEST_S, SOLVING_S = 120, 10
TRIES = 8
"""Draws until one is new and within the memory limit."""

Choice = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Setting:
    """What plans are for; `memory_share` of a chip's memory is what drawn plans may use by prediction, None what `plan` takes."""

    hardware: str = "tpu-v5e"
    mesh: tuple[tuple[str, int], ...] = (("x", 4), ("y", 4))
    topology: tuple[int, ...] | None = None
    target: str = "tpu:v5e:4x4"
    memory_share: float | None = 0.5


@dataclass(frozen=True, slots=True)
class Judge:
    """A script that compiles a planned module, and the interpreter that has what it needs."""

    script: Path
    python: str = sys.executable
    timeout_s: int = 400
    keeps_hlo: bool = False
    is_full: bool = False  # through code generation, which prices every fusion


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plan in the folder; `base` with a suffix added is each of its files."""

    base: Path
    plan: Plan

    @property
    def name(self) -> str:
        return self.base.name

    def judged(self, target: str, *, is_full: bool = False) -> dict[str, Any] | None:
        """What the judge said, None where it was not asked."""
        found = _judged_file(self.base, target, is_full=is_full)
        return json.loads(found.read_text()) if found.exists() else None


def load_program(program: Path, setting: Setting) -> Loaded:
    """The program for the setting; state is carried as META/NAME.json beside the program says, if it does."""
    return load_module(program, _request(program, setting))


def _request(program: Path, setting: Setting) -> Request:
    meta = program.parent / "meta" / f"{program_name(program)}.json"
    carry = tuple((a, b) for a, b in json.loads(meta.read_text())["carry"]) if meta.exists() else "auto"
    usable = load_hardware(setting.hardware).usable_hbm_bytes
    limit = "chip" if setting.memory_share is None else int(usable * setting.memory_share)
    return Request(setting.mesh, setting.hardware, setting.topology, limit, carry)


def program_name(program: Path) -> str:
    return program.name.split(".")[0]


def kept(folder: Path, program: str) -> list[Drawn]:
    """The plans of a program that a folder has."""
    files = sorted((folder / program).glob("*.plan.json"))
    return [Drawn(file.with_name(file.name.removesuffix(".plan.json")), read_plan(file)) for file in files]


def draw(program: Path, setting: Setting, folder: Path, count: int, seed: int = 0) -> list[Drawn]:
    """What `plan` finds (`best`), data parallelism (`dp`), `count` random plans of the kinds in turn; makes what the folder lacks."""
    into = folder / program_name(program)
    into.mkdir(parents=True, exist_ok=True)
    wanted = ["best", "dp", *(f"{KINDS[i % len(KINDS)]}{i}" for i in range(count))]
    if any(not (into / f"{name}.plan.json").exists() for name in wanted):
        loaded = load_program(program, setting)
        priced = price_for_planning(loaded)
        seen: set[bytes] = set()
        for name in wanted:
            if (into / f"{name}.plan.json").exists():
                continue
            if name == "best":
                found = plan_loaded(loaded, time_limit_s=BEST_S, seed=seed)
                if found.values:
                    _write(into / name, loaded, found)
            else:
                choice = _choice(loaded, priced, name, seed, seen)
                if choice is not None:
                    seen.add(choice.tobytes())
                    _write(into / name, loaded, AsWritten(loaded, priced, choice).plan())
    return [drawn for drawn in kept(folder, program_name(program)) if drawn.name in wanted]


def judge(drawn: Drawn, target: str, by: Judge) -> dict[str, Any]:
    """What the judge says of a plan: asked once, then read from the folder."""
    return judge_written(drawn.base, target, by)


def judge_written(base: Path, target: str, by: Judge) -> dict[str, Any]:
    """The same of any written module, `base` with .mlir added."""
    file = _judged_file(base, target, is_full=by.is_full)
    if file.exists():
        return json.loads(file.read_text())
    said = _ask(base.with_name(f"{base.name}.mlir"), target, by)
    hlo = said.pop("hlo", None)
    if hlo is not None:
        with gzip.open(file.with_name(file.name.removesuffix(".json") + ".hlo.gz"), "wt") as out:
            out.write(hlo)
    file.write_text(json.dumps(said))
    return said


def _ask(module: Path, target: str, by: Judge) -> dict[str, Any]:
    """One run of the judge; `ok` is false, with `error`, where it failed or took too long."""
    environment = {**os.environ, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu"}
    command = [by.python, str(by.script), str(module), "--target", target, "--keep-ops"]
    command += [] if by.is_full else ["--fast"]
    with tempfile.TemporaryDirectory() as scratch:
        hlo = Path(scratch) / "hlo"
        if by.keeps_hlo:
            command += ["--hlo-out", str(hlo)]
        try:
            run = subprocess.run(command, capture_output=True, timeout=by.timeout_s, env=environment)
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": f"no answer within {by.timeout_s} s"}
        lines = run.stdout.decode().splitlines()
        if run.returncode or not lines:
            return {"ok": False, "error": run.stderr.decode()[-800:]}
        said = json.loads(lines[-1])
        return {**said, "hlo": hlo.read_text()} if hlo.exists() else said


def priced_as_written(drawn: Drawn, program: Path, setting: Setting) -> tuple[Drawn, Plan | None]:
    """With what `autoshard cost` of today says of the written module in the place of what the plan said when it was drawn; and the same at
    the prices of the compiler's scheduler, where they are known.
    """
    loaded = load_module(drawn.base.with_name(f"{drawn.name}.mlir"), _request(program, setting))
    written = price_as_written(loaded)
    scheduled = written.at_scheduler_of(setting.hardware)
    return replace(drawn, plan=written.plan()), None if scheduled is None else scheduled.plan()


def _judged_file(base: Path, target: str, *, is_full: bool) -> Path:
    kind = "full" if is_full else "judge"
    return base.with_name(f"{base.name}.{target.replace(':', '_')}.{kind}.json")


def _write(base: Path, loaded: Loaded, plan: Plan) -> None:
    base.with_name(f"{base.name}.mlir").write_text(write_planned(loaded, plan))
    base.with_name(f"{base.name}.plan.json").write_text(plan.to_json())


def _choice(loaded: Loaded, priced: PricedGraph, name: str, seed: int, seen: set[bytes]) -> Choice | None:
    """A choice of the named kind that fits by prediction, and was not seen before."""
    if name == "dp":
        return next(c for title, c, _ in baseline_choices(loaded, priced) if title == "data parallel")
    kind = name.rstrip("0123456789")
    numbers = random.Random(f"{name} {seed}")
    for _ in range(TRIES):
        choice = {"propagated": _propagated, "perturbed": _perturbed, "pinned": _pinned}[kind](
            loaded, priced, numbers
        )
        if choice is None:
            continue
        choice = choice.copy()
        decide_hubs(priced, choice)
        if choice.tobytes() not in seen and evaluate(priced.problem, choice).feasible:
            return choice
    return None


def _propagated(loaded: Loaded, priced: PricedGraph, numbers: random.Random) -> Choice | None:
    share = numbers.choice([0.1, 0.3, 0.6, 1.0])
    demands = {
        argument.value: _random_sharding(loaded, type_, numbers)
        for argument in loaded.listing.arguments
        if (type_ := loaded.listing.values[argument.value].type) is not None and type_.rank
        if numbers.random() < share
    }
    try:
        given = passes.propagation(loaded.handles, loaded.listing).of(demands)
        return follow(priced, {value: replace(sharding, unreduced=()) for value, sharding in given.items()})
    except AutoshardError:
        return None


def _random_sharding(loaded: Loaded, type_: TensorType, numbers: random.Random) -> TensorSharding:
    """Each axis, seven times in ten, on one of the dimensions that it divides."""
    dims: list[list[str]] = [[] for _ in type_.shape]
    for axis in loaded.mesh.axes:
        divided = [
            d
            for d, names in enumerate(dims)
            if type_.shape[d] % (axis.size * total_size([loaded.mesh.axis(n) for n in names])) == 0
        ]
        if divided and numbers.random() < 0.7:
            dims[numbers.choice(divided)].append(axis.name)
    return TensorSharding(tuple(DimSharding(tuple(map(loaded.mesh.axis, names))) for names in dims))


def _perturbed(loaded: Loaded, priced: PricedGraph, numbers: random.Random) -> Choice | None:
    problem, spread = priced.problem, numbers.choice([0.25, 0.5, 1.0, 2.0])
    noise = np.random.default_rng(numbers.getrandbits(32))
    factors = noise.lognormal(0, spread, len(problem.node_cost))
    tables = tuple(
        replace(table, cost=(table.cost * noise.lognormal(0, spread)).astype(np.int64))
        for table in problem.tables
    )
    off = replace(problem, node_cost=(problem.node_cost * factors).astype(np.int64), tables=tables)
    return solve(off, time_limit_s=SOLVING_S, seed=0, threads=1, hints=[]).choice


def _pinned(loaded: Loaded, priced: PricedGraph, numbers: random.Random) -> Choice | None:
    problem = priced.problem
    allowed = problem.node_allowed.copy()
    dear_first = sorted(
        range(problem.node_count), key=lambda n: -int(problem.node_costs(n).max()) * numbers.random()
    )
    for node in dear_first[: numbers.choice([1, 2, 3, 5, 10])]:
        kept_ = numbers.choice(np.flatnonzero(problem.node_mask(node)).tolist())
        allowed[problem.node_start[node] : problem.node_start[node + 1]] = False
        allowed[problem.node_start[node] + kept_] = True
    return solve(
        replace(problem, node_allowed=allowed), time_limit_s=SOLVING_S, seed=0, threads=1, hints=[]
    ).choice


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all studies on drawn plans take."""
    parser.add_argument("programs", type=Path, nargs="+", help="StableHLO modules")
    parser.add_argument("--folder", type=Path, required=True, help="where plans and answers are kept")
    parser.add_argument("--count", type=int, default=9, help="random plans of a program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", type=Path, help="script that compiles a module and prints JSON")
    parser.add_argument("--judge-python", default=sys.executable)
    parser.add_argument("--keep-hlo", action="store_true")
    parser.add_argument("--full", action="store_true", help="compile through code generation (minutes)")
    parser.add_argument("--target", default="tpu:v5e:4x4")
    parser.add_argument("--hardware", default="tpu-v5e")
    parser.add_argument("--mesh", default="x=4,y=4")
    parser.add_argument("--topology", help="chips in each physical dimension, as 2x2x4")
    parser.add_argument("--memory-share", type=float, default=0.5)


def setting_of(arguments: argparse.Namespace) -> Setting:
    mesh = tuple((name, int(size)) for name, size in (axis.split("=") for axis in arguments.mesh.split(",")))
    topology = tuple(map(int, arguments.topology.split("x"))) if arguments.topology else None
    return Setting(arguments.hardware, mesh, topology, arguments.target, arguments.memory_share)


def judged_plans(arguments: argparse.Namespace) -> Iterator[tuple[Path, Drawn, dict[str, Any]]]:
    """Program, plan and the judge's answer, as they come; without `--judge` only what the folder has."""
    setting = setting_of(arguments)
    by = (
        Judge(arguments.judge, arguments.judge_python, keeps_hlo=arguments.keep_hlo, is_full=arguments.full)
        if arguments.judge
        else None
    )
    for program in arguments.programs:
        if by is None:
            known = (
                (drawn, drawn.judged(setting.target, is_full=arguments.full))
                for drawn in kept(arguments.folder, program_name(program))
            )
            yield from ((program, drawn, said) for drawn, said in known if said is not None)
            continue
        for drawn in draw(program, setting, arguments.folder, arguments.count, arguments.seed):
            yield program, drawn, judge(drawn, setting.target, by)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    for program, drawn, said in judged_plans(parser.parse_args(arguments)):
        price = drawn.plan.price
        told = f"{said['est_step_us'] / 1e3:.3f} ms" if said.get("ok") else said.get("error", "")[:80]
        print(
            f"{program_name(program)} {drawn.name}: {price.step_ns / 1e6:.3f} ms, judge: {told}", flush=True
        )


if __name__ == "__main__":
    main()
