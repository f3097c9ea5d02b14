"""What every test may ask for: the folder of real programs beside a development checkout."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """`../shared` beside the repository: real programs, contest instances, the judge; a plain clone has none."""
    if not SHARED.is_dir():
        pytest.skip("no folder `shared` beside the repository")
    return SHARED
