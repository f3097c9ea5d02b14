"""A module as plain records, free of MLIR objects: what `mlir.read` makes and `program` analyses.

Ops are listed in program order with the bodies of loops and branches in place; the position of an op in that list is its time. Calls
are gone (cloned per call and spliced in). A data-flow op (while, case, if, optimization_barrier, named_computation,
manual_computation) is not in the list: each value that flows through it is a `DataFlow`, whose target stands for the op's result and
for the block arguments that always carry the same sharding. Types in a manual computation are those of one shard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.sharding import AxisRef, Crossing, Mesh, OpShardingRule, TensorSharding, TensorType

RESULT_SITE = -(1 << 40)

Site = tuple[int, int]
"""A use: (op, operand); (-1 - data flow, source) for what a data-flow op is handed; (RESULT_SITE, result) for what main returns."""


@dataclass(frozen=True, slots=True)
class Value:
    type: TensorType | None  # None: a token or another type that cannot be sharded
    name: str  # jax.arg_name or location where there is one, else ""


@dataclass(frozen=True, slots=True)
class Window:
    """Windows over a dimension of an operand: window i begins at row i * stride - low of the dilated dimension.

    What slice, pad and reverse read are windows of one row; a reverse has stride -1.
    """

    dim: int
    count: int
    size: int
    stride: int
    low: int  # rows of padding before the first row
    dilation: int  # of the window: how far its rows are apart
    base_dilation: int  # of the operand
    is_scattered: bool = False
    """Results lie on the operand's rows, as in select_and_scatter, not one at each window."""
    operand: int = 0


@dataclass(frozen=True, slots=True)
class UserCollective:
    """A collective that the user wrote: what it does, and over which axes.

    `groups` has one list of axes, or, where the devices that the user named are no whole axes, all lists of axes that are as many: the
    costliest is paid for. As for reshards, the bytes that count are the operands', for an all_gather the results'.
    """

    kind: str  # as in mlir.collective
    groups: tuple[tuple[AxisRef, ...], ...]
    bytes_per_result_byte: int = 1  # of a reduce_scatter the size of its groups
    is_exact: bool = True  # whether the axes are those that the user named
    is_sum: bool = False  # an all-reduce that adds
    scatter_dim: int = -1  # of a reduce_scatter

    @property
    def is_move(self) -> bool:
        """Whether its results are elements of its operands, and nothing is summed or compared."""
        return self.kind in ("all_gather", "all_to_all", "collective_permute")


@dataclass(frozen=True, slots=True)
class Op:
    name: str  # as MLIR has it, "stablehlo.dot_general"
    operands: tuple[int, ...]  # values
    results: tuple[int, ...]
    rule: OpShardingRule | None  # shared object for equal rules; None: Shardy and autoshard know none
    flops: int  # of the whole, unsharded op
    is_matmul: bool  # on the matrix unit (dot, convolution) rather than the vector unit
    repeat: int  # how often it runs: product of the trip counts of the loops around it
    region: int  # innermost loop body, branch or function that holds it; 0 is main
    location: str
    demand: TensorSharding | None = None  # sharding that the user wrote on the first ranked result
    other_demands: tuple[TensorSharding, ...] = ()  # and on the ranked results after that
    windows: tuple[Window, ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()  # sets of operands in which it is jointly linear
    leaves_addends: bool = False  # split reduction factors leave partial sums
    is_zero: bool = False  # a constant of zeros
    reducer: str = ""  # the op that a reduction over elements applies; "" where that is not one op
    manual_axes: tuple[AxisRef, ...] = ()  # of the manual computations around it, which it cannot use
    collective: UserCollective | None = None
    has_default_precision: bool = False  # a matrix product that the hardware may compute in its default one
    called: str = ""  # the target of a custom call; "" of other ops


@dataclass(frozen=True, slots=True)
class Source:
    """A use of `value` at `time`, `repeat` times, that hands it on."""

    value: int
    time: int
    repeat: int


@dataclass(frozen=True, slots=True)
class DataFlow:
    kind: str  # "while", "case", "optimization_barrier", "named_computation", "manual_computation"
    target: int
    sources: tuple[Source, ...]
    begin: int  # time from which the target exists
    end: int  # the target is alive at least until here (a loop keeps what it carries)
    repeat: int
    location: str
    demand: TensorSharding | None = None
    manual_axes: tuple[AxisRef, ...] = ()
    """Of the manual computations around it, and of its own: none is planned."""
    crossing: Crossing | None = None  # of a manual computation
    body: int = -1  # of a loop, the time when its body begins, behind its condition


@dataclass(frozen=True, slots=True)
class Argument:
    value: int
    name: str
    demand: TensorSharding | None
    is_donated: bool
    aliased_result: int | None  # index of the result that reuses its buffer
    location: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    value: int
    name: str
    demand: TensorSharding | None
    location: str = ""  # of the function


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A value that the user put into a group."""

    value: int
    name: str  # of the value, or the op that makes it and where
    group_id: int
    where: str

    def __str__(self) -> str:
        return f"{self.name} (sdy.sharding_group group_id={self.group_id} at {self.where})"


@dataclass(frozen=True, slots=True)
class ShardingGroup:
    """Values that are to have one sharding, of one shape, each once."""

    members: tuple[GroupMember, ...]


@dataclass(frozen=True)
class Listing:
    mesh: Mesh
    module_hash: str  # of the module as the user gave it
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    data_flows: tuple[DataFlow, ...]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    warnings: tuple[str, ...]  # ops without a rule, loops without a known trip count
    groups: tuple[ShardingGroup, ...] = ()  # those that share a member are one
    memberships: tuple[GroupMember, ...] = ()  # as the user wrote them, one by one
    firsts: Mapping[int, int] = field(default_factory=dict[int, int])
    """Of values that equal ops compute again: the first of them."""

    def first_of(self, value: int) -> int:
        """The value that is the same and computed first."""
        return self.firsts.get(value, value)

    @cached_property
    def sites(self) -> Mapping[int, tuple[Site, ...]]:
        """Every use of each value that has any: of ops, then of data flows, then what main returns."""
        found: dict[int, list[Site]] = {}
        for number, op in enumerate(self.ops):
            for position, value in enumerate(op.operands):
                found.setdefault(value, []).append((number, position))
        for number, flow in enumerate(self.data_flows):
            for position, source in enumerate(flow.sources):
                found.setdefault(source.value, []).append((-1 - number, position))
        for number, result in enumerate(self.results):
            found.setdefault(result.value, []).append((RESULT_SITE, number))
        return {value: tuple(sites) for value, sites in found.items()}

    @cached_property
    def readers(self) -> Mapping[int, Sequence[Op]]:
        """The ops that read each value that any does, each once, in program order."""
        found: dict[int, list[Op]] = {}
        for op in self.ops:
            for value in dict.fromkeys(op.operands):
                found.setdefault(value, []).append(op)
        return found
