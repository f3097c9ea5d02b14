"""A sharding that somebody asks of a value of a module, in Shardy's notation; refused where the value cannot have it."""

from collections.abc import Iterator

from autoshard.errors import AutoshardError
from autoshard.loading import ReadModule, keeps_partial_sums
from autoshard.mlir.listing import Listing
from autoshard.naming import Named
from autoshard.sharding import AxisRef, TensorSharding, TensorType, sharding_of_user

Axes = tuple[tuple[AxisRef, ...], ...]
_FIX = 'write one entry a dimension, as in [{"x"}, {}]'


def asked_sharding(text: str, named: Named, type_: TensorType, read: ReadModule) -> TensorSharding:
    """Raises AutoshardError: not Shardy's notation, or no sharding that the value can have."""
    sharding = sharding_of_user(text, read.mesh)
    if sharding.rank != type_.rank:
        reason, fix = f"has {sharding.rank} dimensions, {type_} has {type_.rank}", _FIX
    elif must_divide(read.as_written, named) and not sharding.divides(type_.shape):
        reason, fix = f"does not divide {type_}: arguments and results divide evenly", _FIX
    elif sharding.unreduced and not keeps_partial_sums(read.form):
        reason = f"is a partial sum, and the form {read.form} cannot say that a value is one"
        fix = "leave unreduced out, or ask of a plan for --form shardy"
    elif named.result is None and (manual := next(_manual(read.as_written, named.value, sharding), "")):
        reason, fix = manual, "ask for axes that are not manual there"
    else:
        return sharding
    raise AutoshardError(f"{sharding} {reason}", where=str(named), fix=fix)


def must_divide(listing: Listing, named: Named) -> bool:
    """Whether the value is an argument or a result of the function."""
    return named.result is not None or any(a.value == named.value for a in listing.arguments)


def _manual(listing: Listing, value: int, sharding: TensorSharding) -> Iterator[str]:
    """How it clashes with the manual axes of the computations that the value is in, or leaves."""
    first, banned = _manual_axes(listing, value, sharding.rank)
    dims = list(zip(first, sharding.axes, strict=True))
    if any(axes[: len(manual)] != manual for manual, axes in dims):
        yield f"does not begin with the manual axes of what it leaves, {TensorSharding.closed(first)}"
    free = [axis for manual, axes in dims for axis in axes[len(manual) :]]
    names = {axis.name for axis in banned}
    used = (axis.name for axis in (*free, *sharding.unreduced))
    yield from (f'uses axis "{name}", which is manual there' for name in used if name in names)


def _manual_axes(listing: Listing, value: int, rank: int) -> tuple[Axes, tuple[AxisRef, ...]]:
    """The user's manual axes that each dimension of what leaves their computation begins with; which a value has nowhere else."""
    flow = next((flow for flow in listing.data_flows if flow.target == value), None)
    if flow is not None and flow.crossing is not None and not flow.crossing.is_entering:
        return flow.crossing.axes, flow.manual_axes
    maker = flow or next((op for op in listing.ops if value in op.results), None)
    return ((),) * rank, maker.manual_axes if maker is not None else ()
