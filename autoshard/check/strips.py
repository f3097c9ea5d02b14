"""Bytes that XLA for TPUs stores besides of few images, which it cuts into strips (`program.strips`), over intervals of program time."""

from collections.abc import Iterator, Mapping

import numpy as np

from autoshard.check.planned import Planned
from autoshard.check.reads import Reads
from autoshard.program import Images, Lifetime
from autoshard.sharding import TensorSharding, TensorType, dtype_bits
from costmodels import Hardware


def in_strips(
    planned: Planned, reads: Reads, hardware: Hardware, lives: Mapping[int, Lifetime]
) -> Iterator[tuple[int, int, int]]:
    """(begin, end, bytes) of copies of images for filters' gradients, of what went back to those, of what norms sum again, of statistics of
    groups, and of what is read as images again.
    """
    strips = planned.program.strips
    for read in reads.kernels:
        kernel = read.kernel
        gradient = strips.filters.get(kernel.time)
        if gradient is not None:
            columns, begin, end = gradient.taps, gradient.first, gradient.end
            if (
                not hardware.filters_last
            ):  # in turn: three columns are two copies, and where strides pad all are made then
                end = kernel.time + 1
                begin, columns = (
                    (kernel.time, columns) if gradient.pads_strides else (begin, {3: 2}.get(columns, columns))
                )
            operands = zip(kernel.shape.travels, read.shardings, gradient.operands, strict=True)
            for (type_, sharding, dims), start, count in zip(
                operands, (begin, kernel.time), (columns, 1), strict=True
            ):
                yield start, end, count * _bytes(hardware, type_, sharding, dims, gradient.taps)
        for value, type_ in zip(kernel.results, kernel.shape.results, strict=True):
            settled = planned.settled.get(value, TensorSharding.replicated_closed(type_.rank))
            for one in (*strips.spread.get(value, ()), *strips.crossing.get(value, ())):
                of = TensorType(type_.shape, one.dtype)
                yield one.begin, one.end, _bytes(hardware, of, settled, one.images, one.taps)
            dims, life = strips.kept.get(value), lives.get(value)
            if dims is not None and life is not None and not life.is_own_buffer:
                held = planned.program.stored.of_value(value)
                yield life.begin, life.end, _bytes(hardware, held, settled, dims, 1)


def _bytes(hardware: Hardware, type_: TensorType, sharding: TensorSharding, dims: Images, taps: int) -> int:
    shape = np.asarray([sharding.local_shape(type_.shape)], dtype=np.int64)
    return int(hardware.strip_bytes(shape, dtype_bits(type_.dtype), dims, taps)[0])
