"""Shardings as people write them on a command line: the same notation as Shardy's, of which nothing is skipped."""

import re

from autoshard.errors import AutoshardError
from autoshard.sharding.mesh import Mesh, merge_sub_axes
from autoshard.sharding.tensor import TensorSharding, parse_sharding

_AXIS = r'"[^"{}\\]+"(:\([1-9]\d*\)([2-9]|[1-9]\d+))?'
_AXES = rf"({_AXIS}(\s*,\s*{_AXIS})*)?"
_DIM = rf"{{\s*{_AXES}(\s*,)?\s*\??\s*}}(p\d+)?"
_SHARDING = re.compile(
    rf"\s*\[\s*({_DIM}(\s*,\s*{_DIM})*)?\s*\](\s*,\s*(replicated|unreduced)\s*=\s*{{\s*{_AXES}\s*}})*\s*"
)


def sharding_of_user(text: str, mesh: Mesh) -> TensorSharding:
    """Parse what a person wrote.

    Raises:
        AutoshardError: not Shardy's notation, an axis that `mesh` lacks or that is named twice, or sub-axes that go on each other.
    """
    if _SHARDING.fullmatch(text) is None:
        raise AutoshardError(
            f"cannot read the sharding {text}",
            fix='write one {...} for each dimension with its axes in quotes, major to minor, as in [{"x", "y"}, {}]',
        )
    found = parse_sharding(text, mesh)
    named = [*found.used_axes(), *found.replicated, *found.unreduced]
    for index, axis in enumerate(named):
        if any(axis.overlaps(other) for other in named[:index]):
            raise AutoshardError(f"{text} uses {axis} twice", fix="name an axis once")
    merged = TensorSharding.closed([merge_sub_axes(dim.axes, mesh) for dim in found.dims])
    if merged.axes != found.axes:
        raise AutoshardError(f"{text} has sub-axes that go on each other", fix=f"write {merged}")
    return found
