"""What the planner sees of a module: kernels with one sharding rule each, and the values that flow between them.

A `Kernel` is an op, or a tree of elementwise ops that a compiler fuses into one loop nest; its `rule` is the composition of the
rules of its ops, so the planner treats both alike. A `Flow` is a place where a value takes a sharding without computing: a function
argument or result, a value that a loop or branch carries, or one that enters or leaves a computation.
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from autoshard.mlir.listing import RESULT_SITE, Listing, UserCollective, Window
from autoshard.program.accumulation import AddedUp
from autoshard.program.additions import AddedValues, Addition
from autoshard.program.beside import Beside
from autoshard.program.linearity import LinearWay
from autoshard.program.widths import Widths
from autoshard.sharding import AxisRef, Crossing, OpShardingRule, TensorMapping, TensorSharding, TensorType

__all__ = [
    "MOVES",
    "RESULT_SITE",
    "FilterGradient",
    "Flow",
    "FlowKind",
    "FlowSource",
    "Images",
    "Kernel",
    "KernelShape",
    "Lifetime",
    "MinorDims",
    "Program",
    "Strips",
    "Transform",
    "Use",
    "Whole",
    "Window",
]

_CONVOLUTION, _LONG = "stablehlo.convolution", 1024
MOVES = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
"""Ops that are themselves the move to what they demand: one reshard of what they read, for Shardy merges a chain of them."""


@dataclass(frozen=True, slots=True)
class Use:
    """A kernel's read of a value from outside; operand `i` of the kernel's rule is its i-th use."""

    value: int
    sites: tuple[tuple[int, int], ...]  # (op, operand index) in the listing, all with the same mapping


@dataclass(frozen=True, slots=True)
class KernelShape:
    """All of a kernel that its strategies and their prices depend on; equal shapes are enumerated once."""

    name: str  # of the root op
    rule: OpShardingRule
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    flops: int
    matmul_roles: str  # of each factor of a contraction: m, k, n or b (batch); "" for other kernels
    reads: tuple[int, ...]  # how often each operand's bytes come from memory
    writes: int  # how often the results' bytes go to memory
    demands: tuple[TensorSharding | None, ...]  # the user's, on each result
    windows: tuple[Window, ...] = ()  # over dimensions of the operands
    linear: tuple[tuple[int, ...], ...] = ()  # sets of operands in which it is jointly linear
    leaves_addends: bool = False  # split reduction factors leave partial sums
    manual_axes: tuple[AxisRef, ...] = ()  # which no strategy may use
    collective: UserCollective | None = None
    travels: tuple[TensorType, ...] = ()  # in what type each operand may reach it from other devices
    leaves: tuple[TensorType, ...] = ()  # and each result may leave for others
    additions: tuple[Addition, ...] = ()  # of operands that may be addends
    within: tuple[tuple[TensorMapping, TensorSharding], ...] = ()
    """The user's demands on what it makes inside."""
    near_reads: tuple[int, ...] = ()  # of the `reads` in a loop, those spared where the operand stays near
    is_near: bool = False  # whether the results of a trip may stay near
    sums_later: bool = False  # what it leaves to sum may be added up first, in each trip of a loop
    maximum_dtype: str = ""
    """Of a maximum over split dimensions that goes between devices in another type than it has."""
    loop_bytes: int = 0  # what may stay near in the loop at once, split over all devices; 0 outside loops
    is_turned: bool = False  # a product that only a transposition reads, which XLA makes as that lies

    def sent(self, number: int) -> TensorType:
        """The result as it is reduced over devices."""
        type_ = self.results[number]
        return TensorType(type_.shape, self.maximum_dtype) if self.maximum_dtype else type_

    @property
    def is_matmul(self) -> bool:
        return bool(self.matmul_roles)

    @property
    def dtype(self) -> str:
        """What it computes in: the first operand's of a product, unless it is of constants alone, else the first result's."""
        tensors = self.operands + self.results if self.is_matmul else self.results + self.operands
        return tensors[0].dtype if tensors else "f32"

    @property
    def traffic_bytes(self) -> int:
        """To and from memory in one run, on all devices together."""
        read = sum(count * type_.num_bytes for count, type_ in zip(self.reads, self.operands, strict=True))
        return read + self.writes * sum(type_.num_bytes for type_ in self.results)

    @property
    def slid_factors(self) -> frozenset[int]:
        """Of the dimensions that windows slide over."""
        return frozenset(
            factor for window in self.windows for factor in self.rule.operands[window.operand][window.dim]
        )

    @property
    def in_turn(self) -> tuple[int, int]:
        """Positions of a convolution's window, and places for it, where XLA for GPUs has no kernel that splits what they sum.

        cuDNN goes through them in turn, where they are a thousand and more as far as is known. XLA takes a convolution with more positions
        than places for a gradient by filters, but no dilated one's, whose places lie apart (less than patches of an image do), and no
        transposed one's, whose operand is dilated.
        """
        positions = math.prod(window.size for window in self.windows)
        if self.name != _CONVOLUTION or positions < _LONG:
            return 0, 1
        slid = [window for window in self.windows if window.size > 1 or window.count > 1]
        is_gradient = all(window.size > max(window.count, window.stride) for window in slid)
        is_apart = any(window.stride > 1 or window.base_dilation > 1 for window in slid)
        return (positions, math.prod(window.count for window in slid)) if is_gradient and is_apart else (0, 1)

    @property
    def is_fused_product(self) -> bool:
        """Whether its only reader is worked out as the product leaves the matrix unit."""
        return self.is_matmul and not self.writes


@dataclass(frozen=True, slots=True)
class Compiler:
    """What kernels and lifetimes depend on of the compiler.

    XLA for TPUs runs products inside others (`nested`), makes Fourier transforms of products (`transforms`) and all states of random
    numbers at once (`counters`); of `keeps_narrow_operands`, `keeps_grouped_operands`, `keeps_costly_operands`, `keeps_erfc`,
    `doubles_exponentials`, `repeats_packed_erfc` and `narrows_packed` see `costmodels.tiles`. Over an operand that dies there XLA writes
    what is worked out as a convolution leaves the matrix unit, and if it `ends_products_in_place` any product
    (`nested.ended_in_place`); of one that `picks_behind_loops` see `picking`, of a device's memory `rowwise`, of how many devices there
    are `concatenated`. One whose products are apart (XLA for GPUs, which leaves them to a library) stores what they read and make, and
    writes no elementwise result over what it is made of; see also `traffic` and `ample`.
    """

    is_xla_tpu: bool
    keeps_narrow_operands: bool = False
    ends_products_in_place: bool = False
    keeps_grouped_operands: bool = False
    keeps_costly_operands: bool = False
    keeps_erfc: bool = False
    keeps_wide_results: bool = False  # see `storing`
    nested_flop_per_byte: int | None = None  # see `nested_gain`
    nested_from_channels: int = 0  # see `nested`
    doubles_exponentials: bool = False
    repeats_packed_erfc: bool = False
    narrows_packed: bool = False
    masks_apart: bool = False  # see `windowed`
    stores_masks: bool = False  # see `windowed`
    updates_early: bool = False  # see `mlir.early`
    lays_out_early: bool = False  # see `laid_out`
    scatters_last: bool = False  # see `deferred`
    picks_behind_loops: bool = False
    gathers_apart: bool = False  # on SparseCores, see `offloaded`
    products_apart: bool = False
    memory_bytes: int | None = None
    devices: int = 1


XLA_TPU = Compiler(is_xla_tpu=True)


@dataclass(frozen=True, slots=True)
class Kernel:
    shape: KernelShape
    ops: tuple[int, ...]  # in program order; the last is the root
    uses: tuple[Use, ...]
    results: tuple[int, ...]  # the root's ranked results, in the order of the rule's
    inner: tuple[tuple[int, TensorMapping], ...]  # values that never leave the kernel
    free_reads: tuple[tuple[int, int, TensorMapping], ...]
    """(op, operand, mapping) of recomputed values that it reads."""
    time: int
    repeat: int
    is_in_place: bool  # a result may take the buffer of an operand that dies here
    is_alias: bool
    """The result has no buffer: its readers read the operands (reshape, cheap elementwise work)."""
    ways: tuple[LinearWay, ...] = ()  # those of the shape, with what is inside
    added: tuple[AddedValues, ...] = ()  # the additions of the shape


class FlowKind(Enum):
    ARGUMENT = "argument"
    RESULT = "result"
    CARRIED = "carried"  # through a loop, a branch or a barrier


@dataclass(frozen=True, slots=True)
class FlowSource:
    value: int
    time: int
    repeat: int
    site: tuple[int, int]  # data-flow sites are (-1 - data flow, source), result sites (RESULT_SITE, result)


@dataclass(frozen=True, slots=True)
class Flow:
    kind: FlowKind
    value: int  # of the argument or carried value; of a result, the value returned
    type: TensorType
    sources: tuple[FlowSource, ...]
    demands: tuple[TensorSharding, ...]  # the user's, on either end
    must_divide: bool
    name: str
    written: tuple[str, ...] = ()  # each demand as a sentence, with its place
    manual_axes: tuple[AxisRef, ...] = ()  # which only demands may name
    crossing: Crossing | None = None  # into or out of a manual computation: the sources are on its other side
    is_handed_on: bool = False  # it is the source's buffer, or the copy that a change of sharding makes

    @property
    def least(self) -> TensorSharding | None:
        """What must be even where nothing is demanded."""
        return None if self.crossing is None else self.crossing.least


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a value exists, half-open, and whether in a buffer of its own or in that of a value it replaces or renames."""

    begin: int
    end: int
    is_own_buffer: bool
    within: int | None = None
    """The result in whose memory it lies, as far as it is no larger than that once both are sharded."""


MinorDims = tuple[tuple[int, ...], tuple[int, ...], bool | Literal["paired"]]
"""The two minor dimensions of a value in memory are one of the first and one of the second, in either order unless the last says that the
first is minor to the second; `"paired"`: of each the ones at the same place, whichever pair takes less."""


class Images(NamedTuple):
    """Dimensions of a value that holds images; the others are more spatial ones."""

    batch: int
    width: int
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilterGradient:
    """A convolution of images with what goes back to them, which sums over the batch."""

    operands: tuple[Images, Images]
    taps: int  # columns of the filter
    first: int  # time of the first of the computation's
    end: int  # half-open, of the last
    pads_strides: bool = False  # of a convolution with strides that pads its images


class Transform(NamedTuple):
    """What a Fourier transform stores beside its operand and result while it is worked out."""

    whole: TensorType  # real numbers over the whole length
    halves: int  # how many halves of that
    kept: int  # and how many as long as the result lives


class Whole(NamedTuple):
    """What is stored between two times, half-open, though it has no buffer as a value."""

    begin: int
    end: int
    type: TensorType
    dims: MinorDims | None = None
    is_value: bool = False  # it is the value itself, and not stored twice where that has a buffer
    cut: tuple[int, int] | None = None
    """A dimension in groups of so many elements; the groups are one more dimension, the last."""
    beside: Beside | None = None  # only where that is so


class Sliced(NamedTuple):
    """How what has no buffer is stored whole where a device takes a part of it.

    type: with the elements of the value, as wide as what is in front of the slice.
    is_long: whether so for a single reader too.
    """

    type: TensorType
    is_long: bool


class Picked(NamedTuple):
    """What labels are picked from, beside what goes back to the logits, which a product reads.

    sums: of each float32 sum of what elementwise work makes of the product, the dimensions that it goes over.
    """

    time: int  # when it is made
    type: TensorType
    words: frozenset[int]  # dimensions along which labels are picked
    is_copy: bool  # of the logits, and no logarithms
    is_fused: bool = False  # with what goes back
    sums: frozenset[frozenset[int]] = frozenset()

    def is_beside(self, read: TensorSharding, made: TensorSharding, settled: TensorSharding) -> bool:
        """Whether both are there at once, where the product reads what goes back as `read` and its partial sums `made` settle so."""
        if not read.divides(self.type.shape):
            return False
        if not any(read.axes[dim] for dim in self.words):
            return self.is_fused
        cut = {dim for dim, axes in enumerate(settled.axes) if axes}
        return made.num_shards == 1 and any(cut <= dims for dims in self.sums)


class RowCopy(NamedTuple):
    """Of an argument, in rows of whole slices, from `begin` until `end`."""

    dims: MinorDims
    begin: int
    end: int
    slices: int  # that are scattered then
    is_of_whole: bool = False  # none is made where the rows are split


class Gathered(NamedTuple):
    """How a gather takes rows of whole slices.

    Attributes:
        table: how the table lies meanwhile, of which there is a copy so from `begin` until the gather where it `is_copied`.
        rows: the same of what the gather makes, where that is laid out anew behind it, until `end`.
        worked: when elementwise work on these rows is stored beside them, until then; `end` where none is.
    """

    table: MinorDims
    is_copied: bool
    rows: MinorDims | None
    begin: int
    end: int
    worked: int


class ScatteredRows(NamedTuple):
    """What a scatter makes, in rows of whole slices.

    Attributes:
        end: until when.
        slices: how many it adds; `operand` of the kernel with what it adds, -1 if none has, along these of its dimensions.
    """

    dims: MinorDims
    end: int
    slices: int
    operand: int
    along: tuple[int, ...]


class LaidOut(NamedTuple):
    """Of an argument, in another layout, as if when the program begins and until `end`, split as the update reads it."""

    type: TensorType
    dims: MinorDims
    end: int


class Updates(NamedTuple):
    """What a scatter adds to a table, in slices.

    Where it lies in the smallest layout, as products, exchanges and loops leave it, XLA copies it into rows, or makes it so if nothing
    else reads it (libtpu 0.0.52, v5e, v5p and v6e: 17 small programs of 8 to 96 columns; a graph network's messages, of which a device has
    8 columns, take 16 times as much).
    """

    operand: int  # of the kernel
    dims: MinorDims  # of rows of slices
    written: MinorDims | None  # as it is made, if a kernel does
    is_alone: bool  # nothing else reads it
    is_last: bool  # nothing else reads it later
    has_gaps: bool  # as it lies it is no other name of such rows (`rowwise`)


@dataclass(frozen=True, slots=True)
class Spread:
    """What is as large as images, as a statistic that is spread over them, and read where `value` is; `taps` of the convolution that made
    them.
    """

    value: int
    images: Images
    taps: int
    dtype: str
    begin: int
    end: int


class ScatteredSum(NamedTuple):
    """What a scatter makes, once it has been summed over devices (`scattered`), stored in this type.

    is_turned: what is summed is laid out column by column first; otherwise the sum is narrower than it.
    """

    type: TensorType
    is_turned: bool


class ImageCopy(NamedTuple):
    """Of an argument that a convolution reads first, as it lies until `end`."""

    type: TensorType
    dims: MinorDims
    end: int


@dataclass(frozen=True, slots=True)
class Strips:
    """What a compiler stores besides where it cuts few images into strips (`strips.find_strips`)."""

    filters: dict[int, FilterGradient] = field(default_factory=dict[int, FilterGradient])  # by time
    kept: dict[int, Images] = field(default_factory=dict[int, Images])  # values that have no buffer otherwise
    spread: dict[int, tuple[Spread, ...]] = field(default_factory=dict[int, tuple[Spread, ...]])  # by value
    crossing: dict[int, tuple[Spread, ...]] = field(default_factory=dict[int, tuple[Spread, ...]])  # by value


@dataclass(frozen=True, slots=True)
class Program:
    """Kernels and flows of a module, how long values live, and what a compiler stores beside them.

    Attributes:
        cloneable: values recomputed for each use: constants, iota, what is made of those, broadcasts.
        lifetimes: of every value that a kernel or flow defines, where the compiler is short of memory.
        ample_lifetimes: the same where it has memory to spare.
        lent_lifetimes: the same where it has some, but results lend theirs (`reuse`).
        carried_pairs: (result index, argument index).
        widths: in what type values travel.
        stored: in what type they are stored while they come and go.
        zeros: values that are zero everywhere.
        addends: values that may be left as addends for the addition that reads them.
        minor_dims: of values whose layout a matrix unit decides.
        returned: values whose buffers are the program's results.
        copied_results: numbers of results that take memory beside the value they return.
        sums_after_loops: of values that each trip of a loop adds up, what a compiler may sum after it.
        wholes: what is made whole besides, by the values whose sharding it has.
        scattered_rows: of what scatters make, how it lies meanwhile.
        row_copies: of arguments that are copied into such rows.
        laid_out: arguments that are copied into the layout of a gradient, by (time, operand) of the kernel that updates with it.
        gathered: by the times of gathers, what is there in rows beside what they read and make.
        image_copies: of arguments that convolutions read, by the times of the first ones.
        padding_names: names of buffers that take what they pad of their elements.
        worked_on: see `renamed.worked_on`.
        scattered_sums: of what scatters make whose sum over devices takes memory of its own.
        pieces: of values that are made in pieces where slices are read, bytes of these for each element.
        as_made: elementwise names that lie as the matrix unit made what they name.
        transforms: what Fourier transforms store meanwhile, by what they make.
        indexed: of what loops carry and write at an index of an inner dimension, and of what that starts from, how it lies.
        merged_scatters: what scatters make that a later one makes with its own, where they are not left as addends.
        generated: what is made of constants alone and stored on every device.
        picked: see `picking.picked_beside`.
        scatters_last: see `deferred`.
        gathers_apart: see `offloaded`.
        packed: as what values are stored where their predicates are packed, see `packed`.
        hoisted_casts: of arguments, as long as loops step through them, where they are not gathered for these.
        selected: scatters that are selections without a buffer, also as they are moved; cut for their readers they are stored whole.
        sliced: elementwise results without a buffer, and how they are stored whole where parts of them are taken, see `sliced`.
        weights_of_heads: see `headed`.
        scattered_updates: by the times of scatters.
        made_at_start: see `prefetch.made_at_start`.
        early: see `reported.run_early`.
        of_one: see `softmaxes.scores_of_one`.
    """

    listing: Listing
    kernels: tuple[Kernel, ...]
    flows: tuple[Flow, ...]
    cloneable: frozenset[int]
    lifetimes: dict[int, Lifetime]
    ample_lifetimes: dict[int, Lifetime]
    lent_lifetimes: dict[int, Lifetime]
    num_times: int
    carried_pairs: tuple[tuple[int, int], ...]
    widths: Widths = field(compare=False)
    stored: Widths = field(compare=False)
    zeros: frozenset[int] = frozenset()
    addends: frozenset[int] = frozenset()
    minor_dims: dict[int, MinorDims] = field(default_factory=dict[int, MinorDims])
    returned: frozenset[int] = frozenset()
    copied_results: frozenset[int] = frozenset()
    sums_after_loops: dict[int, AddedUp] = field(default_factory=dict[int, AddedUp])
    wholes: dict[int, tuple[Whole, ...]] = field(default_factory=dict[int, tuple[Whole, ...]])
    scattered_rows: dict[int, ScatteredRows] = field(default_factory=dict[int, ScatteredRows])
    row_copies: dict[int, RowCopy] = field(default_factory=dict[int, RowCopy])
    laid_out: dict[tuple[int, int], tuple[LaidOut, ...]] = field(
        default_factory=dict[tuple[int, int], tuple[LaidOut, ...]]
    )
    gathered: dict[int, Gathered] = field(default_factory=dict[int, Gathered])
    image_copies: dict[int, ImageCopy] = field(default_factory=dict[int, ImageCopy])
    padding_names: frozenset[int] = frozenset()
    worked_on: dict[int, int] = field(default_factory=dict[int, int])
    strips: Strips = field(default_factory=Strips)
    scattered_sums: dict[int, ScatteredSum] = field(default_factory=dict[int, ScatteredSum])
    pieces: dict[int, int] = field(default_factory=dict[int, int])
    as_made: frozenset[int] = frozenset()
    transforms: dict[int, Transform] = field(default_factory=dict[int, Transform])
    indexed: dict[int, MinorDims] = field(default_factory=dict[int, MinorDims])
    merged_scatters: frozenset[int] = frozenset()
    generated: tuple[Whole, ...] = ()
    picked: dict[tuple[int, int], Picked] = field(default_factory=dict[tuple[int, int], Picked])
    scatters_last: bool = False
    gathers_apart: bool = False
    packed: dict[int, TensorType | None] = field(default_factory=dict[int, TensorType | None])
    selected: frozenset[int] = frozenset()
    sliced: dict[int, Sliced] = field(default_factory=dict[int, Sliced])
    weights_of_heads: dict[int, MinorDims] = field(default_factory=dict[int, MinorDims])
    hoisted_casts: dict[int, tuple[Whole, ...]] = field(default_factory=dict[int, tuple[Whole, ...]])
    scattered_updates: dict[int, Updates] = field(default_factory=dict[int, Updates])
    made_at_start: dict[int, int] = field(default_factory=dict[int, int])
    early: dict[int, int] = field(default_factory=dict[int, int])
    of_one: dict[int, TensorType] = field(default_factory=dict[int, TensorType])
