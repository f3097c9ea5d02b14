"""Bytes that values take in a device's memory, by their sharding: those of the hardware's layouts (`Hardware.stored_bytes`)."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.graph import Graph
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import Lowering
from autoshard.cost.overlap import pace_of
from autoshard.program import SHORT_SHARE, Images, MinorDims, Offloading, Whole, lie_for_heads
from autoshard.sharding import TensorType, dtype_bits
from costmodels import Hardware
from costmodels.hardware import Occupancy
from costmodels.tiles import in_groups

_WORD_BYTES = 4


class Shared(NamedTuple):
    """What several items hold: the same where a value of that type lies as it does there, and then there once."""

    value: int
    type: TensorType
    layouts: Ints  # of every choice of the node


class Item(NamedTuple):
    begin: int
    end: int
    bytes: Ints  # of every choice of the node
    is_handed_over: bool = False  # an argument or a result, which a runtime allocates
    note: str = ""  # what it is beside the value that the node makes; "": that value
    value: int = -1  # what is in it, where that is known
    shared: Shared | None = None


class Sizes:
    """Bytes of values on one device, each question answered once."""

    def __init__(self, graph: Graph, hardware: Hardware, lowering: Lowering) -> None:
        self._graph, self._hardware = graph, hardware
        self._pace = pace_of(graph, hardware)
        self._is_narrowing = lowering == "xla-tpu"
        self._pieces: dict[tuple[TensorType, int, bytes, bytes], Ints] = {}
        self._known: dict[tuple[TensorType, bytes, MinorDims | None, bool], Ints] = {}

    def held(self, value: int, type_: TensorType) -> TensorType:
        """In what type a value that comes and goes is stored: XLA for TPUs narrows what all readers take narrower."""
        return self.narrowed(type_, self._graph.program.stored.of_value(value))

    def narrowed(self, type_: TensorType, taken: TensorType) -> TensorType:
        """Of a copy that readers take as `taken`."""
        return taken if self._is_narrowing else type_

    def temporary(self, type_: TensorType, layouts: Ints, minor: MinorDims | None = None) -> Ints:
        """Of a value that comes and goes in the heap."""
        return self._of(type_, layouts, minor, is_temporary=True)

    def resharded(self, type_: TensorType, layouts: Ints, minor: MinorDims | None) -> Ints:
        """Of what a reshard makes; `minor`: of a weight of heads (`Program.weights_of_heads`)."""
        bytes_ = self.temporary(type_, layouts)
        if minor is None:
            return bytes_
        are_so = lie_for_heads(self._graph.layouts[type_.rank].local_shapes(type_, layouts))
        return np.where(are_so, self.temporary(type_, layouts, minor), bytes_)

    def where_replaced(self, value: int, type_: TensorType, layouts: Ints, bytes_: Ints) -> Ints:
        """Of a value that takes `bytes_`, less where something else is stored: its comparisons, packed (`Program.packed`), or the scores
        of one sequence (`Program.of_one`).
        """
        program = self._graph.program
        if value in program.of_one:
            first = self._graph.layouts[type_.rank].local_shapes(type_, layouts)[:, 0]
            return np.where(first == 1, self.temporary(program.of_one[value], layouts), bytes_)
        if value not in program.packed:
            return bytes_
        narrow, minor = program.packed[value], program.minor_dims.get(value)
        comparisons = self._comparison_bytes(type_, layouts, minor)
        kept = 0 if narrow is None else self.temporary(narrow, layouts, minor)
        return np.where(comparisons > 0, comparisons + kept, bytes_)

    @property
    def filters_last(self) -> bool:
        """Whether the compiler makes the gradients of filters of few images behind all else, see `costmodels.tiles`."""
        return self._hardware.filters_last

    @property
    def sums_in_place(self) -> bool:
        """Whether an all-reduce writes over what a product makes for it."""
        return self._hardware.sums_in_place

    def are_packed(self, type_: TensorType, layouts: Ints, minor: MinorDims | None) -> NDArray[np.bool_]:
        """Whether comparisons of a value's elements are packed."""
        return self._comparison_bytes(type_, layouts, minor) > 0

    def _comparison_bytes(self, type_: TensorType, layouts: Ints, minor: MinorDims | None) -> Ints:
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        return self._hardware.comparison_bytes(shapes, minor)

    def whole(self, whole: Whole, layouts: Ints) -> Ints:
        """Of what is stored of a value beside that."""
        if whole.cut is None:
            bytes_ = self.temporary(whole.type, layouts, whole.dims)
        else:
            parts = self._graph.layouts[whole.type.rank].local_shapes(whole.type, layouts)
            bits = dtype_bits(whole.type.dtype)
            bytes_ = self._hardware.stored_bytes(
                in_groups(parts, *whole.cut), bits, whole.dims, is_temporary=True
            )
        return bytes_ if whole.beside is None else np.where(self.lie_beside(whole, layouts), bytes_, 0)

    def lie_beside(self, whole: Whole, layouts: Ints) -> NDArray[np.bool_]:
        """Where what is stored of hidden values is."""
        assert whole.beside is not None
        return whole.beside.holds(self._graph.layouts[whole.type.rank].local_shapes(whole.type, layouts))

    def copied(
        self,
        type_: TensorType,
        layouts: Ints,
        minor: MinorDims,
        *,
        is_read: bool = False,
        slices: Ints | None = None,
    ) -> Ints:
        """Of a copy in that layout, where one is made: for rows to be gathered from it (`is_read`), or so many `slices` to be scattered."""
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        bits = dtype_bits(type_.dtype)
        return self._hardware.copied_bytes(shapes, bits, minor, is_read=is_read, slices=slices)

    def counted(self, type_: TensorType, layouts: Ints, along: Sequence[int]) -> Ints:
        """Elements of a device along these dimensions."""
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        return np.prod(shapes[:, list(along)], axis=1, dtype=np.int64)

    def updates(
        self,
        added: tuple[TensorType, Ints, MinorDims],
        table: tuple[TensorType, Ints, MinorDims],
        stored: Ints,
        *,
        is_last: bool,
        is_alone: NDArray[np.bool_],
        has_gaps: bool,
    ) -> Ints:
        """Of rows that a scatter adds to a table, `stored` in so many bytes: see `Hardware.updates_bytes`."""
        shapes = [
            (self._graph.layouts[type_.rank].local_shapes(type_, layouts), dtype_bits(type_.dtype), dims)
            for type_, layouts, dims in (added, table)
        ]
        one, other = shapes
        return self._hardware.updates_bytes(
            one, other, stored, is_last=is_last, is_alone=is_alone, has_gaps=has_gaps
        )

    def reads_rows(self, type_: TensorType, layouts: Ints, minor: MinorDims) -> NDArray[np.bool_]:
        """Whether rows are gathered from a table that lies so."""
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        return self._hardware.reads_rows(shapes, dtype_bits(type_.dtype), minor)

    def lie_across(self, type_: TensorType, layouts: Ints) -> NDArray[np.bool_]:
        """Whether it is a matrix that is stored column by column."""
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        return self._hardware.lie_across(shapes, dtype_bits(type_.dtype))

    def are_updated_as_made(self, type_: TensorType, layouts: Ints, *, is_turned: bool) -> NDArray[np.bool_]:
        """Whether what is updated with a part that a loop makes lies as that does."""
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        return self._hardware.are_updated_as_made(shapes, type_.shape, is_turned=is_turned)

    def are_gathered_apart(
        self, table: tuple[TensorType, Ints], made: tuple[TensorType, Ints], copied: Ints
    ) -> NDArray[np.bool_]:
        """Whether SparseCores gather that from a table, both with their layouts, or from a copy that takes so many bytes."""
        shapes, rows = (
            self._graph.layouts[type_.rank].local_shapes(type_, ids) for type_, ids in (table, made)
        )
        elements, gathered = (np.prod(one, axis=1, dtype=np.int64) for one in (shapes, rows))
        return self._hardware.gathers_apart(self.temporary(*table), elements, gathered, copied)

    def copied_table(self, table: TensorType, layouts: Ints, made: TensorType, dims: MinorDims) -> Ints:
        """Of the copy in rows that a gather makes `made` of: as wide as rows are added up where they are split, else as they are stored."""
        are_whole = (self._graph.layouts[table.rank].divisors()[layouts][:, list(dims[1])] == 1).all(axis=1)
        narrow = TensorType(table.shape, made.dtype)
        wide, whole = (self.copied(type_, layouts, dims, is_read=True) for type_ in (table, narrow))
        return np.where(are_whole, whole, wide)

    def strips(self, type_: TensorType, layouts: Ints, images: Images, taps: int) -> Ints:
        """Of a value that comes and goes as strips of few images; 0 where images are not cut."""
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        return self._hardware.strip_bytes(shapes, dtype_bits(type_.dtype), images, taps)

    def unpadded(self, type_: TensorType, layouts: Ints) -> Ints:
        """Of the elements of a value that comes and goes."""
        shapes = self._graph.layouts[type_.rank].local_shapes(type_, layouts)
        return self._hardware.unpadded_bytes(shapes, dtype_bits(type_.dtype))

    def pieces(self, type_: TensorType, bytes_: int, supply: Ints, demand: Ints) -> Ints:
        """[from, to] of so many bytes for each element that stay beside a value of which slices are read; 0 where it is sent or stays."""
        key = (type_, bytes_, supply.tobytes(), demand.tobytes())
        if key not in self._pieces:
            words = self.temporary(TensorType(type_.shape, "f32"), supply) * bytes_ // _WORD_BYTES
            are_slices = self._graph.layouts[type_.rank].are_slices(supply, demand)
            self._pieces[key] = np.where(are_slices, words[:, None], 0)
        return self._pieces[key]

    def permanent(self, type_: TensorType, layouts: Ints) -> Ints:
        """Of an argument or a result, which a runtime allocates by itself."""
        return self._of(type_, layouts, None, is_temporary=False)

    def occupancy(self, items: Ints, in_main_memory: Collection[int] = ()) -> Occupancy:
        """What takes main memory at the peak of [item, (begin, end, bytes, whether it is handed over, value or -1)].

        Args:
            in_main_memory: values that do whatever vector memory has room for.
        """
        begin, end, bytes_, fixed, value = items.T
        lives = zip(value.tolist(), begin.tolist(), end.tolist(), strict=True)
        stays = [self._pace.stay(*life, is_out=life[0] in in_main_memory) for life in lives]
        return self._hardware.occupancy(begin, end, bytes_, fixed > 0, stays=stays)

    def offloading(self) -> Offloading:
        return Offloading(self._graph.program, self._pace.kernels, self._hardware.scheduled_product_ns(1.0))

    def are_short(self, bytes_: int) -> bool:
        """Whether a program that takes so many bytes would make its compiler save memory."""
        return bytes_ > SHORT_SHARE * self._hardware.usable_hbm_bytes

    def _of(self, type_: TensorType, layouts: Ints, minor: MinorDims | None, *, is_temporary: bool) -> Ints:
        key = (type_, layouts.tobytes(), minor, is_temporary)
        if key not in self._known:
            shapes, bits = (
                self._graph.layouts[type_.rank].local_shapes(type_, layouts),
                dtype_bits(type_.dtype),
            )
            self._known[key] = self._hardware.stored_bytes(shapes, bits, minor, is_temporary=is_temporary)
        return self._known[key]
