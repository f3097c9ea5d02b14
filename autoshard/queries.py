"""What one reshard costs: two shardings of a shape in, Shardy's sequence of collectives with its price out.

The sequence is asked of Shardy's own pass, the price of `costmodels`, as the planner does for every read of a value.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

import costmodels
from autoshard.arguments import checked
from autoshard.cost import (
    CollectivePrices,
    Lowering,
    priced_steps,
    sends_otherwise,
    sized_steps,
    steps_run,
    times_laid_out,
)
from autoshard.errors import AutoshardError
from autoshard.hardware import (
    Layout,
    PricedWork,
    extrapolated,
    hardware_errors,
    layout_of,
    load_hardware,
    place_mesh,
    refuse_auto,
)
from autoshard.loading import lowering_of
from autoshard.mlir import passes
from autoshard.mlir.collective import CollectiveStep
from autoshard.mlir.forms import Form, form_named
from autoshard.plans import EmittedCollective
from autoshard.report.units import bytes_text
from autoshard.sharding import Mesh, TensorSharding, TensorType, sharding_of_user, total_size

if TYPE_CHECKING:
    import pandas as pd

MOST_BYTES = 10**15
"""Of one tensor; whatever is larger is a mistake, and sums of prices stay far within 64 bits."""

MeshLike = Mapping[str, int] | Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """One collective; `bytes` is on one device: of the result of an all_gather or all_slice, of the operand of the others."""

    kind: str
    axes: tuple[str, ...]
    bytes: int
    ns: int
    sharding: str  # of its result
    emitted: tuple[EmittedCollective, ...] = ()  # what the compiler makes of it, which is what is priced
    copies: int = 0  # how often it writes anew what it gathers along several dimensions, which is priced too


@dataclass(frozen=True, slots=True)
class Reshard:
    """A reshard of a tensor, as the collectives that Shardy makes of it, in order."""

    type: str
    before: str
    after: str
    mesh: tuple[tuple[str, int], ...]
    hardware: str
    topology: tuple[int, ...]  # in chips, of one slice; of GPUs (nodes, chips of each), or one node's
    slices: int | None
    placement: str  # what each axis rides on, in the notation of costmodels
    lowering: Lowering  # how the collectives are carried out, which is what is priced
    steps: tuple[ReshardStep, ...]
    warnings: tuple[str, ...] = ()  # what of the price is extrapolated from measurements

    @property
    def ns(self) -> int:
        """The price: that of the steps, one after another."""
        return sum(step.ns for step in self.steps)

    def to_pandas(self) -> "pd.DataFrame":
        """One row a step: kind, axes, bytes, ns, sharding."""
        import pandas as pd

        rows = [(s.kind, ",".join(s.axes), s.bytes, s.ns, s.sharding) for s in self.steps]
        return pd.DataFrame(rows, columns=["kind", "axes", "bytes", "ns", "sharding"])


@dataclass(frozen=True, slots=True)
class Resharder:
    """The sequence between two shardings, which no size changes, ready to be priced for any shape."""

    before: TensorSharding
    after: TensorSharding
    mesh: Mesh
    hardware: str
    prices: CollectivePrices
    sequence: tuple[CollectiveStep, ...]

    def reshard(self, shape: str | TensorType) -> Reshard:
        """The priced steps for one shape, as "8192x8192xbf16".

        Raises:
            AutoshardError: a shape that is none, or that the shardings do not fit.
        """
        type_ = shape if isinstance(shape, TensorType) else parse_type(shape)
        _require_fit(type_, self.before, "the sharding before")
        _require_fit(type_, self.after, "the sharding after")
        priced = priced_steps(self.prices, self.before, self.sequence, type_)
        steps = tuple(
            ReshardStep(
                one.kind,
                tuple(str(axis).replace('"', "") for axis in one.axes),
                one.bytes,
                one.ns,
                str(step.out_sharding),
                tuple(EmittedCollective(e.kind, total_size(e.axes), e.bytes) for e in one.emitted),
                one.copies,
            )
            for step, one in zip(self.sequence, priced, strict=True)
        )
        warnings = extrapolated(
            self.prices.hardware,
            [PricedWork(one.kind, {"bytes": one.bytes, "devices": total_size(one.axes)}) for one in priced],
        )
        mesh = tuple((axis.name, axis.size) for axis in self.mesh.axes)
        ends = str(self.before), str(self.after)
        layout = layout_of(self.prices.communication, self.prices.hardware)
        placement = costmodels.placement_text(self.prices.communication.placement)
        return Reshard(
            str(type_),
            *ends,
            mesh,
            self.hardware,
            layout.topology or (),
            layout.slices,
            placement,
            self.prices.lowering,
            steps,
            warnings,
        )

    def ns(self, shapes: ArrayLike, dtype: str) -> NDArray[np.int64]:
        """[N] ns for shapes [N, rank], all of one element type."""
        sizes = np.asarray(shapes, dtype=np.int64)
        rank = self.before.rank
        if sizes.ndim != 2 or sizes.shape[1] != rank:
            raise AutoshardError(f"shapes of form {sizes.shape}", fix=f"give an array [N, {rank}] of sizes")
        bytes_ = np.prod(sizes.astype(np.float64), axis=1) * element_bits(dtype) / 8
        if (sizes < 1).any() or (bytes_ > MOST_BYTES).any():
            raise AutoshardError(
                f"sizes below 1, or more than {bytes_text(MOST_BYTES)} together",
                where=f"shape {int(np.argmax((sizes < 1).any(axis=1) | (bytes_ > MOST_BYTES)))}",
                fix="give whole numbers from 1",
            )
        total = np.zeros(len(sizes), dtype=np.int64)
        before = self.before
        for step, bytes_ in zip(self.sequence, self._bytes(sizes, dtype), strict=True):
            often = times_laid_out(before, step.out_sharding)
            total += steps_run(self.prices, step.kind, step.axes, bytes_, often, 0).ns
            before = step.out_sharding
        for number in np.flatnonzero(self._sends_otherwise(sizes, dtype)):
            type_ = TensorType(tuple(sizes[number].tolist()), dtype)
            total[number] = sum(
                one.ns for one in priced_steps(self.prices, self.before, self.sequence, type_)
            )
        return total

    def _bytes(self, shapes: NDArray[np.int64], dtype: str) -> list[NDArray[np.int64]]:
        """For every step the bytes [N] on one device that its price goes by where shapes divide."""
        bits = element_bits(dtype)
        found: list[NDArray[np.int64]] = []
        for _, sized_by in sized_steps(self.before, self.sequence):
            found.append((np.prod(-(-shapes // _shards([sized_by])), axis=1) * bits + 7) // 8)
        return found

    def _sends_otherwise(self, shapes: NDArray[np.int64], dtype: str) -> NDArray[np.bool_]:
        """[N] whether a step of the sequence is carried out in another way than by its bytes."""
        shards = _shards([self.before, *(step.out_sharding for step in self.sequence)])
        return np.asarray(
            [
                sends_otherwise(self.prices, TensorType(tuple(shape), dtype), shards).any()
                for shape in shapes.tolist()
            ],
            dtype=np.bool_,
        )


def _shards(shardings: Sequence[TensorSharding]) -> NDArray[np.int64]:
    """[N, rank] into how many parts each dimension is split."""
    rows = [[dim.num_shards for dim in sharding.dims] for sharding in shardings]
    return np.asarray(rows, dtype=np.int64).reshape(len(rows), shardings[0].rank)


@checked()
def resharder(
    before: str,
    after: str,
    *,
    mesh: MeshLike,
    hardware: str | Path = "tpu-v5e",
    topology: tuple[int, ...] | None = None,
    slices: int | None = None,
    placement: str | None = None,
    form: Form = "xla",
) -> Resharder:
    """The collectives from one sharding to another, in Shardy's notation: `[{"x"}, {}]`.

    Args:
        mesh: axis sizes, major to minor.
        topology: physical shape of the devices, of one of `slices`; None: a slice as the chips come.
        placement: what each axis rides on, as "x=1,y=0"; None: row-major.
        form: whose compiler carries the collectives out; prices are of what it makes of them.

    Raises:
        AutoshardError: a mesh, hardware, topology or sharding that is not usable as written.
    """
    refuse_auto(placement)
    axes = list(mesh.items()) if isinstance(mesh, Mapping) else list(mesh)
    device_mesh = Mesh.of(axes)
    profile = load_hardware(hardware)
    communication = place_mesh(profile, axes, Layout(topology, slices, placement))
    old, new = (sharding_of_user(text, device_mesh).as_closed() for text in (before, after))
    _require_sums(old, new)
    if old.rank != new.rank:
        raise AutoshardError(
            f"{before} has {old.rank} dimensions, {after} has {new.rank}",
            fix="write one {...} for each dimension of the tensor in both",
        )
    (sequence,) = passes.decompose_reshards(device_mesh, [(old.rank, old, new)])
    prices = CollectivePrices(communication, profile, lowering_of(form_named(form), profile))
    return Resharder(old, new, device_mesh, profile.name, prices, sequence)


@checked()
def reshard(
    shape: str,
    before: str,
    after: str,
    *,
    mesh: MeshLike,
    hardware: str | Path = "tpu-v5e",
    topology: tuple[int, ...] | None = None,
    slices: int | None = None,
    placement: str | None = None,
    form: Form = "xla",
) -> Reshard:
    """What it costs to bring a tensor from one sharding to another; arguments as in `resharder`.

    >>> autoshard.reshard("8192x8192xbf16", '[{"x"}, {}]', '[{}, {"y"}]', mesh={"x": 4, "y": 4}).ns
    """
    type_ = parse_type(shape)
    found = resharder(
        before,
        after,
        mesh=mesh,
        hardware=hardware,
        topology=topology,
        slices=slices,
        placement=placement,
        form=form,
    )
    return found.reshard(type_)


def parse_type(text: str) -> TensorType:
    """`8192x8192xbf16`, with or without `tensor<...>` around it; `f32` is a scalar.

    Raises:
        AutoshardError: sizes or an element type that there are not.
    """
    inner = text.strip().removeprefix("tensor<")
    inner = inner.removesuffix(">") if text.strip().startswith("tensor<") else inner
    match = re.fullmatch(r"((?:\d+x)*)([A-Za-z!].*)", inner)
    sizes = tuple(map(int, match[1].split("x")[:-1])) if match else ()
    if match is None or 0 in sizes:
        raise AutoshardError(
            f"cannot read the shape {text!r}",
            fix="write sizes from 1 and an element type, as in 8192x8192xbf16",
        )
    if math.prod(sizes) * element_bits(match[2]) > 8 * MOST_BYTES:
        raise AutoshardError(
            f"{text} is more than {bytes_text(MOST_BYTES)}",
            fix="write the shape of one tensor, all devices together",
        )
    return TensorType(sizes, match[2])


def element_bits(dtype: str) -> int:
    """Raises AutoshardError: an element type that is not known."""
    with hardware_errors():
        return costmodels.bits(dtype)


def _require_sums(old: TensorSharding, new: TensorSharding) -> None:
    """Raises AutoshardError: partial sums over axes over which there are none."""
    if not set(new.unreduced) <= set(old.unreduced):
        raise AutoshardError(
            f"a reshard from {old} to {new} would make partial sums",
            fix="a reshard completes sums: leave out of --to the unreduced axes that --from has not",
        )


def _require_fit(type_: TensorType, sharding: TensorSharding, which: str) -> None:
    if type_.rank != sharding.rank:
        raise AutoshardError(
            f"{which}, {sharding}, has {sharding.rank} dimensions, {type_} has {type_.rank}",
            fix="write one {...} for each dimension of the tensor",
        )
