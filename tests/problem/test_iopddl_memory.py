"""A large file is read in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from autoshard.problem import Problem, read_iopddl, write_iopddl

SIZE = 100  # strategies of every node
WINDOWS_BYTES = 30_000_000  # what reading takes however small the file is: a window and the arrays made of it


def write(path: Path, edges: int, distinct: int) -> int:
    """A file of so many 12-digit matrices, the edges before the nodes; returns the numbers in distinct ones."""
    rng = np.random.default_rng(0)
    common = ",".join(map(str, rng.integers(10**11, 10**12, SIZE * SIZE - 1).tolist()))
    row = "[" + ",".join("7" * SIZE) + "]"
    with path.open("w") as file:
        file.write('{"problem":{"edges":{"costs":[')
        file.writelines(f"{',' * bool(edge)}[{edge % distinct},{common}]" for edge in range(edges))
        file.write('],"nodes":[' + ",".join(f"[{edge},{edge + 1}]" for edge in range(edges)) + "]}")
        rows = ",".join([row] * (edges + 1))
        intervals = ",".join(["[0,9]"] * (edges + 1))
        file.write(f',"nodes":{{"intervals":[{intervals}],"costs":[{rows}],"usages":[{rows}]}}}}}}')
    return distinct * SIZE * SIZE + 2 * SIZE * (edges + 1)


def peak_of_reading(path: Path) -> tuple[Problem, int]:
    tracemalloc.start()
    try:
        problem = read_iopddl(path)
        return problem, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_follows_the_numbers_that_are_kept(tmp_path: Path) -> None:
    """50 MB of text: at most some three times the bytes of the numbers; a matrix that repeats is held once."""
    for distinct in (380, 5):
        numbers = write(tmp_path / "p.json", 380, distinct)
        assert (tmp_path / "p.json").stat().st_size > 48_000_000
        problem, peak = peak_of_reading(tmp_path / "p.json")
        assert len(problem.tables) == distinct
        assert peak < 3 * 8 * numbers + WINDOWS_BYTES


def test_one_matrix_larger_than_any_window(tmp_path: Path) -> None:
    """A matrix of two million entries comes in pieces."""
    size = 1_500
    entries = ",".join(["123456789012"] * (size * size))
    row = "[" + ",".join("7" * size) + "]"
    (tmp_path / "p.json").write_text(
        f'{{"problem":{{"nodes":{{"intervals":[[0,1],[0,1]],"costs":[{row},{row}],"usages":[{row},{row}]}},'
        f'"edges":{{"nodes":[[0,1],[0,1]],"costs":[[{entries}],[{entries}]]}}}}}}'
    )
    problem, peak = peak_of_reading(tmp_path / "p.json")
    (table,) = problem.tables
    assert (table.cost == 123456789012).all()
    assert peak < 4 * table.cost.nbytes + WINDOWS_BYTES


def test_writing_holds_few_rows_at_a_time(tmp_path: Path) -> None:
    """10 MB of text are written in less than 2 MB."""
    write(tmp_path / "p.json", 80, 5)
    problem = read_iopddl(tmp_path / "p.json")
    tracemalloc.start()
    write_iopddl(problem, tmp_path / "q.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "q.json").stat().st_size > 10_000_000
    assert peak < 2_000_000
