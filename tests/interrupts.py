"""Ctrl-C at a place in the solver."""

import importlib
from typing import Any

import pytest

_HOMES = {"Portfolio": "autoshard.solve.portfolio", "Record": "autoshard.solve.record"}


def interrupting(calls: int, monkeypatch: pytest.MonkeyPatch, where: str = "Portfolio.run") -> list[object]:
    """Interrupt the so manieth search at its first call of that; the list has what each search has called by then."""
    name, method = where.split(".")
    owner: Any = getattr(importlib.import_module(_HOMES[name]), name)
    before = getattr(owner, method)
    searches: list[object] = []

    def interrupted(self: Any, *arguments: Any) -> Any:
        if not any(one is self for one in searches):
            searches.append(self)
        if len(searches) == calls:
            raise KeyboardInterrupt
        return before(self, *arguments)

    monkeypatch.setattr(owner, method, interrupted)
    return searches
