"""From the groups of ops that a compiler fuses to kernels, in program order. Knows ops by name only where their buffers are special."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.mlir.listing import Listing, Op
from autoshard.program.additions import Addends, additions_of
from autoshard.program.fusion import Group, is_elementwise, is_reduction, matmul_roles, rule_of
from autoshard.program.linearity import linear_ways
from autoshard.program.records import Kernel, KernelShape, Use, Window
from autoshard.program.repeating import Repeatable, stored_operands
from autoshard.program.traffic import Apart, Segment, traffic
from autoshard.program.turning import turning_of
from autoshard.program.widths import Widths
from autoshard.sharding import OpShardingRule, TensorMapping, TensorType

ALIASES = frozenset(
    {"stablehlo.reshape", "stablehlo.bitcast_convert"}
    | {"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier"}
)
_IN_PLACE = ALIASES | {"stablehlo.dynamic_update_slice", "stablehlo.scatter", "stablehlo.transpose"}

Sites = Mapping[tuple[int, TensorMapping], Sequence[tuple[int, int]]]
"""(op, operand) of each read of a value with a mapping."""


@dataclass(frozen=True, slots=True)
class KernelMaker:
    """Makes kernels of groups, which it has to be given in program order.

    Attributes:
        made_once: values that no reader makes anew.
        permanent: values whose buffers nothing may write over.
        constants: values that are made of constants alone.
        joined: concatenations and sums that are made where they are read.
        segment: what the kernels since the last product have read.
        apart: what is stored as products are left to a library; None where they are not.
        roots: of values without a buffer, the stored ones that they are worked out from; grows with every kernel.
        repeated: the same of what has a buffer, but might be made anew by each reader; grows with every kernel.
    """

    listing: Listing
    made_once: frozenset[int]
    may_repeat: Repeatable
    permanent: frozenset[int]
    zeros: frozenset[int]
    widths: Widths
    addends: Addends
    constants: frozenset[int]
    joined: frozenset[int]
    segment: Segment
    apart: Apart | None
    roots: dict[int, frozenset[int]]
    repeated: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    interned: dict[KernelShape, KernelShape] = field(default_factory=dict[KernelShape, KernelShape])

    def make(self, group: Group) -> Kernel:
        root, sites = self.listing.ops[group.root], sites_of_group(group)
        read = [value for value, _ in sites]
        is_alias = self._is_alias(root, read)
        ways = () if group.demands else linear_ways(group, read, self.listing, self.zeros)
        additions = () if group.demands else additions_of(group, read, self.listing, self.addends)
        outputs = list(self._outputs(root))
        results = tuple(value for value, _ in outputs)
        uses = [
            (value, [operand for op, operand in found if op == group.root])
            for (value, _), found in sites.items()
        ]
        is_free = not self.constants.isdisjoint(root.results)
        reads, writes = self._traffic(root, uses, is_alias=is_alias, is_free=is_free)
        demands = () if root.demand is None else (root.demand, *root.other_demands)
        rule = rule_of(root, self.listing)
        shape = KernelShape(
            name=root.name,
            rule=OpShardingRule(
                rule.factors, tuple(mapping for _, mapping in sites), tuple(mapping for _, mapping in outputs)
            ),
            operands=tuple(map(self._type, read)),
            results=tuple(map(self._type, results)),
            flops=0 if is_free else sum(self.listing.ops[op].flops for op in group.ops),
            matmul_roles=matmul_roles(rule) if root.is_matmul else "",
            reads=reads,
            writes=writes,
            demands=(*demands, *[None] * (len(results) - len(demands))),
            windows=tuple(_windows(root, uses)),
            linear=tuple(way.operands for way in ways),
            leaves_addends=root.leaves_addends,
            manual_axes=root.manual_axes,
            collective=root.collective,
            travels=tuple(self.widths.of_use(value, tuple(found)) for (value, _), found in sites.items()),
            leaves=tuple(map(self.widths.of_value, results)),
            additions=tuple(addition for addition, _ in additions),
            within=tuple(dict.fromkeys(group.demands)),
            maximum_dtype=self.widths.of_maximum(root),
            is_turned=root.is_matmul
            and (turning := turning_of(root, self.listing)) is not None
            and turning.is_exchange,
        )
        return Kernel(
            shape=self.interned.setdefault(shape, shape),
            ops=tuple(sorted(group.ops)),
            uses=tuple(Use(value, tuple(found)) for (value, _), found in sites.items()),
            results=results,
            inner=tuple((v, m) for v, m in group.mapping.items() if v not in root.results),
            free_reads=tuple((op, operand, mapping) for op, operand, _, mapping in group.free_reads),
            time=group.root,
            repeat=root.repeat,
            is_in_place=root.name in _IN_PLACE or (is_elementwise(root) and self.apart is None),
            is_alias=is_alias,
            ways=ways,
            added=tuple(added for _, added in additions),
        )

    def _is_alias(self, root: Op, read: Sequence[int]) -> bool:
        """Whether the result has no buffer; notes what it is worked out from."""
        if not self.joined.isdisjoint(root.results):
            return True
        is_renaming = root.name in ALIASES or not self.may_repeat.transposed.isdisjoint(root.results)
        is_alias = is_renaming and len(read) == 1
        if not root.results or (not is_alias and root.results[0] in self.made_once):
            return is_alias
        (result, *_) = root.results
        stored = stored_operands(root, read, self.listing, self.roots, self.permanent)
        is_read_whole = self.may_repeat.is_stored_whole(result, stored)
        may_be_repeated = self.may_repeat.includes(root, len(read)) and not is_read_whole
        is_stored = self.apart is not None and result in self.apart.stored
        is_recomputed = may_be_repeated and self.may_repeat.is_recomputed(root, stored, self.listing)
        is_alias = is_alias or (is_recomputed and not is_stored)
        if is_alias:
            self.roots[result] = stored
        elif may_be_repeated:
            self.repeated[result] = stored
        return is_alias

    def _outputs(self, root: Op) -> Iterator[tuple[int, TensorMapping]]:
        """The root's results that are tensors: ranked ones, then scalars."""
        rule = rule_of(root, self.listing)
        types = [self.listing.values[value].type for value in root.results]
        for value, mapping, type_ in zip(root.results, rule.results, types, strict=False):
            if type_ is not None and type_.rank:
                yield value, mapping
        for value, type_ in zip(root.results, types, strict=True):
            if type_ is not None and not type_.rank:
                yield value, ()

    def _traffic(
        self, root: Op, uses: Sequence[tuple[int, Sequence[int]]], *, is_alias: bool, is_free: bool
    ) -> tuple[tuple[int, ...], int]:
        """How often what it reads comes from memory, and what it makes goes there."""
        if is_alias:
            self.segment.make_where_read(root, [value for value, _ in uses], self.listing, self.roots)
        if is_alias or is_free:
            return (0,) * len(uses), 0
        is_fused = is_elementwise(root) or is_reduction(root)
        return traffic(root, uses, self.roots, self.segment, self.apart, is_fused=is_fused)

    def _type(self, value: int) -> TensorType:
        type_ = self.listing.values[value].type
        assert type_ is not None
        return type_


def sites_of_group(group: Group) -> Sites:
    """Where each operand of a kernel is read."""
    found: dict[tuple[int, TensorMapping], list[tuple[int, int]]] = {}
    for op, operand, value, mapping in group.reads:
        found.setdefault((value, mapping), []).append((op, operand))
    return found


def _windows(root: Op, uses: Sequence[tuple[int, Sequence[int]]]) -> Iterator[Window]:
    """The root's windows over what the kernel reads, which is not what it makes anew."""
    for window in root.windows:
        for use, (_, operands) in enumerate(uses):
            if window.operand in operands:
                yield window if window.operand == use else replace(window, operand=use)
