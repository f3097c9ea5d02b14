"""The floors of ARCHITECTURE.md as data: imports point only down, each side of the wall keeps to itself."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = {
    "autoshard.errors": 0,
    "autoshard.progress": 0,
    "autoshard.arguments": 1,
    "autoshard.hardware": 1,
    "autoshard.overlaps": 1,
    "autoshard.sharding": 1,
    "autoshard.problem": 2,
    "autoshard.mlir": 2,
    "autoshard.program": 3,
    "autoshard.solve": 4,
    "autoshard.space": 4,
    "autoshard.cost": 5,
    "autoshard.plans": 6,
    "autoshard.explanations": 6,
    "autoshard.comparisons": 6,
    "autoshard.breakdown": 6,
    "autoshard.held": 6,
    "autoshard.naming": 6,
    "autoshard.requests": 6,
    "autoshard.priorities": 7,
    "autoshard.mlir.write": 7,
    "autoshard.check": 7,
    "autoshard.report": 7,
    "autoshard.report.units": 1,
    "autoshard.xla": 7,
    "autoshard.loading": 7,
    "autoshard.baselines": 8,
    "autoshard.queries": 8,
    "autoshard.asking": 8,
    "autoshard.pricing": 8,
    "autoshard.recording": 8,
    "autoshard.scheduling": 9,
    "autoshard.annotated": 9,
    "autoshard.pipeline": 10,
    "autoshard.examining": 10,
    "autoshard.confirming": 11,
    "autoshard.searching": 11,
    "autoshard.clashes": 11,
    "autoshard.alternatives": 12,
    "autoshard.ranging": 12,
    "autoshard.api": 13,
    "autoshard.cli": 13,
    "autoshard": 14,  # the package itself hands out what the floors below make
}
"""Room -> floor. The longest name that a module begins with is its room."""

_COMPILER_SIDE = (
    "autoshard.mlir",
    "autoshard.sharding",
    "autoshard.program",
    "autoshard.space",
    "autoshard.cost",
)
WALL = {
    "autoshard.problem": _COMPILER_SIDE,
    "autoshard.solve": _COMPILER_SIDE,
    "autoshard.cost": ("autoshard.solve",),
}
"""The solver side sees no MLIR, no mesh and no sharding; the compiler side sees no solver."""

BINDINGS = ("autoshard.mlir", "autoshard.xla")
PRICES = (
    *(
        "autoshard.hardware",
        "autoshard.cost",
        "autoshard.check",
        "autoshard.loading",
        "autoshard.requests",
        "autoshard.queries",
    ),
    "autoshard.breakdown",
    "autoshard.recording",
    "autoshard.ranging",
    "autoshard.examining",
    "autoshard.searching",
    "autoshard.cli",
)
INDEPENDENT_OF = {"autoshard.check": ("autoshard.space", "autoshard.cost", "autoshard.solve")}
SLOW_TO_IMPORT = ("jax", "jaxlib", "ortools", "numba", "pandas")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """`autoshard.mlir.write.text` is in the room `autoshard.mlir.write`; the package itself is a room of
    one file."""
    rooms = [room for room in FLOORS if room != "autoshard" and f"{module}.".startswith(f"{room}.")]
    if rooms:
        return max(rooms, key=len)
    return "autoshard" if module in ("autoshard", "autoshard.__main__") else None


def imports_of(path: Path) -> Iterator[str]:
    """Full names of all that the file imports, wherever in it; `from a.b import c` counts as `a.b.c`."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


AUTOSHARD = sources("autoshard")


def lies_in(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


@pytest.mark.parametrize("path", AUTOSHARD, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    """Every file is on a floor and imports, of autoshard, only its own room and lower floors."""
    room = room_of(module_name(path))
    assert room is not None, f"{path.relative_to(ROOT)} is on no floor: give its room a line in FLOORS"
    for name in imports_of(path):
        if lies_in(name, "autoshard") and name != "autoshard":
            target = room_of(name) or "autoshard"  # a name that the package hands out
            assert target == room or FLOORS[target] < FLOORS[room], f"{room} imports {name} from above"


@pytest.mark.parametrize("path", AUTOSHARD, ids=module_name)
def test_walls(path: Path) -> None:
    """The solver knows plain numbers only, and the checker shares no code with what it checks."""
    room = room_of(module_name(path)) or ""
    for name in imports_of(path):
        for forbidden in (*WALL.get(room, ()), *INDEPENDENT_OF.get(room, ())):
            assert not lies_in(name, forbidden), f"{room} must not know {forbidden}"


@pytest.mark.parametrize("path", AUTOSHARD, ids=module_name)
def test_doors(path: Path) -> None:
    """Bindings and prices are each imported in few rooms."""
    room = room_of(module_name(path)) or ""
    for name in imports_of(path):
        if lies_in(name, "jaxlib"):
            assert lies_in(room, "autoshard.mlir") or room in BINDINGS, f"only {BINDINGS} import jaxlib"
        if lies_in(name, "jax"):
            assert room == "autoshard.jax", "only autoshard.jax imports jax"
        if lies_in(name, "costmodels"):
            assert room in PRICES, f"only {PRICES} import costmodels"


@pytest.mark.parametrize("path", sources("costmodels"), ids=module_name)
def test_costmodels_stand_alone(path: Path) -> None:
    """Prices are usable without autoshard."""
    assert not any(lies_in(name, "autoshard") for name in imports_of(path))


def loaded_by(*arguments: str) -> set[str]:
    """Top-level packages that `python -X importtime ARGUMENTS` loads."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize("arguments", [("-c", "import autoshard"), ("-m", "autoshard.cli", "--help")])
def test_light_imports(arguments: tuple[str, ...]) -> None:
    """Neither importing the package nor asking for help waits for compilers and solvers to load."""
    assert not loaded_by(*arguments) & set(SLOW_TO_IMPORT)
