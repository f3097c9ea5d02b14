"""What tensors take in the memory of one device, as the hardware stores them."""

import numpy as np
from numpy.typing import NDArray

from autoshard.check.planned import Planned
from autoshard.check.reads import KernelRead
from autoshard.program import MinorDims, Whole, lie_for_heads
from autoshard.sharding import TensorSharding, TensorType, dtype_bits
from costmodels import Hardware
from costmodels.tiles import in_groups

Typed = tuple[TensorType, TensorSharding]


class Stored:
    """Bytes in memory on one device."""

    def __init__(self, planned: Planned, hardware: Hardware, *, narrows: bool) -> None:
        self._planned, self._hardware, self._narrows = planned, hardware, narrows
        self._known: dict[tuple[TensorType, TensorSharding, *tuple[object, ...]], int] = {}
        self.made_at = {value: kernel.time for kernel in planned.program.kernels for value in kernel.results}

    def handed_over(self, type_: TensorType, sharding: TensorSharding) -> int:
        """Of an argument or result, which is not in the heap."""
        return self._bytes(type_, sharding, None, is_temporary=False)

    def held(self, value: int, type_: TensorType) -> TensorType:
        """The type that a value is stored in while it comes and goes."""
        return self.narrowed(type_, self._planned.program.stored.of_value(value))

    def narrowed(self, type_: TensorType, taken: TensorType) -> TensorType:
        """The type of a copy that readers take as `taken`."""
        return taken if self._narrows else type_

    def at_least(self, type_: TensorType, sharding: TensorSharding) -> int:
        return self._bytes(type_, sharding, None, is_temporary=True)

    def resharded(self, value: int, type_: TensorType, sharding: TensorSharding) -> int:
        """Of a copy of a value in another sharding."""
        dims = self._planned.program.weights_of_heads.get(value)
        if dims is not None and not lie_for_heads(_shape(type_, sharding))[0]:
            dims = None
        return self._bytes(type_, sharding, dims, is_temporary=True)

    def as_written(self, value: int, type_: TensorType, sharding: TensorSharding) -> int:
        """In the layout of the kernel that makes the value; arguments and other carried values have the smallest."""
        program = self._planned.program
        dims = (program.minor_dims if value in self.made_at else program.indexed).get(value)
        return self._bytes(type_, sharding, dims, is_temporary=True)

    def where_replaced(self, value: int, type_: TensorType, sharding: TensorSharding, bytes_: int) -> int:
        """Of a value that takes `bytes_`, less where its comparisons are packed, or a device has the scores of one sequence."""
        packed, of_one = self._planned.program.packed, self._planned.program.of_one
        if value in of_one and _shape(type_, sharding)[0, 0] == 1:
            return self.at_least(of_one[value], sharding)
        if value not in packed:
            return bytes_
        comparisons = self._comparison_bytes(value, type_, sharding)
        narrow = packed[value]
        kept = 0 if narrow is None else self.as_written(value, narrow, sharding)
        return comparisons + kept if comparisons else bytes_

    def is_narrowed(self, value: int, type_: TensorType, sharding: TensorSharding) -> bool:
        """Whether a value is stored narrower than it is compared, since the comparisons are packed."""
        is_kept = self._planned.program.packed.get(value) is not None
        return is_kept and self._comparison_bytes(value, type_, sharding) > 0

    def _comparison_bytes(self, value: int, type_: TensorType, sharding: TensorSharding) -> int:
        minor = self._planned.program.minor_dims.get(value)
        return int(self._hardware.comparison_bytes(_shape(type_, sharding), minor)[0])

    @property
    def sums_in_place(self) -> bool:
        """Whether an all-reduce writes over what a product makes for it."""
        return self._hardware.sums_in_place

    def is_updated_as_made(self, type_: TensorType, sharding: TensorSharding, *, is_turned: bool) -> bool:
        """Whether what is updated with a part that a loop makes lies as that does."""
        parts = _shape(type_, sharding)
        return bool(self._hardware.are_updated_as_made(parts, type_.shape, is_turned=is_turned)[0])

    def lies_across(self, type_: TensorType, sharding: TensorSharding) -> bool:
        """Whether it is a matrix that is stored column by column."""
        return bool(self._hardware.lie_across(_shape(type_, sharding), dtype_bits(type_.dtype))[0])

    def whole(self, whole: Whole, sharding: TensorSharding) -> int:
        """Of what is there beside the value that it holds."""
        if whole.beside is not None and not whole.beside.holds(_shape(whole.type, sharding))[0]:
            return 0
        return self._bytes(whole.type, sharding, whole.dims, is_temporary=True, cut=whole.cut)

    def in_layout(self, type_: TensorType, sharding: TensorSharding, dims: MinorDims) -> int:
        """Of what comes and goes with these minor dimensions."""
        return self._bytes(type_, sharding, dims, is_temporary=True)

    def copied(
        self,
        type_: TensorType,
        sharding: TensorSharding,
        dims: MinorDims,
        *,
        is_read: bool = False,
        slices: int | None = None,
    ) -> int:
        """Of a copy in that layout, where one is made: for rows to be gathered from it (`is_read`), or so many `slices` to be scattered."""
        shape, bits = _shape(type_, sharding), dtype_bits(type_.dtype)
        many = None if slices is None else np.asarray([slices], dtype=np.int64)
        return int(self._hardware.copied_bytes(shape, bits, dims, is_read=is_read, slices=many)[0])

    def is_gathered_apart(self, tables: Typed, made: Typed, copied: int) -> bool:
        """Whether SparseCores gather that from a table, both with their shardings, or from a copy that takes so many bytes."""
        elements, gathered = (np.prod(_shape(*one), axis=1, dtype=np.int64) for one in (tables, made))
        table_bytes, bytes_ = (np.asarray([one], dtype=np.int64) for one in (self.at_least(*tables), copied))
        return bool(self._hardware.gathers_apart(table_bytes, elements, gathered, bytes_)[0])

    def copied_table(self, read: KernelRead) -> int:
        """Of the copy in rows that a gather reads, 0 where it reads the table; split rows are added up as wide as that is."""
        kernel, (sharding, *_) = read.kernel, read.shardings
        one = self._planned.program.gathered.get(kernel.time)
        if one is None or not one.is_copied:
            return 0
        table, made = kernel.shape.operands[0], self.held(kernel.results[0], kernel.shape.results[0])
        are_split = any(sharding.axes[dim] for dim in one.table[1])
        type_ = table if are_split else TensorType(table.shape, made.dtype)
        return self.copied(type_, sharding, one.table, is_read=True)

    def updates(
        self,
        added: tuple[TensorType, TensorSharding, MinorDims],
        table: tuple[TensorType, TensorSharding, MinorDims],
        bytes_: int,
        *,
        is_last: bool,
        is_alone: bool,
        has_gaps: bool,
    ) -> int:
        """Of a copy in rows of what a scatter adds to a table, stored in so many bytes."""
        first, second = (
            (_shape(type_, sharding), dtype_bits(type_.dtype), dims)
            for type_, sharding, dims in (added, table)
        )
        alone = np.asarray([is_alone])
        found = self._hardware.updates_bytes(
            first, second, np.asarray([bytes_]), is_last=is_last, is_alone=alone, has_gaps=has_gaps
        )
        return int(found[0])

    def reads_rows(self, type_: TensorType, sharding: TensorSharding, dims: MinorDims) -> bool:
        """Whether rows are gathered from a table that lies so."""
        return bool(self._hardware.reads_rows(_shape(type_, sharding), dtype_bits(type_.dtype), dims)[0])

    def unpadded(self, type_: TensorType, sharding: TensorSharding) -> int:
        return int(self._hardware.unpadded_bytes(_shape(type_, sharding), dtype_bits(type_.dtype))[0])

    def _bytes(
        self,
        type_: TensorType,
        sharding: TensorSharding,
        dims: MinorDims | None,
        *,
        is_temporary: bool,
        cut: tuple[int, int] | None = None,
    ) -> int:
        key = type_, sharding, dims, is_temporary, cut
        if key not in self._known:
            shape = _shape(type_, sharding)
            if cut is not None:
                shape = in_groups(shape, *cut)
            bits = dtype_bits(type_.dtype)
            found = self._hardware.stored_bytes(shape, bits, dims, is_temporary=is_temporary)
            self._known[key] = int(found[0])
        return self._known[key]


def _shape(type_: TensorType, sharding: TensorSharding) -> NDArray[np.int64]:
    """[1, rank] of what a device has."""
    return np.asarray([sharding.local_shape(type_.shape)], dtype=np.int64).reshape(1, type_.rank)
