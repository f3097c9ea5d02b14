"""What the plan's compiler makes of a collective, and of a reshard's step where parts do not divide.

`shardy`     the collective itself
`xla-tpu`    sums everywhere instead of reduce-scatters, but for some that the user wrote (`sums.sent_by_user`); sums of zero-padded arrays
             instead of gathers of short vectors whose parts break rows of 512 bytes, of dimensions shorter than half of their parts, and of
             what lies over all of many devices, of little or on a torus of three dimensions; an exchange in parts of one size; rows moved
             by a permute first, or a gather over all devices instead of an exchange, where the parts of two shardings of a dimension do not
             begin at the same rows; gathers of results that are reduced together
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.check.parts import num_shards, parts_of
from autoshard.mlir.collective import LOCAL, CollectiveStep
from autoshard.program import KernelShape
from autoshard.sharding import AxisRef, TensorSharding, TensorType

HALO = "halo_exchange"


@dataclass(frozen=True, slots=True)
class Compiler:
    """What makes the program, and for how many devices; `is_cubic`: they are on a torus of three dimensions."""

    lowering: str
    devices: int
    is_cubic: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of the compiled program; `bytes` are of the operand on one device."""

    kind: str
    axes: tuple[AxisRef, ...]
    bytes: int

    @property
    def devices(self) -> int:
        return math.prod(axis.size for axis in self.axes)


def sent_for(
    compiler: Compiler, kind: str, axes: tuple[AxisRef, ...], bytes_: int, times: int = 1
) -> tuple[Sent, ...]:
    """Of one collective whose bytes are those of a plan."""
    one = Sent("collective_permute" if kind == HALO else kind, axes, bytes_)
    if kind in LOCAL or one.devices == 1:
        return ()
    if kind == "all_gather":
        one = Sent(kind, axes, bytes_ // one.devices)
    return (_compiled(compiler, one, times),)


def sent_for_sum(
    compiler: Compiler, kind: str, axes: tuple[AxisRef, ...], bytes_: int, shape: KernelShape
) -> tuple[Sent, ...]:
    """Of what adds up one of the results of an op; XLA has no all-reduce of several at once, as halves of complex numbers are, and
    gathers them. It multiplies complex numbers by three real products.
    """
    has_halves = any(type_.is_complex for type_ in shape.results)
    if compiler.lowering != "xla-tpu" or not (has_halves or len(shape.results) > 1):
        return sent_for(compiler, kind, axes, bytes_)
    half = bytes_ // 2 if has_halves else bytes_
    if has_halves and shape.matmul_roles:
        return (_compiled(compiler, Sent("all_reduce", axes, half)),) * 3
    return (_compiled(compiler, Sent("all_gather", axes, half)),) * (2 if has_halves else 1)


def sent_for_step(
    compiler: Compiler, step: CollectiveStep, before: TensorSharding, type_: TensorType, times: int
) -> tuple[Sent, ...]:
    """Of one step of a reshard of what travels as `type_`, and is `times` as wide."""
    after, held = step.out_sharding, before.local_bytes(type_)
    devices = math.prod(axis.size for axis in step.axes)
    # fewer devices than it goes over hold different parts
    parts, left = math.prod(_shards(before)), math.prod(_shards(after))
    is_change_of_mesh = step.kind == "all_gather" and devices * left != parts
    if compiler.lowering != "xla-tpu" or before.is_foreign or after.is_foreign or is_change_of_mesh:
        sized = after if step.kind in ("all_gather", *LOCAL) else before
        return sent_for(compiler, step.kind, step.axes, sized.local_bytes(type_), times)
    misplaced = _misplaced_bytes(before, after, type_)
    permute_axes = tuple(a for dim in after.dims for a in dim.axes) if step.kind == "all_slice" else step.axes
    permutes = tuple(Sent("collective_permute", permute_axes, bytes_) for bytes_ in misplaced)
    if step.kind == "all_slice":
        return permutes
    if step.kind == "all_gather" and (thin := _thin_axes(step.axes, before, after, type_)):
        others = tuple(axis for axis in step.axes if axis not in thin)
        gather = (_compiled(compiler, Sent(step.kind, others, held), times),) if others else ()
        return (*permutes, *gather, Sent("all_reduce", thin, after.local_bytes(type_) * times))
    if step.kind == "all_gather" and is_gathered_by_sum(type_, math.prod(before.local_shape(type_.shape))):
        return (*permutes, Sent("all_reduce", step.axes, held * devices))
    if step.kind == "all_gather":
        one = Sent(step.kind, step.axes, held)
        stays = not compiler.is_cubic and _is_along_lanes(before, after, type_, times)
        return (*permutes, one if stays else _compiled(compiler, one, times))
    if step.kind == "all_to_all" and permutes:
        everywhere = tuple(axis for dim in before.dims for axis in dim.axes)
        return (_compiled(compiler, Sent("all_gather", everywhere, held), times),)
    if step.kind == "all_to_all":
        return (Sent(step.kind, step.axes, _padded_bytes(before, after, type_)),)
    return (_compiled(compiler, Sent(step.kind, step.axes, held), times),)


def times_laid_out(before: TensorSharding, after: TensorSharding) -> int:
    """How often XLA:TPU writes anew what it gathers along several dimensions: once, and once more if the minor one is among them."""
    if before.is_foreign or after.is_foreign:
        return 0
    parts = list(zip(_shards(before), _shards(after), strict=True))
    grown = [new < old for old, new in parts]
    is_gather = sum(grown) > 1 and all(new <= old for old, new in parts)
    return 1 + grown[-1] if is_gather else 0


def _is_along_lanes(before: TensorSharding, after: TensorSharding, type_: TensorType, times: int) -> bool:
    """Whether one dimension of 256 KiB is gathered that lies along the lanes, as the rows behind it are narrower than these."""
    dims = [dim for dim, axes in enumerate(before.axes) if axes != after.axes[dim]]
    if len(dims) != 1:
        return False
    row = math.prod(type_.shape[dims[0] + 1 :])
    column = TensorType((type_.shape[dims[0]] * times,), type_.dtype).num_bytes
    return 1 < row < 128 and column >= 1 << 18


def _thin_axes(
    axes: tuple[AxisRef, ...], before: TensorSharding, after: TensorSharding, type_: TensorType
) -> tuple[AxisRef, ...]:
    """Of a gather: those of dimensions of which every second device, or more, brings nothing but padding."""
    parts = zip(type_.shape, _shards(before), _shards(after), strict=True)
    thin = [old > new and math.ceil(size / new) <= old // new // 2 for size, old, new in parts]
    gone = [axis for is_thin, dim in zip(thin, before.axes, strict=True) if is_thin for axis in dim]
    return tuple(axis for axis in axes if any(axis.overlaps(one) for one in gone))


def is_gathered_by_sum(type_: TensorType, part: int) -> bool:
    """Whether a vector of which each device has so many elements is: where these fill no rows of 128."""
    return is_summed_vector(type_) and part & 127 != 0


def is_summed_vector(type_: TensorType) -> bool:
    """Whether its small parts are gathered by a sum, for which it stays as wide as it is."""
    return type_.num_bytes <= 1 << 16 and sum(size > 1 for size in type_.shape) < 2


def _compiled(compiler: Compiler, one: Sent, times: int = 1) -> Sent:
    if compiler.lowering != "xla-tpu":
        return one
    if one.kind == "reduce_scatter":
        return Sent("all_reduce", one.axes, one.bytes)
    is_everywhere = one.devices == compiler.devices > 32
    summed = one.bytes * one.devices * times  # a sum is made before what travels is narrowed
    is_summed = one.kind == "all_gather" and is_everywhere and (compiler.is_cubic or summed <= 1 << 24)
    return Sent("all_reduce", one.axes, summed) if is_summed else one


def _shards(sharding: TensorSharding) -> Sequence[int]:
    return [num_shards(parts_of(axes)) for axes in sharding.axes]


def _padded_bytes(before: TensorSharding, after: TensorSharding, type_: TensorType) -> int:
    """On one device, every dimension as long as all its parts after the exchange together."""
    sizes = [
        math.ceil(size / new) * new // old if new > old else math.ceil(size / old)
        for size, old, new in zip(type_.shape, _shards(before), _shards(after), strict=True)
    ]
    return TensorType(tuple(sizes), type_.dtype).num_bytes


def _misplaced_bytes(before: TensorSharding, after: TensorSharding, type_: TensorType) -> list[int]:
    """On one device, by dimension and neighbour: of the last coarse part, the rows by which its fine parts begin elsewhere."""
    found: list[int] = []
    own = [math.ceil(size / old) for size, old in zip(type_.shape, _shards(before), strict=True)]
    for dim, (old, new) in enumerate(zip(_shards(before), _shards(after), strict=True)):
        coarse, fine = min(old, new), max(old, new)
        if coarse > 1 and fine > coarse and fine % coarse == 0:
            size = type_.shape[dim]
            last = coarse - 1
            begin = last * (fine // coarse) * math.ceil(size / fine)
            end = last * math.ceil(size / coarse)
            for neighbour in range(last):
                rows = min(begin - end - neighbour * own[dim], own[dim])
                if rows > 0:
                    shape = [rows if d == dim else part for d, part in enumerate(own)]
                    found.append(TensorType(tuple(shape), type_.dtype).num_bytes)
    return found
