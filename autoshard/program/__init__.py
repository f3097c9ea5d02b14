"""A module as the planner sees it: kernels with sharding rules, flows, lifetimes."""

from autoshard.program.accumulation import AddedUp, sums_after_loops
from autoshard.program.additions import PASSED, AddedValues, Addition, scattered_addends
from autoshard.program.batch import Batch, batch_arguments
from autoshard.program.build import KernelReads, build_program, kernel_reads
from autoshard.program.carrying import donated_pairs, warnings_of_state
from autoshard.program.deferred import Deferring, Lives
from autoshard.program.demands import (
    Demand,
    GroupDemand,
    demands_of,
    group_demands_of,
    priority_levels,
    restricted,
)
from autoshard.program.fusion import DOTS, free_values
from autoshard.program.groups import both, with_group_demands
from autoshard.program.headed import lie_for_heads
from autoshard.program.linearity import LinearWay
from autoshard.program.looped import LoopedResults
from autoshard.program.minor import minor_of_scattered
from autoshard.program.offloaded import Offloading, gather_kernels
from autoshard.program.outputs import (
    SharedReads,
    gathered_as,
    lone_operands,
    moved_for_products,
    product_reads,
    repeated_values,
    stored_beside,
    sums_rows,
)
from autoshard.program.pace import KernelTimes, Pace, Stay
from autoshard.program.prefetch import (
    Ahead,
    first_readers,
    in_argument_buffers,
    largest_alike,
    prefetchable,
)
from autoshard.program.records import (
    MOVES,
    RESULT_SITE,
    Compiler,
    FilterGradient,
    Flow,
    FlowKind,
    FlowSource,
    Images,
    Kernel,
    KernelShape,
    Lifetime,
    MinorDims,
    Program,
    Strips,
    Transform,
    Use,
    Whole,
    Window,
)
from autoshard.program.renamed import lies_as_read
from autoshard.program.reuse import SHORT_SHARE
from autoshard.program.scatters import stays_scatter
from autoshard.program.slicing import sliced_values
from autoshard.program.sources import Sources
from autoshard.program.strips import strip_cut
from autoshard.program.unreduced import refuse_unsound, without_unreduced
from autoshard.program.unsplit import with_whole_ops

__all__ = [
    "DOTS",
    "MOVES",
    "PASSED",
    "RESULT_SITE",
    "SHORT_SHARE",
    "AddedUp",
    "AddedValues",
    "Addition",
    "Ahead",
    "Batch",
    "Compiler",
    "Deferring",
    "Demand",
    "FilterGradient",
    "Flow",
    "FlowKind",
    "FlowSource",
    "GroupDemand",
    "Images",
    "Kernel",
    "KernelReads",
    "KernelShape",
    "KernelTimes",
    "Lifetime",
    "LinearWay",
    "Lives",
    "LoopedResults",
    "MinorDims",
    "Offloading",
    "Pace",
    "Program",
    "SharedReads",
    "Sources",
    "Stay",
    "Strips",
    "Transform",
    "Use",
    "Whole",
    "Window",
    "batch_arguments",
    "both",
    "build_program",
    "demands_of",
    "donated_pairs",
    "first_readers",
    "free_values",
    "gather_kernels",
    "gathered_as",
    "group_demands_of",
    "in_argument_buffers",
    "kernel_reads",
    "largest_alike",
    "lie_for_heads",
    "lies_as_read",
    "lone_operands",
    "minor_of_scattered",
    "moved_for_products",
    "prefetchable",
    "priority_levels",
    "product_reads",
    "refuse_unsound",
    "repeated_values",
    "restricted",
    "scattered_addends",
    "sliced_values",
    "stays_scatter",
    "stored_beside",
    "strip_cut",
    "sums_after_loops",
    "sums_rows",
    "warnings_of_state",
    "with_group_demands",
    "with_whole_ops",
    "without_unreduced",
]
