"""Plan files that another version wrote, or that were changed by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.plans import read_plan
from tests.regressions.test_odd_modules import SOFTMAX, planned


@pytest.mark.parametrize("changed", [{"version": 99}, {"form": "other"}])
def test_an_unknown_version_or_form_is_refused(changed: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(replace(planned(SOFTMAX), **changed).to_json())  # pyright: ignore[reportArgumentType]
    with pytest.raises(AutoshardError, match="plan the module anew"):
        read_plan(path)
