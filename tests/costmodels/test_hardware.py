"""Finding and reading profiles: what a user can get wrong is answered with file, line, key and remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

import costmodels
from costmodels import HardwareError, load, names

V5E = (Path(costmodels.__file__).parent / "hardware" / "tpu-v5e.toml").read_text()


def complaint(tmp_path: Path, text: str) -> str:
    """What `load` says of a profile with this text."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(HardwareError) as caught:
        load(path)
    return str(caught.value)


@pytest.mark.parametrize("name", names())
def test_a_name_with_or_without_suffix_is_the_same_profile(name: str) -> None:
    """`tpu-v5e` and `tpu-v5e.toml` are the shipped file."""
    assert load(name) == load(f"{name}.toml")
    assert load(name).name == name


def test_a_profile_of_the_users_own(tmp_path: Path) -> None:
    """A path, as text or as Path, is read, and the file's stem is the name."""
    path = tmp_path / "mine.toml"
    path.write_text(V5E.replace("hbm_gib = 16", "hbm_gb = 24"))
    assert load(path) == load(str(path))
    assert (load(path).name, load(path).hbm_bytes) == ("mine", 24 * 10**9)


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The error is a ValueError that names the nearest profile and all the others."""
    with pytest.raises(ValueError, match="did you mean tpu-v5") as caught:
        load("tpu-v5")
    assert all(name in str(caught.value) for name in names())


@pytest.mark.parametrize("name", ["", " "])
def test_no_name_lists_the_known_ones(name: str) -> None:
    """It was taken for the folder."""
    with pytest.raises(HardwareError, match="name or file is missing") as caught:
        load(name)
    assert all(name in str(caught.value) for name in names())


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("hbm_gib = 16", "hbm_mb = 16000", 5, "hbm_mb is not a known key\n  Did you mean hbm_gb?"),
        ("hbm_gib = 16", "", 3, "give exactly one of hbm_gb (decimal) and hbm_gib (binary)"),
        ("hbm_gib = 16", "hbm_gb = 16\nhbm_gib = 16", 3, "give exactly one of hbm_gb"),
        ("hbm_gib = 16", "hbm_gb = -16", 5, "hbm_gb: Expected `float` >= 0.001"),
        ("hbm_gib = 16", "hbm_gb = 0", 5, "hbm_gb: Expected `float` >= 0.001"),
        ("hbm_gib = 16", "hbm_gb = 1e-300", 5, "hbm_gb: Expected `float` >= 0.001"),
        ("hbm_gib = 16", "hbm_gb = 16_000_000_000", 5, "hbm_gb: Expected `float` <= 10000"),
        ("hbm_gib = 16", 'hbm_gb = "16"', 5, "hbm_gb: Expected `float | null`, got `str`"),
        ("hbm_gib = 16", "hbm_gb = true", 5, "hbm_gb: Expected `float | null`, got `bool`"),
        ("hbm_gib = 16", "hbm_gb = nan", 5, "hbm_gb is nan"),
        ("hbm_gib = 16", "hbm_gb = inf", 5, "hbm_gb is inf"),
        ("bf16_tflop_per_s = 197\n", "", 3, "bf16_tflop_per_s is missing from [chip]"),
        ("[topology]", "[topologie]", 1, "topologie is not a known key\n  Did you mean topology?"),
        ('kind = "torus"', 'kind = "ring"', 0, "kind: Invalid value 'ring'"),
        ("max_chips = 256", "max_chip = 256", 0, "max_chip is not a known key\n  Did you mean max_chips?"),
        ("[chip]", "[chip", 0, "is not TOML"),
    ],
)
def test_a_faulty_figure_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, expected: str
) -> None:
    """Missing, unknown, negative, zero, non-numeric, infinite, or in a unit a thousand times too small."""
    text = V5E.replace(old, new)
    said = complaint(tmp_path, text)
    assert expected in said
    assert "mine.toml" in said
    if line > 1:
        assert f"mine.toml:{line}: " in said
    elif new and "TOML" not in expected:
        number = text.splitlines().index(new) + 1
        assert f"mine.toml:{number}: " in said


@pytest.mark.parametrize(
    ("old", "new", "fix"),
    [
        (
            "wraparound_whole_slice = false",
            "wraparound_whole_slice = 1",
            "wraparound_whole_slice as true or false.",
        ),
        ("hbm_gib = 16", "hbm_gb = true", "hbm_gb as a positive number in the unit of its name."),
    ],
)
def test_the_fix_says_what_a_figure_is(tmp_path: Path, old: str, new: str, fix: str) -> None:
    assert f"Write {fix}" in complaint(tmp_path, V5E.replace(old, new))


def test_a_file_that_is_missing_or_not_text(tmp_path: Path) -> None:
    """Neither is a traceback of another kind."""
    with pytest.raises(HardwareError, match="cannot be read"):
        load(tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HardwareError, match="not UTF-8"):
        load(binary)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    """The file without [link] cannot price anything."""
    assert "link is missing from the file" in complaint(tmp_path, V5E.split("# One direction")[0])


def test_prices_of_a_scheduler(tmp_path: Path) -> None:
    """`:scheduler` once behind a name or a path, of a profile that has the figures; it is no key of a file."""
    path = tmp_path / "mine.toml"
    path.write_text(V5E)
    assert load("tpu-v5e:scheduler").name == "tpu-v5e:scheduler"
    assert load(f"{path}:scheduler").is_scheduled
    assert not load(path).is_scheduled
    for name, reason in {
        ":scheduler": "is no profile with :scheduler behind it",
        "tpu-v5e:scheduler:scheduler": "is no profile with :scheduler behind it",
        "h100:scheduler": 'is not known of "h100"\n  Known of tpu-v4',
        "tpu-v9:scheduler": 'no hardware is called "tpu-v9"',
    }.items():
        with pytest.raises(HardwareError) as caught:
            load(name)
        assert reason in str(caught.value)
    assert "mine.toml:1: priced_by is not a known key" in complaint(
        tmp_path, f"priced_by = 'scheduler'\n{V5E}"
    )


def test_the_package_stands_alone() -> None:
    """Importing it brings in neither autoshard nor a compiler."""
    code = (
        "import sys, costmodels; print(sorted({'autoshard', 'jax', 'jaxlib', 'pandas'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
