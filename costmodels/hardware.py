"""Hardware by name: the figures of a chip and its links, and the times that follow from them.

    >>> import costmodels
    >>> tpu = costmodels.load("tpu-v5e")
    >>> tpu.all_gather_ns(bytes=34_000_000, axes=(4,))
    >>> tpu.place([("data", 8), ("model", 2)], topology=(4, 4)).all_reduce_ns(4_000_000, ["model"])

`profiles` reads them from TOML. All memory and compute properties are those of one device, which is a chip, or a part of
one that shows itself as several devices.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import compute
from .amounts import (
    Amount,
    Integers,
    as_amount,
    as_amounts,
    as_counts,
    as_list,
    as_shapes,
    as_sizes,
    as_whole,
    check_dims,
    whole_ns,
)
from .calibration import Calibration
from .collectives import Communication
from .compute import Quantity, Roofline, Unit
from .distinct import distinct_placements
from .errors import HardwareError
from .figures import Chip, FullMesh, Link, Scheduler, Switch, Topology, Torus
from .heap import Occupancy, most_alive
from .listing import Figure, figures_of
from .placing import outer_network, place_for_scheduler, place_in_nodes, place_on_torus, topology_text
from .scheduled import ScheduledCommunication
from .shapes import checked_mesh, compact_slices, default_node, own_torus_shape
from .sparse_core import SparseCore
from .strips import MINOR, Images, in_strips, worked_columns
from .switched import SwitchedCommunication
from .tiles import MinorPair, Tiles, pads_too_far, pads_too_far_to_read, untiled_bytes
from .topology import MeshSizes
from .torus import TorusCommunication
from .vector_memory import VectorMemory

__all__ = ["Chip", "FullMesh", "Hardware", "Link", "Occupancy", "Scheduler", "Switch", "Topology", "Torus"]

TABLES = (
    "chip",
    "tiles",
    "vector_memory",
    "sparse_core",
    "link",
    "core_link",
    "topology",
    "network",
    "scheduler",
)
"""Those of a profile, in the order in which they are listed."""


SCHEDULED = ":scheduler"
"""What a name ends in that is to be priced as the compiler's scheduler does (`scheduled`)."""


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chip, the links between chips, and the shapes they come in."""

    name: str
    chip: Chip
    link: Link
    topology: Torus | Switch | FullMesh
    core_link: Link | None = None
    network: Link | None = None
    tiles: Tiles | None = None
    vector_memory: VectorMemory | None = None
    sparse_core: SparseCore | None = None
    scheduler: Scheduler | None = None
    priced_by: Literal["links", "scheduler"] = "links"
    sources: tuple[tuple[str, str], ...] = ()
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        several = self.chip.devices_per_chip > 1
        if isinstance(self.topology, Torus) and several != (self.core_link is not None):
            raise ValueError("[core_link] goes with devices_per_chip above 1")
        if not isinstance(self.topology, Torus) and several:
            raise ValueError("devices_per_chip above 1 needs a torus")
        if self.is_scheduled and not self._can_be_scheduled:
            raise ValueError("to be priced by a scheduler takes [scheduler] and a torus of one device a chip")

    def source(self, figure: str) -> str:
        """Where a figure, such as "chip.hbm_gb", comes from; "" if the profile does not say."""
        return dict(self.sources).get(str(figure), "")

    def outside_measured(self, kind: str, dtype: str | None = None, **asked: float) -> str:
        """What of a price is extrapolated from the measurements behind this profile, as a sentence; "" where nothing is.

        `outside_measured("all_gather", bytes=2**30, devices=16)`, or of a "matmul" m, k, n and `dtype`, of "memory" bytes.
        """
        return "" if self.calibration is None else self.calibration.outside(kind, dtype, **asked)

    def figures(self) -> list[Figure]:
        """Every figure of the profile with its unit and source, in the order of its tables."""
        tables = {name: getattr(self, name) for name in TABLES}
        return figures_of(tables, dict(self.sources))

    @property
    def is_scheduled(self) -> bool:
        """Whether times are those of the compiler's scheduler: products at peak, and collectives as `scheduled` has them."""
        return self.priced_by == "scheduler"

    @property
    def multiplies_all_groups(self) -> bool:
        """Whether a ragged product takes as long as that of each row by the matrices of all groups.

        XLA makes it one where a library multiplies (its pass RaggedDotRewriter; 8.1 times the operations for 8 groups on a CPU, jaxlib
        0.10.2), and its scheduler for TPUs counts it so. What TPUs take that leave out masked tiles has not been measured.
        """
        return self.is_scheduled or bool(self.chip.products_apart)

    @property
    def own_share(self) -> int:
        """Of the hardware's own time for work that a scheduler takes for nothing one in so many counts; 1 at the hardware's own prices."""
        return 1000 if self.is_scheduled else 1

    def at_scheduler(self) -> "Hardware | None":
        """The same at the prices of its compiler's scheduler; None where they are not known: they are of a torus of one device a chip."""
        if self.is_scheduled:
            return self
        if not self._can_be_scheduled:
            return None
        return msgspec.structs.replace(self, name=self.name + SCHEDULED, priced_by="scheduler")

    def at_links(self) -> "Hardware":
        """The same at its own prices."""
        name = self.name.removesuffix(SCHEDULED)
        return msgspec.structs.replace(self, name=name, priced_by="links") if self.is_scheduled else self

    @property
    def hbm_bytes(self) -> int:
        """Memory of one device."""
        return self.chip.hbm_bytes // self.chip.devices_per_chip

    @property
    def usable_hbm_bytes(self) -> int:
        """The part of one device's memory that a program can have: the default budget."""
        return int(self.hbm_bytes * self.chip.usable_hbm_fraction)

    def keeps_near(self, bytes: int, together: int) -> bool:
        """Whether a value that a loop uses in every trip stays in vector memory; `together`: what all of them take at least."""
        return self.vector_memory is not None and self.vector_memory.keeps(bytes, together)

    @property
    def keeps_narrow_operands(self) -> bool:
        """Whether its compiler stores what several products would make of more bytes than it has: see `Tiles`."""
        return self.tiles is not None and bool(self.tiles.keeps_narrow_operands)

    @property
    def keeps_grouped_operands(self) -> bool:
        """Whether its compiler stores the softmax of queries that share keys for several products: see `Tiles`."""
        return self.tiles is not None and bool(self.tiles.keeps_grouped_operands)

    @property
    def keeps_costly_operands(self) -> bool:
        """Whether its compiler stores quotients of exponentials, and gates of many instructions, for several products: see `Tiles`."""
        return self.tiles is not None and bool(self.tiles.keeps_costly_operands)

    @property
    def keeps_wide_results(self) -> bool:
        """Whether its compiler stores float32 work on a product as float32, though products read it as bfloat16: see `Tiles`."""
        return self.tiles is not None and bool(self.tiles.keeps_wide_results)

    @property
    def nested_flop_per_byte(self) -> int | None:
        """Operations that its compiler takes for as long as a byte where it runs convolutions inside others: see `Tiles`."""
        return None if self.tiles is None else self.tiles.nested_flop_per_byte

    @property
    def nested_from_channels(self) -> int:
        """Channels of the images that a convolution inside another reads at least: see `Tiles`."""
        return 0 if self.tiles is None else self.tiles.nested_from_channels or 0

    @property
    def keeps_erfc(self) -> bool:
        """Whether the compiler stores complementary error functions in float32, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.keeps_erfc)

    @property
    def doubles_exponentials(self) -> bool:
        """Whether the compiler stores exponentials of a softmax of float32 products twice, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.doubles_exponentials)

    def repeats_packed_erfc(self, devices: int) -> bool:
        """Whether the compiler of so many devices makes error functions anew whose comparisons are packed, see `tiles`."""
        least = None if self.tiles is None else self.tiles.erfc_packed_from_devices
        return least is not None and devices >= least

    def comparison_bytes(
        self, shapes: NDArray[np.int64], minor: MinorPair | None = None
    ) -> NDArray[np.int64]:
        """Of the packed comparisons of values of these shapes; 0 of those that are not packed: see `tiles`."""
        return (
            np.zeros(len(shapes), dtype=np.int64)
            if self.tiles is None
            else self.tiles.comparison_bytes(shapes, minor)
        )

    @property
    def narrows_packed(self) -> bool:
        """Whether the compiler stores what is compared as products read it where the comparisons are packed, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.narrows_packed)

    @property
    def masks_apart(self) -> bool:
        """Whether the compiler masks scores by a copied mask before it works out their softmax, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.masks_apart)

    def gathers_apart(
        self,
        table_bytes: NDArray[np.int64],
        table_elements: NDArray[np.int64],
        elements: NDArray[np.int64],
        copied_bytes: NDArray[np.int64] | int = 0,
    ) -> NDArray[np.bool_]:
        """Whether SparseCores gather that many elements of tables of so many: see `sparse_core`.

        `copied_bytes`: of copies of these in rows, 0 where there is none.
        """
        if self.sparse_core is None:
            return np.zeros(len(elements), dtype=np.bool_)
        return self.sparse_core.gathers(table_bytes, table_elements, elements, copied_bytes)

    @property
    def stores_masks(self) -> bool:
        """Whether the compiler stores masks of long rows of scores as large as these, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.stores_masks)

    @property
    def sums_in_place(self) -> bool:
        """Whether an all-reduce writes over what a product makes for it, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.sums_in_place)

    @property
    def filters_last(self) -> bool:
        """Whether the compiler makes the gradients of filters of few images behind all else, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.filters_last)

    @property
    def lays_looped_columns(self) -> bool:
        """Whether what a loop makes column by column lies in columns, see `tiles`."""
        return self.tiles is not None and bool(self.tiles.looped_columns)

    @property
    def gathers_behind_compute(self) -> bool:
        """Whether its compiler runs all-gathers behind kernels that do not wait for them."""
        return isinstance(self.topology, Torus) and bool(self.topology.gathers_behind_compute)

    @property
    def _can_be_scheduled(self) -> bool:
        is_torus = isinstance(self.topology, Torus) and self.chip.devices_per_chip == 1
        return self.scheduler is not None and is_torus

    @property
    def asynchronous(self) -> frozenset[str]:
        """Collectives, as emitted, that its compiler begins before and ends behind other work."""
        gathers = {"all_gather"} if self.gathers_behind_compute else set[str]()
        return frozenset({"collective_permute"} | gathers)

    @property
    def hbm_bytes_per_s(self) -> float:
        """Nominal memory bandwidth of one device."""
        return self.chip.hbm_gb_per_s * 1e9 / self.chip.devices_per_chip

    @property
    def hidden_percent(self) -> int:
        """What a scheduler's times hide of asynchronous collectives that do not start ahead of time; 0 of the hardware's own times."""
        share = self.scheduler.waited_share if self.is_scheduled and self.scheduler else None
        return 0 if share is None else 100 - round(100 * share)

    def copy_ns(self, bytes: Quantity) -> Quantity:
        """Time for `bytes` to be written and read again at the nominal bandwidth of memory, apart from any kernel.

        A scheduler takes it for nothing: a thousandth of it counts there, so that of what is equal to it the one is cheaper that copies
        less.
        """
        moved_ns = 2 * as_amount("bytes", bytes) * (1e9 / self.hbm_bytes_per_s)
        return moved_ns / self.own_share

    def stored_bytes(
        self,
        shapes: ArrayLike,
        element_bits: int,
        minor: MinorPair | None = None,
        *,
        is_temporary: bool = False,
    ) -> NDArray[np.int64]:
        """[count] bytes that tensors of these shapes, [count, rank], take in memory, each in its smallest layout; 0 without elements.

        `minor`: two kinds of dimensions of which the two minor ones must be, one of each; None leaves that to the compiler.
        `is_temporary`: in the heap, with its part of the gaps between buffers.

        Raises:
            HardwareError: shapes that are none, with a negative dimension or part of one, or of a pebibyte; elements of no bits; kinds of
                dimensions that the shapes do not have.
        """
        sizes = as_shapes(shapes, element_bits)
        if minor is not None and len(sizes):
            check_dims("minor", minor, sizes.shape[1])
        if self.tiles is None:
            return untiled_bytes(sizes, element_bits)
        found = self.tiles.stored_bytes(sizes, element_bits, minor)
        return self.tiles.with_gaps(found) if is_temporary else found

    def are_updated_as_made(
        self, parts: NDArray[Any], whole: Sequence[int], *, is_turned: bool
    ) -> NDArray[np.bool_]:
        """[K] of parts of these shapes that loops make of a sum, see `tiles`."""
        if self.tiles is None or not whole:
            return np.zeros(len(parts), dtype=np.bool_)
        return self.tiles.are_updated_as_made(parts, whole, is_turned=is_turned)

    def lie_across(self, shapes: NDArray[Any], element_bits: int) -> NDArray[np.bool_]:
        """Whether tensors of these shapes are stored column by column: see `Tiles`."""
        none = np.zeros(len(shapes), dtype=np.bool_)
        return none if self.tiles is None else self.tiles.lie_across(shapes, element_bits)

    def copied_bytes(
        self,
        shapes: NDArray[Any],
        element_bits: int,
        minor: MinorPair,
        *,
        is_read: bool = False,
        slices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Of temporary copies in layouts with those minor dimensions; 0 where the smallest layout takes as little, or the compiler keeps it
        (`tiles.pads_too_far`, of so many slices that are scattered, or `pads_too_far_to_read` of what rows are gathered from).
        """
        if self.tiles is None:
            return np.zeros(len(shapes), dtype=np.int64)
        padded, least = (self.tiles.stored_bytes(shapes, element_bits, dims) for dims in (minor, None))
        is_much = (
            pads_too_far_to_read(padded, least)
            if is_read
            else pads_too_far(padded, least, element_bits, self.hbm_bytes, slices)
        )
        is_copied = (padded > least) & ~is_much
        return np.where(is_copied, self.tiles.with_gaps(padded), 0)

    def reads_rows(self, shapes: NDArray[Any], element_bits: int, minor: MinorPair) -> NDArray[np.bool_]:
        """Whether rows are gathered from tables of these shapes in that layout, whatever they are stored in."""
        if self.tiles is None:
            return np.zeros(len(shapes), dtype=np.bool_)
        padded, least = (self.tiles.stored_bytes(shapes, element_bits, dims) for dims in (minor, None))
        return ~pads_too_far_to_read(padded, least)

    def updates_bytes(
        self,
        updates: tuple[NDArray[Any], int, MinorPair],
        table: tuple[NDArray[Any], int, MinorPair],
        stored: NDArray[np.int64],
        *,
        is_last: bool,
        is_alone: NDArray[np.bool_],
        has_gaps: bool = False,
    ) -> NDArray[np.int64]:
        """What a scatter takes beyond the table and what is stored for what it adds, in rows of slices as the table is.

        0 where that is `stored` in as many bytes and without gaps, or the table is not in rows (`tiles.pads_too_far`).

        Args:
            updates, table: shapes, bits of an element, minor dimensions of such rows.
            is_last: what is copied is gone by the time that the table is there.
            is_alone: nothing else reads it, so that it is made in rows.
            has_gaps: it is stored in rows that do not lie one behind the other, and copied from these.
        """
        if self.tiles is None:
            return np.zeros_like(stored)
        tiles, (shapes, bits, minor) = self.tiles, table
        slices = np.prod(updates[0][:, list(updates[2][1])], axis=1, dtype=np.int64)
        added = tiles.with_gaps(tiles.stored_bytes(*updates))
        in_rows, least = (tiles.with_gaps(tiles.stored_bytes(shapes, bits, dims)) for dims in (minor, None))
        is_copied = (has_gaps | (added > stored)) & ~pads_too_far(
            in_rows, least, bits, self.hbm_bytes, slices
        )
        gone = np.where(is_alone & (not has_gaps), stored, np.minimum(stored, in_rows) if is_last else 0)
        return np.where(is_copied, np.maximum(added - gone, 0), 0)

    def strip_bytes(
        self, shapes: NDArray[Any], element_bits: int, images: Images, taps: int
    ) -> NDArray[np.int64]:
        """Of temporary tensors that a compiler cuts into strips (`strips.in_strips`); 0 for the others."""
        cut, is_cut = in_strips(shapes, images, taps)
        return np.where(is_cut, self.stored_bytes(cut, element_bits, MINOR, is_temporary=True), 0)

    def worked_columns(
        self, images: NDArray[Any], width: NDArray[Any], taps: int, step: int
    ) -> NDArray[np.float64]:
        """How many columns of images a convolution works out for each that there is, see `strips`; 1 where the compiler makes none."""
        if self.tiles is None:
            return np.ones(len(images))
        return worked_columns(images, width, taps, step)

    def unpadded_bytes(self, shapes: NDArray[Any], element_bits: int) -> NDArray[np.int64]:
        """Of the elements of temporary tensors, with their part of the gaps between buffers."""
        found = untiled_bytes(shapes, element_bits)
        return found if self.tiles is None else self.tiles.with_gaps(found)

    def occupancy(
        self,
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        bytes: NDArray[np.int64],
        handed_over: NDArray[np.bool_],
        *,
        stays: ArrayLike,
    ) -> Occupancy:
        """What takes main memory when it holds the most, of what is alive in half-open intervals.

        What a compiler has in vector memory does not.

        `handed_over`: whether each is an argument or a result, which is in main memory. `stays`: [value, 5], the longest time in ns that
        each lies there between two kernels that make or read it; how many of these wait for memory; of the others how much longer their
        products take than memory, at the least, in ns; the end of its life for vector memory; whether elementwise work or a reduction made
        it, apart from any product. What is temporary has its part of the gaps that is usual (`stored_bytes`); where buffers that come and
        go leave larger ones, these count.
        """
        is_there = begin < end
        if self.vector_memory is not None:
            rows = np.asarray(stays, dtype=np.float64).reshape(-1, 5)
            waiting_ns, streaming, spare_ns, until, is_streamed = rows.T
            waits = waiting_ns > self.vector_memory.holds_for_ns(self.hbm_bytes_per_s)
            if self.vector_memory.leaves_products:
                waits |= is_streamed == 0
            moved = np.where(handed_over, 0, bytes)
            saved_ns = np.where(streaming > 0, streaming * moved / self.hbm_bytes_per_s * 1e9, -spare_ns)
            is_there &= handed_over | self.vector_memory.leaves(
                begin, until.astype(np.int64), moved, waits, saved_ns
            )
        in_heap = is_there & ~handed_over
        gaps = 0 if self.tiles is None else self.tiles.more_gaps(begin[in_heap], end[in_heap], bytes[in_heap])
        alive, time = most_alive(begin[is_there], end[is_there], bytes[is_there])
        return Occupancy(alive + gaps, is_there & (begin <= time) & (time < end), gaps)

    def covered_ns(self, product_ns: int) -> int:
        """What of sending beside a product of so many ns is not waited for: as many, or what a scheduler takes it for."""
        return (
            int(self.scheduler.covering_ratio * product_ns)
            if self.is_scheduled and self.scheduler
            else product_ns
        )

    def taken_pass_ns(self, bytes: int) -> float | None:
        """How long the compiler takes bytes to pass to the next device where it decides on a loop with a product, whose operations
        it compares at the nominal peak; None where that is not known.
        """
        rate = self.scheduler.pass_gb_per_s if self.scheduler else None
        return None if rate is None else bytes / rate

    def scheduled_product_ns(self, product_ns: float) -> float:
        """How long a product takes by the times of the compiler that decides what waits in vector memory (`occupancy`), by its least."""
        return product_ns if self.vector_memory is None else product_ns * self.vector_memory.product_ratio

    def peak_flop_per_s(self, dtype: str, unit: Unit = "matrix") -> float:
        """Nominal peak of one device for an MLIR element type; vector, where the matrix unit has not the type."""
        peak = compute.matrix_flop_per_ns(self.chip, dtype) if unit == "matrix" else None
        return 1e9 * (compute.vector_flop_per_ns(self.chip, dtype) if peak is None else peak)

    def place(
        self,
        mesh: MeshSizes | Mapping[str, int],
        topology: Sequence[int] | None = None,
        *,
        slices: int | None = None,
        placement: str | None = None,
    ) -> Communication:
        """The communication model of a mesh, given as (name, size) or size by name, major to minor, on a physical topology.

        Devices are numbered row-major on the mesh, and on a torus along its first dimension first, as jax does, unless `placement` says
        what each axis rides on, as in "x=1,y=0+2" (`notation`).
        `topology` counts chips: the torus's dimensions, or (chips of a node,) or (nodes, chips of each). By default it is a slice as
        they come, nearest to a cube (16 chips of v5e are 4x4, of v5p 2x2x4), where the mesh fits it; for nodes, the fullest nodes.
        `slices`: so many tori joined by the data centre network, major to the torus; by default 1 with a
        topology, and the fewest that hold the mesh without.

        Raises:
            HardwareError: a topology that the chips do not come in, or that the mesh does not divide, or a placement that
                names other axes or dimensions than there are, or does not use each of them once.
        """
        mesh = checked_mesh(mesh)
        topology = None if topology is None else as_sizes("topology", topology)
        slices = None if slices is None else as_whole("there are", slices, where="slices")
        network = outer_network(self.network, self.chip.devices_per_chip)
        if isinstance(self.topology, Torus):
            cores = self.chip.devices_per_chip
            placed = place_on_torus(
                mesh, topology, slices, self.topology, self.link, self.core_link, cores, network, placement
            )
            return (
                place_for_scheduler(placed, self.scheduler)
                if self.is_scheduled and self.scheduler
                else placed
            )
        if slices is not None:
            raise self._has_no_slices()
        return place_in_nodes(mesh, topology, self.topology, self.link, network, placement)

    def place_apart(self, mesh: MeshSizes | Mapping[str, int]) -> Communication:
        """As `place`, on a shape of a dimension for each axis, whether or not slices come in it; where the torus has none such, as `place`.

        Raises:
            HardwareError: as `place`.
        """
        mesh, own = checked_mesh(mesh), None
        if isinstance(self.topology, Torus):
            own = own_torus_shape([size for _, size in mesh], self.topology, self.chip.devices_per_chip)
        return self.place(mesh, None if own is None else own[::-1] or (1,))

    def placements(
        self,
        mesh: MeshSizes | Mapping[str, int],
        topology: Sequence[int] | None = None,
        *,
        slices: int | None = None,
    ) -> list[Communication]:
        """The models of all placements of a mesh that can differ in price (`distinct`), row-major first where there is one.

        Raises:
            HardwareError: as `place`; a topology on which no placement has the mesh.
        """
        mesh = checked_mesh(mesh)
        if topology is None:
            model = self.place(mesh, None, slices=slices)
        else:
            model = self.place(self._own_mesh(topology, slices), topology, slices=slices)
        where = model.placement
        found = distinct_placements(mesh, where.shape, where.names, model.dimension_kinds)
        if not found:
            sizes = ", ".join(f"{name}={size}" for name, size in mesh)
            raise HardwareError(
                f"{sizes} has no placement on {topology_text(where.shape, where.names)}",
                where="topology",
                fix="Give a topology of as many devices whose sizes the axes divide into.",
            )
        assert isinstance(model, TorusCommunication | SwitchedCommunication | ScheduledCommunication)
        return [dataclasses.replace(model, placement=placement) for placement in found]

    def compact_topology(self, devices: int, slices: int | None = None) -> tuple[tuple[int, ...], int | None]:
        """The shape nearest to a cube for so many devices, of one slice, and the slices; of nodes (nodes, chips of each) and None.

        Raises:
            HardwareError: the chips do not come in such a number.
        """
        devices = as_whole("devices is", devices, where="devices")
        slices = None if slices is None else as_whole("slices is", slices, where="slices")
        if not isinstance(self.topology, Torus):
            if slices is not None:
                raise self._has_no_slices()
            return default_node([devices], self.topology.node_chips), None
        cores = self.chip.devices_per_chip
        return compact_slices(devices, slices, self.topology, cores, has_network=self.network is not None)

    def _has_no_slices(self) -> HardwareError:
        return HardwareError(
            f"slices are for a torus, {self.name} has nodes",
            fix="Leave slices out, and give nodes and the chips of each as the topology, as in 2x8.",
        )

    def _own_mesh(self, topology: Sequence[int], slices: int | None) -> MeshSizes:
        """A mesh that lies row-major on a topology whatever its shape."""
        cores, topology = self.chip.devices_per_chip, as_sizes("topology", topology)
        shape = tuple(reversed(topology)) if isinstance(self.topology, Torus) else tuple(topology)
        return list(zip(map(str, range(len(shape) + 2)), (slices or 1, *shape, cores), strict=True))

    def all_gather_ns(self, bytes: Amount, axes: Sequence[int]) -> Amount:
        """`Communication.all_gather_ns` over axes of these sizes, each on dimensions of its own."""
        model, names = self._on_own_dimensions(axes)
        return model.all_gather_ns(bytes, names)

    def reduce_scatter_ns(self, bytes: Amount, axes: Sequence[int]) -> Amount:
        """`Communication.reduce_scatter_ns` over axes of these sizes, each on dimensions of its own."""
        model, names = self._on_own_dimensions(axes)
        return model.reduce_scatter_ns(bytes, names)

    def all_reduce_ns(self, bytes: Amount, axes: Sequence[int]) -> Amount:
        """`Communication.all_reduce_ns` over axes of these sizes, each on dimensions of its own."""
        model, names = self._on_own_dimensions(axes)
        return model.all_reduce_ns(bytes, names)

    def all_to_all_ns(self, bytes: Amount, axes: Sequence[int]) -> Amount:
        """`Communication.all_to_all_ns` over axes of these sizes, each on dimensions of its own."""
        model, names = self._on_own_dimensions(axes)
        return model.all_to_all_ns(bytes, names)

    def collective_permute_ns(self, bytes: Amount, axes: Sequence[int]) -> Amount:
        """`Communication.collective_permute_ns` over axes of these sizes, each on dimensions of its own."""
        model, names = self._on_own_dimensions(axes)
        return model.collective_permute_ns(bytes, names)

    @overload
    def kernel_ns(self, flops: float, bytes: float, dtype: str, *, unit: Unit = "vector") -> int: ...
    @overload
    def kernel_ns(
        self, flops: NDArray[Any], bytes: ArrayLike, dtype: str, *, unit: Unit = "vector"
    ) -> Integers: ...
    @overload
    def kernel_ns(
        self, flops: ArrayLike, bytes: NDArray[Any], dtype: str, *, unit: Unit = "vector"
    ) -> Integers: ...
    def kernel_ns(
        self, flops: ArrayLike, bytes: ArrayLike, dtype: str, *, unit: Unit = "vector"
    ) -> int | Integers:
        """Time of one kernel on one device: the longer of its operations and its memory traffic.

        `flops` count real operations, `bytes` what goes to and from memory; arrays broadcast. `unit`: where
        the operations run; a type that the matrix unit has not runs on the vector unit.
        """
        return whole_ns(self.kernel_roofline(flops, bytes, dtype, unit=unit).ns)

    @overload
    def matmul_ns(
        self, *, m: int, k: int, n: int, dtype: str, batch: int = 1, bytes: float | None = None
    ) -> int: ...
    @overload
    def matmul_ns(
        self,
        *,
        m: ArrayLike,
        k: ArrayLike,
        n: ArrayLike,
        dtype: str,
        batch: ArrayLike = 1,
        bytes: ArrayLike | None = None,
    ) -> int | Integers: ...
    def matmul_ns(
        self,
        *,
        m: ArrayLike,
        k: ArrayLike,
        n: ArrayLike,
        dtype: str,
        batch: ArrayLike = 1,
        bytes: ArrayLike | None = None,
    ) -> int | Integers:
        """Time of `batch` products of [m, k] by [k, n] on one device, sizes padded to the matrix unit's tile.

        Arrays broadcast. `bytes` None: both operands and the result once.
        """
        return whole_ns(self.matmul_roofline(m=m, k=k, n=n, dtype=dtype, batch=batch, bytes=bytes).ns)

    def kernel_roofline(
        self, flops: ArrayLike, bytes: ArrayLike, dtype: str, *, unit: Unit = "vector"
    ) -> Roofline:
        """The parts of `kernel_ns`, and which of them bounds the kernel.

        Raises:
            HardwareError: an unknown element type, or what is no amount (`amounts.as_amount`).
        """
        flops, bytes = as_amounts(flops=flops, bytes=bytes)
        if self.is_scheduled:
            return compute.product_at_peak(self.chip, flops if unit == "matrix" else 0 * flops, dtype)
        return compute.kernel_roofline(self.chip, flops, bytes, dtype, unit)

    def matmul_roofline(
        self,
        *,
        m: ArrayLike,
        k: ArrayLike,
        n: ArrayLike,
        dtype: str,
        batch: ArrayLike = 1,
        bytes: ArrayLike | None = None,
        rows: Sequence[Quantity] | None = None,
        in_turn: tuple[int, int] = (0, 1),
    ) -> Roofline:
        """The parts of `matmul_ns`, and which of them bounds the product; `rows`: elements of those of operands and result, None: k and n.

        `in_turn`: positions of a convolution's window that are gone through in turn, and places for it, which count towards k.

        Raises:
            HardwareError: an unknown element type, or what is no amount (`amounts.as_amount`).
        """
        positions, places = as_counts("in_turn", in_turn, (9, 16))
        if rows is not None:
            rows = [as_amount("rows", row) for row in as_list("rows", rows, "as in (4096, 4096)")]
        moved = {} if bytes is None else {"bytes": bytes}
        m, k, n, batch, *given = as_amounts(m=m, k=k, n=n, batch=batch, **moved)
        bytes = given[0] if given else None
        if self.is_scheduled:
            return compute.product_at_peak(self.chip, compute.scheduled_flops(m, k, n, batch, dtype), dtype)
        return compute.matmul_roofline(self.chip, m, k, n, batch, dtype, bytes, rows, (positions, places))

    def _on_own_dimensions(self, axes: Sequence[int]) -> tuple[Communication, list[str]]:
        mesh = [(str(index), size) for index, size in enumerate(as_sizes("axes", axes))]
        names = [name for name, _ in mesh]
        cores = self.chip.devices_per_chip
        return self.place_apart([*mesh, ("core", cores)] if cores > 1 else mesh), names
