"""What the repository's documents and Makefile claim about it."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import costmodels

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "autoshard" / "examples" / "transformer_train.mlir"
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("costmodels/*.md"),
        *ROOT.glob("experiments/*/*.md"),
    ]
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link in a document names a file of the repository."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_readme_opens_with_what_the_command_prints() -> None:
    """The first block of output in README.md, of `autoshard plan`; but for how the columns are filled up."""
    shown = (ROOT / "README.md").read_text().split("```")[1].split("\n")[1:-1]
    command = [sys.executable, "-m", "autoshard", "plan"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split() for line in shown] == [line.split() for line in printed.split("\n")[: len(shown)]]


def test_examples_of_the_cost_models_run() -> None:
    """The code in costmodels/README.md, from the first block to the last; its first block has all that the rest needs."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "costmodels" / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["line"].bound == "memory"  # type: ignore[attr-defined]
    assert set(costmodels.__all__) <= set(dir(costmodels))


@pytest.mark.parametrize("folder", sorted(ROOT.glob("experiments/*/")), ids=lambda path: path.name)
def test_experiments_say_what_and_how(folder: Path) -> None:
    """An experiment has a README with its question and command, which names every script beside it, or a page beside it does."""
    scripts, readme = [path.name for path in folder.glob("*.py")], (folder / "README.md").read_text()
    pages = [path for path in folder.glob("*.md") if path.name != "README.md"]
    assert scripts
    assert [page.name for page in pages if f"({page.name})" not in readme] == []
    said = readme + "".join(page.read_text() for page in pages)
    assert [name for name in scripts if name not in said] == []


def test_make_help_lists_every_target() -> None:
    """`make help` is the front door."""
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony is not None
    assert set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.M)) == set(phony[1].split())


def test_embedded_example_is_what_its_script_lowers(tmp_path: Path) -> None:
    """The example in the package can be made again; other versions of jax may print another text."""
    jax = pytest.importorskip("jax")
    if jax.__version__ != "0.10.2":
        pytest.skip("the example was lowered by jax 0.10.2")
    output = tmp_path / "example.mlir"
    script = ROOT / "experiments" / "embedded_example" / "run.py"
    subprocess.run([sys.executable, str(script), str(output)], check=True, capture_output=True)
    assert output.read_text() == EXAMPLE.read_text()


def test_embedded_example_is_small_and_unsharded() -> None:
    """It ships with the package, and the command line supplies the mesh."""
    text = EXAMPLE.read_text()
    assert len(text) < 400_000
    assert "sdy." not in text
    assert "tf.aliasing_output" in text
    assert not re.search(r'loc\("[^"]*\.py', text)


@pytest.mark.parametrize(
    "script",
    sorted(ROOT.glob("experiments/*/*.py")),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_experiments_import_what_there_is(script: Path) -> None:
    """Of autoshard and costmodels, whatever else a script needs."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
            "autoshard",
            "costmodels",
        ):
            module = importlib.import_module(str(node.module))
            missing = [one.name for one in node.names if not hasattr(module, one.name)]
            assert [
                name for name in missing if importlib.util.find_spec(f"{node.module}.{name}") is None
            ] == []
