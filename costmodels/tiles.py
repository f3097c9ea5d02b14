"""How many bytes a tensor takes in memory that is laid out in tiles of its two minor dimensions.

A compiler chooses the dimensions that are minor, and among those that it may choose the smallest total; the other dimensions cost
nothing extra. Memory without tiles stores the elements and no more.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .figures import Count, Share
from .heap import alive_bytes, gap_bytes

MinorPair = (
    tuple[Collection[int], Collection[int]]
    | tuple[Collection[int], Collection[int], bool | Literal["paired"]]
)
"""Dimensions of which the two minor ones must be: one of the first kind and one of the second, in either order unless the third says that
the first is minor to the second; paired, each of the first with the one of the second at its place."""
PAIR, MOST_SENT = 2, Fraction(4, 3)
FAR_LARGER, LITTLE_MORE = 4, Fraction(11, 10)
"""Of two layouts of one size or a little more the one with so many more rows is taken: of sums of (256, 16, 1024) that of 256 rows, of
(512, 256, 192) that of 256, not 512, in programs compiled by libtpu 0.0.51."""

MOST_PADDED, PADDED_TIMES = 20, 2
"""A copy of more than one in so many parts of the memory, and of more than so many times the smallest layout, is not made (libtpu 0.0.51,
29 programs that update a table of 8 to 64 columns by rows: on v5e, of 16 GiB, up to 0.79 GiB are copied, 0.80 GiB are not; on v6e 1.55
and 1.59, on v5p 3.8)."""


PADDING_OF_A_SLICE = 240 * 128
"""Nor one to scatter into where padding has more elements than so many for each slice, and takes more than `MOST_READ_PADDING` (libtpu
0.0.52, v6e and v5p, 40 programs whose tables have 2 to 32 columns on a device, in bfloat16 and float32: of 16,384 slices 501.5 million are
made, 504 million are not; of 4096 slices 113 and 126 million)."""

MOST_READ_PADDING = 128 * 2**20
"""A copy of a table that rows are gathered from is not made where it is padded by more bytes, and takes more than `PADDED_TIMES` the
smallest layout (libtpu 0.0.51, 24 programs that read tables of 3 to 100 columns, whole or split either way, on v5e, v5p and v6e)."""


class Tiles(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tiles]`: `lanes` elements of the minor dimension by `sublanes` of the next; fewer rows fill a tile of the next power of two.

    Elements below `word_bits` are packed along the rows, so that a tile has at least as many rows as fill a word. Temporary buffers
    share a heap, whose size exceeds what is alive in it by a part `heap_slack`: buffers of different lifetimes leave gaps.

    A sum of which n devices keep a part each goes in equal chunks of at most `scattered_tiles / (n + 4)` tiles of a part, which is padded
    for that; None: a compiler that does not.

    With `keeps_narrow_operands` the compiler stores what it makes in 16 bits of twice as many bytes for several products (a softmax's
    quotient, a gated activation), which otherwise each of them makes anew; with `keeps_grouped_operands` quotients of queries that
    share keys only; with `keeps_costly_operands` quotients that have exponentials in them, of buffers however few, and gated values of
    any activation function with many instructions. With `keeps_erfc` it stores complementary error functions in float32 beside their
    operand; those of 16 bits all do.
    With `doubles_exponentials` it makes float32 scores that nothing is done to before their softmax twice, and keeps the exponentials
    of both for the backward pass. With `masks_apart` scores that a mask is put on which it copies first, as it does not lie as they do,
    are stored so, and their exponentials beside them. With `stores_masks` the masks of long rows of scores are stored as large as
    these. With `looped_columns` what a loop makes column by column, of an operand that is gathered meanwhile, lies in columns, and
    parts of columns that a loop sums lie in columns too.

    With `keeps_wide_results` float32 work on a product as it leaves the matrix unit (a bias, a function) is stored as float32 though
    products alone read it; the largest of two and what is selected are as narrow as the product otherwise.

    Convolutions run inside the one that reads them where that takes less time, a byte of memory traffic taken for as long as
    `nested_flop_per_byte` operations; None: they do not. Those that read images of fewer than `nested_from_channels` do not.

    With `filters_last` it makes the gradients of filters of images that it cuts into strips (`costmodels.strips`) behind all else.

    With `sums_in_place` an all-reduce writes over what a product makes for it; otherwise both are there for a moment.

    Comparisons that are read again are packed into words (`comparison_bytes`), those in error functions of 16 bits from
    `erfc_packed_from_devices` on: these are then made anew. With `narrows_packed` what is compared is stored as products read it.
    """

    lanes: Count
    sublanes: Count
    word_bits: Count
    heap_slack: Share
    scattered_tiles: Count | None = None
    keeps_narrow_operands: bool | None = None  # None: no
    keeps_grouped_operands: bool | None = None  # None: no
    keeps_costly_operands: bool | None = None  # None: no
    keeps_erfc: bool | None = None  # None: no
    doubles_exponentials: bool | None = None  # None: no
    masks_apart: bool | None = None  # None: no
    stores_masks: bool | None = None  # None: no
    looped_columns: bool | None = None  # None: no
    keeps_wide_results: bool | None = None  # None: no
    nested_flop_per_byte: Count | None = None  # None: none are nested
    nested_from_channels: Count | None = None  # None: of any
    filters_last: bool | None = None  # None: no
    sums_in_place: bool | None = None  # None: no
    erfc_packed_from_devices: Count | None = None  # None: never
    narrows_packed: bool | None = None  # None: no

    def stored_bytes(
        self, shapes: NDArray[Any], element_bits: int, minor: MinorPair | None = None
    ) -> NDArray[np.int64]:
        """Bytes of tensors of these shapes (one a row), in the smallest layout with the minor dimensions of one of the `minor` kinds.

        A kind that is empty, or None for both, is any dimension. Where the first kind is minor to the second and has one element only, any
        dimension may be minor (slices of one element, libtpu 0.0.51: of 8 columns over 8 devices).
        """
        found = self._of_pairs(shapes, element_bits, minor)
        if minor is None or len(minor) <= PAIR or not minor[-1]:
            return found
        is_single = np.prod(shapes[:, list(minor[0])], axis=1, dtype=np.int64) == 1
        return np.where(is_single, self._of_pairs(shapes, element_bits, None), found)

    def _of_pairs(
        self, shapes: NDArray[Any], element_bits: int, minor: MinorPair | None
    ) -> NDArray[np.int64]:
        count, rank = shapes.shape
        packed = max(1, self.word_bits // max(element_bits, 1))
        if rank == 0:
            return untiled_bytes(shapes, element_bits)
        elements = np.prod(shapes, axis=1, dtype=np.int64)
        smallest = np.full(count, np.iinfo(np.int64).max)
        for lane, row in _pairs(rank, minor):
            lanes = _up(shapes[:, lane], self.lanes if rank > 1 else self.lanes * packed)
            rows = shapes[:, row] if rank > 1 else np.ones(count, dtype=np.int64)
            held = lanes * (_up(rows, self._rows(rows, packed)) if rank > 1 else rows)
            others = elements // np.maximum(shapes[:, lane] * rows, 1)
            smallest = np.minimum(smallest, others * held)
        return np.where(elements == 0, 0, (smallest * element_bits + 7) // 8)

    def comparison_bytes(self, shapes: NDArray[Any], minor: MinorPair | None = None) -> NDArray[np.int64]:
        """Bytes of the packed comparisons of values of these shapes (one a row); 0 of those that are not packed.

        They are packed along a dimension of 2 to 32 elements that is not one of the two minor ones, into words of 8, 16 or 32 bits: the
        longest, if there are several.

        Args:
            minor: the two minor dimensions, as of images, whose channels lie along the lanes; the last two where there is a choice or none
                is given.
        """
        count, rank = shapes.shape
        is_known = minor is not None and len(minor[0]) == len(minor[1]) == 1
        inner = {*minor[0], *minor[1]} if minor is not None and is_known else {rank - 2, rank - 1}
        outer = shapes[:, [dim for dim in range(rank) if dim not in inner]]
        outer = np.where(outer <= self.word_bits, outer, 0)
        longest = outer.max(axis=1, initial=0)
        bits = np.full(count, self.word_bits)
        for narrower in (self.word_bits // 2, self.word_bits // 4):
            bits = np.where(longest <= narrower, narrower, bits)
        elements = np.prod(shapes, axis=1, dtype=np.int64)
        return np.where(longest < 2, 0, elements // np.maximum(longest, 1) * bits // 8)

    def scattered_part(
        self,
        whole: Sequence[int],
        dim: int,
        devices: int,
        element_bits: int,
        minor: MinorPair | None = None,
        ways: int = 1,
    ) -> tuple[int, int]:
        """Bytes of the part of a scattered sum as it goes over the links, and those that are added; `whole` is cut along `dim`.

        The number of chunks is a multiple of the `ways` on which they go at once.

        A matrix, cut into rows, goes in chunks of whole rows of tiles and gets more of them; of more dimensions the tiles themselves go,
        with what fills them up. A chunk has an even number of tiles. At most a third is added.
        Parts along a minor dimension, of vectors, and that do not divide go as they are.
        """
        part = [size // devices if d == dim else size for d, size in enumerate(whole)]
        kept, bytes_ = [d for d, size in enumerate(whole) if size > 1], math.prod(part) * element_bits // 8
        pair = self._likely_minor(whole, kept, element_bits, minor)
        if self.scattered_tiles is None or pair is None or whole[dim] % devices or not bytes_:
            return bytes_, 0
        lane, row = pair
        if dim == lane or (dim == row) != (len(kept) == 2):
            return bytes_, 0
        rows, lanes = math.ceil(part[row] / self.sublanes), math.ceil(part[lane] / self.lanes)
        most = Fraction(self.scattered_tiles, devices + 4)
        if len(kept) > 2:
            tiles = math.prod(part) // (part[row] * part[lane]) * rows * lanes
            pairs = ways * PAIR * math.ceil(tiles / most)
            tile_bytes = self.sublanes * min(part[lane], self.lanes) * element_bits // 8
            sent = math.ceil(tiles / pairs) * pairs
            is_much = sent * tile_bytes > bytes_ * MOST_SENT
            return (bytes_, 0) if is_much else (sent * tile_bytes, (sent - tiles) * tile_bytes)
        rows_together = math.floor(most / lanes)
        if not rows_together:
            return bytes_, 0
        step = ways * math.ceil(rows / rows_together) * PAIR // math.gcd(PAIR, lanes)
        added = (math.ceil(rows / step) * step * self.sublanes - part[row]) * part[lane] * element_bits // 8
        return (bytes_, 0) if bytes_ + added > bytes_ * MOST_SENT else (bytes_ + added, added)

    def _likely_minor(
        self, shape: Sequence[int], kept: Sequence[int], element_bits: int, minor: MinorPair | None
    ) -> tuple[int, int] | None:
        """The minor dimension and the next of the smallest layouts: of those most like the shape, unless far more rows can be there."""
        pairs = (
            [pair for pair in _pairs(len(shape), minor) if set(pair) <= set(kept)] if len(kept) > 1 else []
        )
        if not pairs:
            return None
        packed = max(1, self.word_bits // element_bits)

        def padded(lane: int, row: int) -> Fraction:
            tile = self._rows_of_one(shape[row], packed)
            rows = math.ceil(shape[row] / tile) * tile
            return Fraction(math.ceil(shape[lane] / self.lanes) * self.lanes * rows, shape[lane] * shape[row])

        most = min(padded(*pair) for pair in pairs) * LITTLE_MORE
        (best, *others) = (pair for pair in sorted(pairs, reverse=True) if padded(*pair) <= most)
        for lane, row in others:
            if lane == best[0] and shape[row] >= FAR_LARGER * shape[best[1]]:
                best = lane, row
        return best

    def are_updated_as_made(
        self, parts: NDArray[Any], whole: Sequence[int], *, is_turned: bool
    ) -> NDArray[np.bool_]:
        """Of parts of these shapes (one a row), which loops make of a tensor of the shape `whole` that is cut along one dimension: whether
        what they update lies as they do. Else they are copied for it.

        What is not a multiple of the lanes lies as what it updates, which is in rows; all else is made in rows, or with
        `looped_columns` what is cut along columns in columns, and `is_turned` (transposed) for the update or not. Seen of matrices; of
        more dimensions those behind the one that is cut count with it, as columns.
        """
        kept = [dim for dim, size in enumerate(whole) if size > 1] or [0]
        parts = parts[:, kept]
        is_cut = parts != np.asarray(whole)[kept]
        cut = np.where(is_cut.any(axis=1), is_cut.argmax(axis=1), 0)
        columns = np.take_along_axis(np.cumprod(parts[:, ::-1], axis=1)[:, ::-1], cut[:, None], axis=1)[:, 0]
        sizes = np.where(cut > 0, columns, parts[:, 0])
        in_columns = bool(self.looped_columns) & (cut > 0)
        return (in_columns == is_turned) | (sizes % self.lanes != 0)

    def lie_across(self, shapes: NDArray[Any], element_bits: int) -> NDArray[np.bool_]:
        """Whether tensors of these shapes (one a row) are matrices that lie with their rows along the lanes, as that pads less."""
        if shapes.shape[1] != PAIR:
            return np.zeros(len(shapes), dtype=np.bool_)
        by_row, across = (((1,), (0,), True), ((0,), (1,), True))
        return self._of_pairs(shapes, element_bits, across) < self._of_pairs(shapes, element_bits, by_row)

    def with_gaps(self, bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """What temporary buffers of these bytes make of the heap."""
        return bytes + np.floor(bytes * self.heap_slack).astype(np.int64)

    def more_gaps(self, begin: NDArray[np.int64], end: NDArray[np.int64], bytes: NDArray[np.int64]) -> int:
        """What gaps take beyond `heap_slack`, which is in the bytes, where temporary buffers of these lives are placed one by one."""
        alive, gaps = alive_bytes(begin, end, bytes), gap_bytes(begin, end, bytes)
        return max(int((alive + gaps) / (1 + self.heap_slack)) - alive, 0)

    def _rows(self, rows: NDArray[Any], packed: int) -> NDArray[np.int64]:
        """[N] rows of the tile: all of them, or the power of two that holds fewer."""
        full = max(self.sublanes, packed)
        power = 2 ** np.ceil(np.log2(np.clip(rows, 1, full))).astype(np.int64)
        return np.clip(power, packed, full)

    def _rows_of_one(self, rows: int, packed: int) -> int:
        """The same of one number, as arrays of one take long."""
        full = max(self.sublanes, packed)
        power = 1 << (min(max(rows, 1), full) - 1).bit_length()
        return min(max(power, packed), full)


def _pairs(rank: int, minor: MinorPair | None) -> list[tuple[int, int]]:
    """(minor, second minor) of every layout that is allowed."""
    if rank == 1:
        return [(0, 0)]
    first, second = ([*kind] or [*range(rank)] for kind in (minor or ((), ()))[:2])
    is_ordered = minor is not None and len(minor) > 2 and minor[2]
    if is_ordered == "paired":
        return [*zip(first, second, strict=True)]
    chosen = [
        *itertools.product(first, second),
        *(itertools.product(second, first) if not is_ordered else ()),
    ]
    return sorted({(a, b) for a, b in chosen if a != b}) or [*itertools.permutations(range(rank), 2)]


def _up(sizes: NDArray[Any], tile: int | NDArray[Any]) -> NDArray[np.int64]:
    return -(-sizes // tile) * tile


def in_groups(shapes: NDArray[Any], dim: int, size: int) -> NDArray[Any]:
    """Shapes with a dimension in groups of so many elements at most, and as the last one how many groups these are."""
    together = np.clip(shapes[:, dim], 1, size)
    found = np.column_stack([shapes, -(-shapes[:, dim] // together)])
    found[:, dim] = together
    return found


def pads_too_far(
    padded: NDArray[np.int64],
    least: NDArray[np.int64],
    element_bits: int,
    memory_bytes: int,
    slices: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """Whether a compiler avoids a padded copy of what takes `least` bytes otherwise, into which so many slices are scattered, if any."""
    is_large = padded * MOST_PADDED > memory_bytes
    if slices is not None:
        most = np.maximum(slices * (PADDING_OF_A_SLICE * element_bits // 8), MOST_READ_PADDING)
        is_large |= padded - least > most
    return np.asarray((padded > PADDED_TIMES * least) & is_large, dtype=np.bool_)


def pads_too_far_to_read(padded: NDArray[np.int64], least: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The same of a copy that rows are gathered from."""
    is_much = (padded > PADDED_TIMES * least) & (padded - least > MOST_READ_PADDING)
    return np.asarray(is_much, dtype=np.bool_)


def untiled_bytes(shapes: NDArray[Any], element_bits: int) -> NDArray[np.int64]:
    """Bytes of the elements alone."""
    return (np.prod(shapes, axis=1, dtype=np.int64) * element_bits + 7) // 8
