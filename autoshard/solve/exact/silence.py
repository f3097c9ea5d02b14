"""What native code prints, thrown away at the file descriptors: it knows nothing of sys.stdout."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

_STANDARD = (1, 2)  # output and error


@contextmanager
def silenced() -> Generator[None]:
    """Both standard streams of the whole process lead nowhere meanwhile, also for its other threads."""
    kept = [os.dup(number) for number in _STANDARD]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in _STANDARD:
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in zip(_STANDARD, kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)
