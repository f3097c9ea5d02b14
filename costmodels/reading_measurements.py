"""Tables of measurements -> batches of runs, with errors that name file and line.

Two forms are read. CSV with a header: `kind` (one of `KINDS`, matmul or memory), `bytes`, `group` (devices), `axes` (sizes
as 4x4, or names of a mesh as x,y), or m, k, n, batch and dtype; and time_ns, time_us, time_ms or time_s (`time`: in µs). Output
of nccl-tests: the out-of-place times; its kind is in the text or the file's name, its devices and nodes in the lines of ranks. Rows in
which nccl-tests counted wrong values are left out, with a warning.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .collectives import KINDS
from .compute import bits
from .errors import HardwareError
from .measurements import Batch, CollectiveRuns, Layout, MatmulRuns, MemoryRuns
from .topology import Axis

_TIME_NS = {"time_ns": 1.0, "time_us": 1e3, "time": 1e3, "time_ms": 1e6, "time_s": 1e9}
_GROUP = ("group", "group_size", "devices")
_NAMES = {kind.replace("_", ""): kind for kind in KINDS} | {
    "sendrecv": "collective_permute",
    "matmul": "matmul",
    "memory": "memory",
}
_PERF = re.compile(r"(?<![a-z])([a-z_]+)_perf\b")
_RANK = re.compile(r"^#\s*Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)", re.M)
_MOST = 2**60  # bytes, rows, columns
_LEAST_NS, _MOST_NS = 1.0, 2.0**63
_NAMED = 10
_AXIS = re.compile(r'"?([^"\s:+,]+)"?(?::\((\d+)\)(\d+))?')


@dataclass(frozen=True, slots=True)
class Given:
    """What a table need not say: the mesh and physical shape that it was measured on, and, of nccl-tests, kind and devices."""

    mesh: tuple[tuple[str, int], ...] | None = None
    topology: tuple[int, ...] | None = None
    kind: str | None = None
    devices: int | None = None
    devices_per_chip: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of a table, and what of it was left out."""

    batches: tuple[Batch, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """One row: what it belongs with, its sizes, and its time."""

    key: tuple[object, ...]
    sizes: tuple[int, ...]
    ns: float


def read_measurements(path: Path, given: Given) -> Measured:
    """All runs of a table that can be relied on.

    Raises:
        HardwareError: the file cannot be read, or a row that is no measurement.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise HardwareError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise HardwareError("is not UTF-8 text", where=str(path)) from error
    is_nccl = re.search(r"^#\s*size\s+count\s+type", text, re.M) is not None
    runs, wrong = _nccl_runs(text, path, given) if is_nccl else (_csv_runs(text, path, given), [])
    if wrong and not runs:
        raise HardwareError(
            f"NCCL counted wrong values in all {len(wrong)} rows",
            where=str(path),
            fix="Measure again where its results are right.",
        )
    if not runs:
        raise HardwareError("has no measurements", where=str(path), fix="Add a row for each run.")
    return Measured(tuple(_batches(runs)), (_left_out(path, wrong),) if wrong else ())


def _left_out(path: Path, lines: Sequence[int]) -> str:
    rows = "1 row" if len(lines) == 1 else f"{len(lines)} rows"
    named = ", ".join(map(str, lines[:_NAMED])) + (", …" if len(lines) > _NAMED else "")
    return (
        f"{path}: {rows} in which NCCL counted wrong values left out (line{'s' * (len(lines) > 1)} {named})"
    )


def kind_named(name: str, where: str) -> str:
    """A kind however it is spelled: all-reduce, AllReduce, all_reduce, allreduce.

    Raises:
        HardwareError: no kind that has a price.
    """
    found = _NAMES.get(re.sub(r"[-_ ]", "", name.strip().lower()))
    if found is None:
        known = ", ".join([*KINDS, "matmul", "memory"])
        raise HardwareError(f'"{name}" is no kind of measurement', where=where, fix=f"There are {known}.")
    return found


def _batches(runs: Sequence[_Run]) -> list[Batch]:
    groups: dict[tuple[object, ...], list[_Run]] = {}
    for run in runs:
        groups.setdefault(run.key, []).append(run)
    return [_batch(key, mine) for key, mine in groups.items()]


def _batch(key: tuple[object, ...], runs: Sequence[_Run]) -> Batch:
    columns, ns = list(zip(*(run.sizes for run in runs), strict=True)), tuple(run.ns for run in runs)
    match key:
        case ("matmul", str(dtype)):
            return MatmulRuns(dtype, columns[0], columns[1], columns[2], columns[3], ns)
        case ("memory",):
            return MemoryRuns(columns[0], ns)
        case (str(kind), Layout() as layout):
            return CollectiveRuns(kind, layout, columns[0], ns)
        case _:
            raise AssertionError(key)


def _csv_runs(text: str, path: Path, given: Given) -> list[_Run]:
    lines = [
        (i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"
    ]
    if not lines:
        return []
    rows = list(csv.reader(io.StringIO("\n".join(line for _, line in lines)), skipinitialspace=True))
    header = [name.strip().lower() for name in rows[0]]
    where = f"{path}:{lines[0][0]}"
    _require_each_once(header, where)
    times = [name for name in header if name in _TIME_NS]
    if len(times) != 1:
        named = ", ".join(_TIME_NS)
        raise HardwareError(
            f"the header {','.join(header)} has not one time column", where=where, fix=f"Name it {named}."
        )
    runs: list[_Run] = []
    for (number, _), cells in zip(lines[1:], rows[1:], strict=True):
        at = f"{path}:{number}"
        if len(cells) != len(header):
            raise HardwareError(
                f"{len(cells)} cells under {len(header)} headings", where=at, fix="Quote cells with commas."
            )
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        ns = _time_ns(row[times[0]], times[0], at)
        runs.append(_csv_run(row, ns, given, at))
    return runs


def _require_each_once(header: Sequence[str], where: str) -> None:
    for name in header:
        same = [each for each in header if each and (each == name or {each, name} <= {*_GROUP})]
        if len(same) > 1:
            raise HardwareError(
                f"the header has two columns of one meaning: {', '.join(same)}", where=where, fix="Leave one."
            )


def _csv_run(row: Mapping[str, str], ns: float, given: Given, at: str) -> _Run:
    is_product = "kind" not in row and "m" in row
    kind = "matmul" if is_product else kind_named(_cell(row, "kind", at), at)
    if kind == "matmul":
        dtype = _cell(row, "dtype", at)
        _require_type(dtype, at)
        sizes = [_whole(_cell(row, name, at), name, at, 1) for name in ("m", "k", "n")]
        batch = _whole(row["batch"], "batch", at, 1) if row.get("batch") else 1
        return _Run((kind, dtype), (*sizes, batch), ns)
    size = _whole(_cell(row, "bytes", at), "bytes", at, 0)
    if kind == "memory":
        return _Run((kind,), (size,), ns)
    group = next((row[name] for name in _GROUP if row.get(name)), "")
    devices = _whole(group, "group", at, 1) if group else None
    return _Run((kind, _layout(row.get("axes", ""), devices, given, at)), (size,), ns)


def _layout(axes: str, devices: int | None, given: Given, at: str) -> Layout:
    """The group as the row says it; a mesh that it does not name is made of its sizes."""
    if given.mesh is not None:
        mesh = given.mesh
        group = tuple(_axis(text, at) for text in re.split(r"[,+\s]+", axes) if text) or tuple(
            n for n, _ in mesh
        )
        size = math.prod(_size(axis, mesh, at) for axis in group)
    elif axes or devices is not None:
        if axes and not re.fullmatch(r"\d+(x\d+)*", axes):
            raise HardwareError(
                f'axes "{axes}" are names', where=at, fix="Give the mesh, or sizes as in 4x4."
            )
        sizes = [_whole(text, "axes", at, 1) for text in axes.split("x")] if axes else [devices or 1]
        cores = (("core", given.devices_per_chip),) if given.devices_per_chip > 1 else ()
        mesh = (*((str(index), size) for index, size in enumerate(sizes)), *cores)
        group, size = tuple(str(index) for index in range(len(sizes))), math.prod(sizes)
    else:
        raise HardwareError("neither group nor axes", where=at, fix="Say how many devices take part.")
    if devices is not None and devices != size:
        raise HardwareError(
            f"a group of {devices}, but axes of {size} devices", where=at, fix="Leave one of them out."
        )
    if size < 2:
        raise HardwareError("a group of one device moves nothing", where=at, fix="Leave the row out.")
    is_apart = given.mesh is None and given.topology is None
    return Layout(mesh, given.topology, group, size, is_apart)


def _axis(text: str, at: str) -> Axis:
    match = _AXIS.fullmatch(text)
    if match is None:
        raise HardwareError(
            f'"{text}" is no axis', where=at, fix="Write names as in x,y, sub-axes as x:(1)2."
        )
    if not match[2]:
        return match[1]
    return match[1], _whole(match[2], "a sub-axis", at, 1), _whole(match[3], "a sub-axis", at, 1)


def _size(axis: Axis, mesh: tuple[tuple[str, int], ...], at: str) -> int:
    name = axis if isinstance(axis, str) else axis[0]
    if name not in dict(mesh):
        known = ", ".join(name for name, _ in mesh)
        raise HardwareError(f'"{name}" is not an axis of the mesh', where=at, fix=f"It has {known}.")
    return dict(mesh)[name] if isinstance(axis, str) else axis[2]


def _cell(row: Mapping[str, str], name: str, at: str) -> str:
    if not row.get(name):
        raise HardwareError(f"{name} is missing", where=at, fix=f"Add a column {name}.")
    return row[name]


def _whole(text: str, name: str, at: str, least: int) -> int:
    is_number, digits = re.fullmatch(r"\d+", text) is not None, text.lstrip("0") or text[-1:]
    if is_number and (len(digits) > len(str(_MOST)) or int(digits) > _MOST):
        shown = text if len(text) <= 60 else f"{text[:60]}…"
        raise HardwareError(
            f'{name} is "{shown}", which is too large', where=at, fix=f"The largest is {_MOST}."
        )
    if not is_number or int(digits) < least:
        raise HardwareError(f'{name} is "{text}"', where=at, fix=f"Write a whole number from {least}.")
    return int(digits)


def _require_type(dtype: str, at: str) -> None:
    try:
        bits(dtype)
    except HardwareError as error:
        raise HardwareError(error.reason, where=at, fix=error.fix) from None


def _time_ns(text: str, heading: str, at: str) -> float:
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not (math.isfinite(time) and time > 0):
        raise HardwareError(
            f'a time of "{text}"', where=at, fix="A run takes a positive, finite time; leave it out."
        )
    ns = time * _TIME_NS[heading]
    if not _LEAST_NS <= ns <= _MOST_NS:
        raise HardwareError(
            f'a time of "{text}" under {heading} is {ns:.3g} ns, which no run takes',
            where=at,
            fix=f"Check the unit of {heading}: runs take from {_LEAST_NS:g} ns to {_MOST_NS:.2g} ns.",
        )
    return ns


def _nccl_runs(text: str, path: Path, given: Given) -> tuple[list[_Run], list[int]]:
    """Runs with right results, and the lines of those with wrong ones."""
    kind = _nccl_kind(text, path, given)
    layout = _nccl_layout(text, path, given)
    column, checked, runs, wrong = None, None, list[_Run](), list[int]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace("#", " ", 1).split() if line.lstrip().startswith("#") else line.split()
        if words[:3] == ["size", "count", "type"]:
            column = words.index("time")
            checked = words.index("#wrong") if "#wrong" in words else None
        elif column is not None and words and words[0].isdecimal() and not line.lstrip().startswith("#"):
            at = f"{path}:{number}"
            if len(words) <= column:
                raise HardwareError("a row that ends before its time", where=at, fix="Give whole rows.")
            size = _whole(words[0], "size", at, 0)
            if checked is not None and len(words) > checked and _counts_wrong(words[checked]):
                wrong.append(number)
            elif size:  # NCCL returns at once where there is nothing to send
                runs.append(_Run((kind, layout), (size,), _time_ns(words[column], "time", at)))
    return runs, wrong


def _counts_wrong(cell: str) -> bool:
    """Of a cell under #wrong: a number, or "N/A" where nothing was checked."""
    try:
        return float(cell) != 0
    except ValueError:
        return False


def _nccl_kind(text: str, path: Path, given: Given) -> str:
    if given.kind is not None:
        return kind_named(given.kind, "--kind")
    found = _PERF.search(text) or _PERF.search(path.name)
    if found is None:
        raise HardwareError(
            "does not say which collective was measured", where=str(path), fix="Name it: --kind all_reduce."
        )
    return kind_named(found[1], str(path))


def _nccl_layout(text: str, path: Path, given: Given) -> Layout:
    """Ranks of the first group, on as many nodes as hosts are named."""
    ranks = [host for group, host in _RANK.findall(text) if group in ("", "0")]
    if given.mesh is not None:
        return _layout("", given.devices, given, str(path))
    devices = given.devices or len(ranks)
    if not devices:
        raise HardwareError(
            "does not say how many devices took part", where=str(path), fix="Say it: --group 8."
        )
    nodes = len(set(ranks)) if len(ranks) == devices else 1
    plain = _layout("", devices, given, str(path))
    if nodes > 1 and given.topology is None and devices % nodes == 0:
        return Layout(plain.mesh, (nodes, devices // nodes), plain.group, devices)
    return plain
