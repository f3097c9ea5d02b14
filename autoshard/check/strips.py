"""Bytes that XLA for TPUs stores besides of few images, which it cuts into strips (`program.strips`), over intervals of program time."""

from collections.abc import Iterator, Mapping

import numpy as np

from autoshard.check.buffers import Buffer
from autoshard.check.planned import Planned
from autoshard.check.reads import Reads
from autoshard.program import FilterGradient, Images, Lifetime
from autoshard.sharding import TensorSharding, TensorType, dtype_bits
from costmodels import Hardware

_SHARED_OF = 3
"""Columns of a filter: networks of four layers with filters of 2, 3, 5 and 7, libtpu 0.0.52 for v4, v5p and v6e."""


def in_strips(
    planned: Planned, reads: Reads, hardware: Hardware, lives: Mapping[int, Lifetime]
) -> Iterator[Buffer]:
    """Copies of images for filters' gradients, what went back to those, what norms sum again, statistics of groups, and what is read as
    images again.
    """
    strips = planned.program.strips
    for read in reads.kernels:
        kernel = read.kernel
        if (gradient := strips.filters.get(kernel.time)) is not None:
            begin, end, copies = _of_filter(gradient, kernel.time, hardware)
            images, back = (
                _bytes(hardware, type_, sharding, dims, gradient.taps)
                for type_, sharding, dims in zip(
                    kernel.shape.travels, read.shardings, gradient.operands, strict=True
                )
            )
            yield Buffer(begin, end, copies * images)
            yield Buffer(kernel.time, end, back)
        for value, type_ in zip(kernel.results, kernel.shape.results, strict=True):
            settled = planned.settled.get(value, TensorSharding.replicated_closed(type_.rank))
            for one in (*strips.spread.get(value, ()), *strips.crossing.get(value, ())):
                of = TensorType(type_.shape, one.dtype)
                bytes_ = _bytes(hardware, of, settled, one.images, one.taps)
                yield Buffer(one.begin, one.end, bytes_, value=one.value)
            dims, life = strips.kept.get(value), lives.get(value)
            if dims is not None and life is not None and not life.is_own_buffer:
                held = planned.program.stored.of_value(value)
                yield Buffer(life.begin, life.end, _bytes(hardware, held, settled, dims, 1))


def _of_filter(gradient: FilterGradient, time: int, hardware: Hardware) -> tuple[int, int, int]:
    """When the copies of images begin, all that the gradient reads ends, and how many they are: one for each column, until the last of
    such gradients; for chips that make them in turn until this one: of three columns two, or all at once where strides pad.
    """
    if hardware.filters_last:
        return gradient.first, gradient.end, gradient.taps
    if gradient.pads_strides:
        return time, time + 1, gradient.taps
    return gradient.first, time + 1, gradient.taps - (gradient.taps == _SHARED_OF)


def _bytes(hardware: Hardware, type_: TensorType, sharding: TensorSharding, dims: Images, taps: int) -> int:
    shape = np.asarray([sharding.local_shape(type_.shape)], dtype=np.int64)
    return int(hardware.strip_bytes(shape, dtype_bits(type_.dtype), dims, taps)[0])
