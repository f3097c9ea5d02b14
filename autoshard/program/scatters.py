"""Which of the reduce-scatters that the user wrote XLA:TPU leaves as they are; of the others it makes an all-reduce and a slice.

Seen in 200 compiled programs on v5e, v6e and v5p: the all-reduce comes where a group is the whole slice, for vectors, where the part
that is kept is narrow along the lanes, and for large matrices that two or four devices scatter by rows.
"""

from autoshard.sharding import TensorType, dtype_bits

_LEAST_LANE_BITS = 128 * 32  # of a row of the part, where rows are cut
_FEW = 4  # devices
_LARGE = 8 << 20  # bytes of what is scattered; 4 MiB is not, 16 MiB is


def stays_scatter(part: TensorType, dimension: int, devices: int, everyone: int) -> bool:
    """Whether it is a reduce-scatter in the compiled program.

    Args:
        part: what a device keeps.
        devices: of a group, of `everyone` in the slice.
    """
    if devices == everyone or part.rank == 1:
        return False
    if dimension == part.rank - 1:
        return part.shape[-1] * dtype_bits(part.dtype) >= _LEAST_LANE_BITS
    return not (part.rank == 2 and devices <= _FEW and part.num_bytes * devices >= _LARGE)
