"""`solve`: contest JSON in, the contest's list of strategies out."""

import json
import signal
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoshard.cli.options import parse_memory, seed_option, threads_option, time_limit_option
from autoshard.cli.progress import progress_bar

if TYPE_CHECKING:
    from autoshard.problem import Problem
    from autoshard.solve import Solution, Solver

SOLVERS = ("auto", "toulbar2", "cp-sat", "maxsat", "search", "brute")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@time_limit_option("For solving; reading the file comes on top.")
@seed_option("Seed of the search.")
@threads_option
@click.option(
    "--solver",
    type=click.Choice(SOLVERS),
    default="auto",
    show_default=True,
    help="Which engine solves what presolve leaves; auto takes what suits it.",
)
@click.option(
    "--memory", metavar="SIZE|none", help="Limit at every time point. Default: the file's usage_limit."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with choice and figures.")
def solve(
    file: Path,
    time_limit: float,
    seed: int,
    threads: int,
    solver: "Solver",
    memory: str | None,
    as_json: bool,
) -> None:
    """Solve FILE, JSON of the IOPDDL contest (.json, .json.gz).

    The last line on stdout is the choice, one strategy for each node; cost, bound and the rest are on stderr. Ctrl-C ends the
    search with the best choice so far. Exit status 1 where there is none.
    """
    from autoshard.problem import read_iopddl
    from autoshard.solve import solve as solve_problem

    limit = None if memory is None else _limit(memory)
    with ExitStack() as until_printed:
        with progress_bar() as progress:
            progress("reading the problem", None)
            began = time.monotonic()
            problem = read_iopddl(file)
            if memory is not None:
                problem = replace(problem, memory_limit=limit)
            read = time.monotonic()
            progress("solving", None)
            found = solve_problem(
                problem, time_limit_s=time_limit, seed=seed, threads=threads, solver=solver, progress=progress
            )
            until_printed.enter_context(_interrupts_ignored())
            seconds = {"read": round(read - began, 3), "solve": round(time.monotonic() - read, 3)}
        if as_json:
            click.echo(json.dumps(_data(problem, found, seconds)))
        else:
            click.echo(f"{file}: {size_text(problem)}", err=True)
            click.echo(_report(problem, found, seconds), err=True)
            if found.choice is not None:
                click.echo(str(found.choice.tolist()))
    if found.choice is None:
        sys.exit(1)


@contextmanager
def _interrupts_ignored() -> Generator[None]:
    """Ctrl-C is too late to mean anything: the answer is there and only has to be printed."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def size_text(problem: "Problem") -> str:
    """`5 nodes, 5 edges, 9 strategies, 7 time points, memory limit 50`"""
    import numpy as np

    items = np.concatenate([problem.node_item[:, 1:3], problem.edge_item[:, 1:3]])
    points = len(np.unique(items))
    limit = "no memory limit" if problem.memory_limit is None else f"memory limit {problem.memory_limit}"
    counts = (
        (problem.node_count, "nodes"),
        (problem.edge_count, "edges"),
        (len(problem.node_cost), "strategies"),
    )
    return ", ".join([*(f"{count} {name}" for count, name in counts), f"{points} time points", limit])


def _limit(memory: str) -> int | None:
    """A plain number exactly, zero too; a size with a unit as in `plan`."""
    return int(memory) if memory.strip().isdecimal() else parse_memory(memory)


def _report(problem: "Problem", found: "Solution", seconds: dict[str, float]) -> str:
    """Aligned lines for people."""
    lines: list[tuple[str, object]] = []
    if found.choice is not None and found.gap is not None:
        limit = "no limit" if problem.memory_limit is None else problem.memory_limit
        lines += [("cost", found.cost), ("peak", f"{found.peak} of {limit}")]
        lines += [("lower bound", found.lower_bound), ("gap", f"{found.gap:.4%}")]
    lines.append(("status", f"{found.status.name.lower()}: {found.status.value}"))
    if found.choice is None:
        lines.append(("choice", _no_choice(found)))
    lines.append(("seconds", f"{seconds['read']:.2f} reading, {seconds['solve']:.2f} solving"))
    lines += [(name, value) for name, value in found.statistics.items()]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _no_choice(found: "Solution") -> str:
    from autoshard.solve import Status

    known = "" if found.smallest_peak is None else f"; smallest peak {found.smallest_peak} found"
    said = "proved that there is none" if found.status is Status.INFEASIBLE else "none found"
    return f"{said}{known} (bound on the peak {found.peak_lower_bound})"


def _data(problem: "Problem", found: "Solution", seconds: dict[str, float]) -> dict[str, Any]:
    """The same as plain data: costs and bytes as in the file."""
    return {
        "choice": None if found.choice is None else found.choice.tolist(),
        "cost": found.cost,
        "peak": found.peak,
        "memory_limit": problem.memory_limit,
        "lower_bound": found.lower_bound,
        "gap": found.gap,
        "status": found.status.name.lower(),
        "proved": found.status.value,
        "smallest_peak": found.smallest_peak,
        "peak_lower_bound": found.peak_lower_bound,
        "seconds": seconds,
        "engine": found.statistics.get("engine"),
        "statistics": found.statistics,
    }
