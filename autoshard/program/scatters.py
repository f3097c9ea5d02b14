"""Which of the reduce-scatters that the user wrote XLA:TPU leaves as they are; of the others it makes an all-reduce and a slice.

Seen in 300 compiled programs on v5e, v6e and v5p: the all-reduce comes where a group is the whole slice, for element types other than
f32 and bf16, for vectors, where no more than four rows lie along the sublanes, where the part that is kept is narrow along the lanes or
one tile alone, and of matrices that are scattered by rows also where the part has no whole tiles of rows, and for large ones among two or
four devices. Leading dimensions of one element count for nothing, and the rows of narrow matrices lie along the lanes.
"""

from autoshard.sharding import TensorType, dtype_bits

_DTYPES = ("f32", "bf16")
_FEWEST_ROWS = 5  # along the sublanes; with seven the tile has eight
_ROWS = 8  # of a tile
_NARROW = 64  # columns from which on rows do not lie along the lanes; of 32 they do
_TILE = 8 * 128  # elements
_LEAST_LANE_BITS = 128 * 32  # of a row of the part, where rows are cut
_FEW = 4  # devices
_LARGE = 8 << 20  # bytes of what is scattered; 4 MiB is not, 16 MiB is


def stays_scatter(part: TensorType, dimension: int, devices: int, everyone: int) -> bool:
    """Whether it is a reduce-scatter in the compiled program.

    Args:
        part: what a device keeps.
        devices: of a group, of `everyone` in the slice.
    """
    if devices == everyone or part.dtype not in _DTYPES:
        return False
    whole = [size * devices if dim == dimension else size for dim, size in enumerate(part.shape)]
    rank = len(whole) - next((dim for dim, size in enumerate(whole) if size > 1), len(whole))
    if rank < 2 or whole[-2] < _FEWEST_ROWS or whole[-1] == 1:
        return False
    is_narrow = rank == 2 and whole[-1] < _NARROW
    if dimension == part.rank - 1 or (is_narrow and whole[-1] >= _FEWEST_ROWS):
        return part.shape[dimension] * dtype_bits(part.dtype) >= _LEAST_LANE_BITS
    if is_narrow or part.num_elements <= _TILE:
        return False
    is_large = devices <= _FEW and part.num_bytes * devices >= _LARGE
    return rank > 2 or (part.shape[-2] % _ROWS == 0 and not is_large)
