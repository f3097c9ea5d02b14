"""Shardy is asked once for each set of reshards; every question starts a process of its own."""

from collections.abc import Sequence
from functools import lru_cache

import pytest

from autoshard.check import changes
from autoshard.mlir.collective import CollectiveStep
from autoshard.mlir.passes import decompose_reshards
from autoshard.mlir.reshards import Request
from autoshard.sharding import Mesh

_asked = lru_cache(decompose_reshards)


@pytest.fixture(autouse=True)
def _remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def remembered(mesh: Mesh, requests: Sequence[Request]) -> list[tuple[CollectiveStep, ...]]:
        return _asked(mesh, tuple(requests))

    monkeypatch.setattr(changes, "decompose_reshards", remembered)
