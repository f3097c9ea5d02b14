"""A plan put into a walked module: shardings on every op, and a reshard wherever a value changes sharding.

`Emission` says how a change of sharding and an op's own sharding are written; the two output forms differ in that only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autoshard.mlir.context import Value, ir
from autoshard.mlir.listing import Listing
from autoshard.mlir.manual import written_sharding
from autoshard.mlir.row_products import Broadcasts
from autoshard.mlir.signature import attributes_of, set_attributes
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.variants import Choices
from autoshard.mlir.walk import SHARDING, Handoff, Walked, scope_chain
from autoshard.sharding import PRODUCT, TensorSharding

WITH_SHARDING = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
_SCALAR = TensorSharding(())
_BARRIER = "stablehlo.optimization_barrier"


Gathers = Callable[[int, int, TensorSharding, TensorSharding, TensorSharding], bool]
"""Whether an op gathers an operand (number, position), held and read so, for a result that is made so, while it runs."""


@dataclass(frozen=True, slots=True)
class Emission:
    change: str  # the op that changes a sharding
    annotates_ops: bool
    pinned: frozenset[int] = frozenset()
    """Values that get their settled sharding by a change even where it is the produced one."""
    gathers: Gathers | None = None
    transposed: frozenset[int] = frozenset()  # ops that transpose what is told apart from what others read


@dataclass(frozen=True, slots=True)
class _Use:
    """A ranked operand of an op or handoff, with what the plan wants there."""

    user: ir.Operation
    scope: int
    position: int
    value: Value
    number: int
    demand: TensorSharding
    is_pinned: bool = False  # handed to a data flow whose sharding is pinned
    op: int = -1  # the user's number, of an op


@dataclass(frozen=True, slots=True)
class Change:
    """An op put in to bring a value from one sharding to another."""

    op: ir.Operation
    before: TensorSharding
    after: TensorSharding


def emit(
    walked: Walked, listing: Listing, choices: Choices, shardings: Shardings, emission: Emission
) -> list[Change]:
    """Write the plan into the walked module, in place; what was put in where a value changes sharding."""
    emitter = _Emitter(walked, listing, choices, shardings, emission)
    for event in emitter.events():
        emitter.meet(event)
    emitter.place_groups()
    emitter.annotate_flows()
    emitter.annotate_main()
    return emitter.changes


class _Emitter:
    """One pass through a module in program order; every copy that it makes dominates the uses that take it."""

    def __init__(
        self, walked: Walked, listing: Listing, choices: Choices, shardings: Shardings, emission: Emission
    ) -> None:
        self._walked, self._listing, self._choices = walked, listing, choices
        self._shardings, self._emission = shardings, emission
        self._return = walked.terminator
        self._ranks = [value.type.rank if value.type is not None else 0 for value in listing.values]
        self._flows = self._flows_by_user()
        self._chains = [scope_chain(walked.scopes, scope) for scope in range(len(walked.scopes))]
        self._settled: dict[Value, Value] = {}
        self._variants: dict[tuple[Value, TensorSharding], Value] = {}
        self._copies: dict[tuple[Value, TensorSharding, int, int], Value] = {}
        self._shared: dict[Value, Value] = {}
        self._equal = {*listing.firsts, *listing.firsts.values()}
        self._made: dict[int, list[TensorSharding]] = {}
        self._broadcasts = Broadcasts(listing, choices.operand)
        self._users_of_shared = self._find_users_of_shared()
        self._left = frozenset(filter(self._is_left, range(len(self._ranks))))
        self.changes: list[Change] = []

    def events(self) -> Iterator[int | Handoff]:
        """Op numbers and handoffs in program order."""
        handoffs = iter(self._walked.handoffs)
        handoff = next(handoffs, None)
        for index in range(len(self._walked.ops) + 1):
            while handoff is not None and handoff.time == index:
                yield handoff
                handoff = next(handoffs, None)
            if index < len(self._walked.ops):
                yield index

    def meet(self, event: int | Handoff) -> None:
        if isinstance(event, int) and self._is_recomputed_op(event):
            self._recompute(event)
            return
        apart = self._numbers_of_op(event) if isinstance(event, int) else {}
        if any(apart.values()) or not self._reads_as_made(event):
            # gathers made anew last: what passes a barrier with them is ready then
            for use in sorted(self._uses(event), key=self._again):
                version = self._told_apart(use, self._version(use), apart.get(use.position, 0))
                if version is not use.value:
                    use.user.operands[use.position] = version
        if isinstance(event, int):
            op, results = self._walked.ops[event], self._listing.ops[event].results
            self._annotate(op, [self._choices.produced(value) for value in results])

    def _is_left(self, number: int) -> bool:
        """Whether a value stays as its op makes it until it is read."""
        if self._choices.is_recomputed(number) or number in self._emission.pinned:
            return False
        return self._choices.settled(number) == self._choices.produced(number)

    def _reads_as_made(self, event: int | Handoff) -> bool:
        """Whether it is an op that reads all of its operands so, as most do."""
        return isinstance(event, int) and all(
            not self._ranks[number]
            or (
                number in self._left
                and self._choices.operand(event, position) == self._choices.settled(number)
            )
            for position, number in enumerate(self._listing.ops[event].operands)
        )

    def _is_recomputed_op(self, index: int) -> bool:
        results = self._listing.ops[index].results
        return bool(results) and self._choices.is_recomputed(results[0])

    def _uses(self, event: int | Handoff) -> Iterator[_Use]:
        if isinstance(event, Handoff):
            yield from self._handed_on(event)
            return
        op, scope, numbers = (
            self._walked.ops[event],
            self._walked.op_scopes[event],
            self._listing.ops[event].operands,
        )
        if not any(self._ranks[number] for number in numbers):
            return
        for position, (value, number) in enumerate(zip(op.operands, numbers, strict=True)):
            if self._ranks[number]:
                demand = self._choices.operand(event, position)
                yield _Use(op, scope, position, value, number, demand, op=event)

    def _handed_on(self, handoff: Handoff) -> Iterator[_Use]:
        user = handoff.user
        is_return = user == self._return
        flows = self._flows.get(user, {})
        for position, value in enumerate(user.operands):
            number = self._walked.ids[value]
            if not self._ranks[number]:
                continue
            if is_return:
                yield _Use(user, handoff.scope, position, value, number, self._choices.result(position))
            elif position in flows:
                flow, source = flows[position]
                is_pinned = self._walked.flows[flow].target in self._emission.pinned
                demand = self._choices.source(flow, source)
                yield _Use(user, handoff.scope, position, value, number, demand, is_pinned)

    def _recompute(self, index: int) -> None:
        """One copy of the op for each sharding that its users want, the first in its own place."""
        listed, op, scope = self._listing.ops[index], self._walked.ops[index], self._walked.op_scopes[index]
        wanted = self._choices.wanted_of(listed.results[0])
        operands = list(op.operands)
        copies = [op]
        for _ in wanted[1:]:
            copies.append(op.clone(ir.InsertionPoint.after(copies[-1])).operation)
        for copy, sharding in zip(copies, wanted, strict=True):
            variant = self._choices.variant(listed, sharding)
            apart = self._number_of_copy(listed.results[0], sharding)
            for position, number in enumerate(listed.operands):
                if self._ranks[number]:
                    use = _Use(copy, scope, position, operands[position], number, variant.operands[position])
                    copy.operands[position] = self._told_apart(use, self._version(use), apart)
                    apart = 0
            self._annotate(copy, [variant.made])
            made: Value = copy.result
            if variant.made != sharding:
                at = ir.InsertionPoint.after(copy)
                if not self._emission.annotates_ops:
                    made = self._change(made, variant.made, variant.made, at)
                made = self._change(made, variant.made, sharding, at)
            self._variants[op.result, sharding] = made

    def _numbers_of_op(self, index: int) -> dict[int, int]:
        """By operand that tells the op, or what XLA makes of that operand, from equal ones: as of `_number_of_copy`.

        So is a constant half of complex numbers, as of what goes back to a real part: XLA makes real products of the halves before it
        partitions, and that of the constant was made as its result is split, for which the other operand was gathered whole.
        """
        op = self._listing.ops[index]
        numbers = {} if self._emission.annotates_ops else self._broadcasts.numbers(index)
        first = next((position for position, number in enumerate(op.operands) if self._ranks[number]), None)
        if index in self._emission.transposed:
            numbers[0] = 1
        if op.name == "stablehlo.complex" and not self._emission.annotates_ops:
            numbers |= {n: 1 for n, half in enumerate(op.operands) if self._choices.is_recomputed(half)}
        if first is not None and op.results and op.results[0] in self._equal:
            number = self._number_of_copy(op.results[0], self._choices.produced(op.results[0]))
            numbers[first] = max(numbers.get(first, 0), number)
        return numbers

    def _number_of_copy(self, value: int, sharding: TensorSharding) -> int:
        """Which of the shardings in which the op and those equal to it are made; 0 is the first."""
        if self._emission.annotates_ops:
            return 0
        made = self._made.setdefault(self._listing.first_of(value), [])
        if sharding not in made:
            made.append(sharding)
        return made.index(sharding)

    def _told_apart(self, use: _Use, value: Value, number: int) -> Value:
        """The operand behind so many constraints that change nothing: equal ops XLA makes one, and sends what the others make."""
        for _ in range(number):
            value = self._change(value, use.demand, use.demand, ir.InsertionPoint(use.user))
        return value

    def _version(self, use: _Use) -> Value:
        """The value as the use demands it, from what there is or by one more change right before the user."""
        found = self._unpinned_version(use)
        if not use.is_pinned:
            return found
        return self._change(found, use.demand, use.demand, ir.InsertionPoint(use.user))

    def _unpinned_version(self, use: _Use) -> Value:
        value, demand = use.value, use.demand
        if self._choices.is_recomputed(use.number):
            return self._variants[value, demand]
        if demand == self._choices.settled(use.number):
            return self._settled_value(value, use.number)
        base = self._settled_value(value, use.number)
        shared = self._choices.shared(use.number)
        if shared is not None:
            base = self._shared_copy(value, base, self._choices.settled(use.number), shared)
            if demand == shared:
                return base
        if self._is_gathered_in_product(use, shared or self._choices.settled(use.number)):
            return base
        again = self._again(use)
        for outer in self._chains[use.scope]:
            made = self._copies.get((value, demand, outer, again))
            if made is not None:
                return made
        before = shared if shared is not None else self._choices.settled(use.number)
        if again:
            base = self._behind_barrier(base, before, use, again)
        made = self._change(base, before, demand, ir.InsertionPoint(use.user))
        self._copies[value, demand, use.scope, again] = made
        return made

    def _behind_barrier(self, value: Value, sharding: TensorSharding, use: _Use, again: int) -> Value:
        """What nobody takes for the value itself.

        XLA makes one of all barriers of a value, and of barriers behind each other, but for those that something else passes too: from the
        second on what the reader takes besides. The first has none, so that what is gathered behind it can be on its way before.
        """
        at = ir.InsertionPoint(use.user)
        beside = None if again == 1 or self._emission.annotates_ops else self._beside(use)
        passed = [value] if beside is None else [value, use.user.operands[beside]]
        for _ in range(again if self._emission.annotates_ops else 1):
            types = [one.type for one in passed]
            barrier = ir.Operation.create(_BARRIER, types, passed, loc=value.location, ip=at)
            self._annotate_each(barrier, [sharding])
            passed = list(barrier.results)
        if beside is not None:
            use.user.operands[beside] = passed[1]
        return passed[0]

    def _beside(self, use: _Use) -> int | None:
        """Another operand of the reader, which has been brought to its sharding."""
        mine = self._again(use)
        return next(
            (
                position
                for position, other in enumerate(use.user.operands)
                if other != use.value and self._choices.again(use.op, position) < mine
            ),
            None,
        )

    def _again(self, use: _Use) -> int:
        """The number of the gather, where it is to be made anew."""
        return self._choices.again(use.op, use.position) if use.op >= 0 else 0

    def _settled_value(self, value: Value, number: int) -> Value:
        settled = self._choices.settled(number)
        if settled == self._choices.produced(number) and number not in self._emission.pinned:
            return value
        if value not in self._settled:
            base, at, produced = value, _after_definition(value), self._choices.produced(number)
            if settled != produced and not (
                self._emission.annotates_ops or self._is_scattered(value, number)
            ):
                base = self._change(base, produced, produced, at)
            self._settled[value] = self._change(base, produced, settled, at)
        return self._settled[value]

    def _is_scattered(self, value: Value, number: int) -> bool:
        """Whether XLA may scatter the sum while the product runs, which it does not do where the whole sum is constrained."""
        is_product = isinstance(value, ir.OpResult) and value.owner.name == PRODUCT
        return is_product and self._choices.may_be_scattered(number)

    def _is_gathered_in_product(self, use: _Use, held: TensorSharding) -> bool:
        """Whether XLA may gather the operand while the product runs, which it does not do where the whole operand is constrained."""
        if self._emission.gathers is None or use.op < 0 or use.user.name != PRODUCT:
            return False
        made = self._choices.produced(self._listing.ops[use.op].results[0])
        return self._emission.gathers(use.op, use.position, held, use.demand, made)

    def _shared_copy(
        self, value: Value, base: Value, settled: TensorSharding, sharding: TensorSharding
    ) -> Value:
        if value not in self._shared:
            at = ir.InsertionPoint(self._before_all(self._users_of_shared[value]))
            self._shared[value] = self._change(base, settled, sharding, at)
        return self._shared[value]

    def _before_all(self, users: Sequence[tuple[ir.Operation, int, bool]]) -> ir.Operation:
        """The op of the innermost scope around all users that comes before those that take the copy or holds the first."""
        op, scope = next((op, scope) for op, scope, takes in users if takes)
        common = next(
            s for s in self._chains[scope] if all(s in self._chains[other] for _, other, _ in users)
        )
        while scope != common:
            op, scope = self._walked.scopes[scope].owner, self._walked.scopes[scope].parent
        return op

    def _find_users_of_shared(self) -> dict[Value, list[tuple[ir.Operation, int, bool]]]:
        """(op, scope, whether it takes the copy): one outside a loop that reads the value as it settles keeps the copy for those in it
        outside, as it is paid.
        """
        shared = {n for n in range(len(self._ranks)) if self._choices.shared(n) is not None}
        users: dict[Value, list[tuple[ir.Operation, int, bool]]] = {}
        for event in self.events() if shared else ():
            if isinstance(event, int) and shared.isdisjoint(self._listing.ops[event].operands):
                continue
            for use in self._all_uses(event):
                if use.number in shared:
                    takes = use.demand != self._choices.settled(use.number)
                    users.setdefault(use.value, []).append((use.user, use.scope, takes))
        return users

    def _all_uses(self, event: int | Handoff) -> Iterator[_Use]:
        """Uses, those of recomputed ops for each of their copies."""
        if isinstance(event, Handoff) or not self._is_recomputed_op(event):
            yield from self._uses(event)
            return
        listed, op, scope = self._listing.ops[event], self._walked.ops[event], self._walked.op_scopes[event]
        for wanted in self._choices.wanted_of(listed.results[0]):
            variant = self._choices.variant(listed, wanted)
            for position, (value, number) in enumerate(zip(op.operands, listed.operands, strict=True)):
                if self._ranks[number]:
                    yield _Use(op, scope, position, value, number, variant.operands[position])

    def _flows_by_user(self) -> dict[ir.Operation, dict[int, tuple[int, int]]]:
        """Which source of which flow each operand of a handoff is."""
        found: dict[ir.Operation, dict[int, tuple[int, int]]] = {}
        for number, flow in enumerate(self._walked.flows):
            for index, source in enumerate(flow.sources):
                found.setdefault(source.user, {})[source.operand] = (number, index)
        return found

    def _change(
        self, value: Value, before: TensorSharding, after: TensorSharding, at: ir.InsertionPoint
    ) -> Value:
        attributes = {"sharding": self._shardings.attribute(after)}
        made = ir.Operation.create(
            self._emission.change, [value.type], [value], attributes, loc=value.location, ip=at
        )
        self.changes.append(Change(made, before, after))
        return made.result

    def _annotate(self, op: ir.Operation, shardings: Sequence[TensorSharding]) -> None:
        if op.name in WITH_SHARDING:
            if shardings[0].rank:
                op.attributes["sharding"] = self._shardings.attribute(shardings[0])
        elif not (SHARDING in op.attributes and self._shardings.device_of(op.attributes[SHARDING], "")):
            self._annotate_each(op, shardings)

    def _annotate_each(self, op: ir.Operation, shardings: Sequence[TensorSharding]) -> None:
        if self._emission.annotates_ops and any(sharding.rank for sharding in shardings):
            op.attributes[SHARDING] = self._shardings.per_value(shardings)
        elif SHARDING in op.attributes:
            del op.attributes[SHARDING]

    def place_groups(self) -> None:
        """Groups tie the values as they settle; where ops have no sharding of their own, the changes say it all."""
        for op in self._walked.grouped:
            number = self._walked.ids[op.operands[0]]
            if not self._emission.annotates_ops:
                op.erase()
            elif self._ranks[number]:
                op.operands[0] = self._settled_value(op.operands[0], number)

    def annotate_flows(self) -> None:
        written: dict[tuple[ir.Operation, str], list[TensorSharding]] = {}
        for flow in self._walked.flows:
            key = (flow.owner, flow.sharding_attribute)
            planned = self._choices.produced(flow.target)
            written.setdefault(key, []).append(written_sharding(flow, planned, self._shardings))
        for (owner, key), shardings in written.items():
            if key != SHARDING:
                owner.attributes[key] = self._shardings.per_value(shardings)
            else:
                self._annotate_each(owner, shardings)

    def annotate_main(self) -> None:
        arguments = [self._choices.produced(argument.value) for argument in self._listing.arguments]
        results = [self._choices.result(index) for index in range(len(self._listing.results))]
        for key, shardings in (("arg_attrs", arguments), ("res_attrs", results)):
            each = [dict(one) for one in attributes_of(self._walked.main, key, len(shardings))]
            for attributes, sharding in zip(each, shardings, strict=True):
                if sharding.rank:
                    attributes[SHARDING] = self._shardings.attribute(sharding)
            set_attributes(self._walked.main, key, each)


def _after_definition(value: Value) -> ir.InsertionPoint:
    if isinstance(value, ir.OpResult):
        return ir.InsertionPoint.after(value.owner.operation)
    return ir.InsertionPoint.at_block_begin(ir.BlockArgument(value).owner)
