"""When each value occupies memory of its own, in program order.

A kernel's result exists from its time to its last use; a value that dies at a kernel which cannot write in place overlaps
that kernel's result. Arguments stay for the whole program unless donated, and so do the results that take over no argument's buffer: a
runtime hands both over before the program runs (XLA reports them apart from temporary memory). Carried state is held once: a loop's
new value, or a donated argument's successor, takes the old one's buffer when the old one is dead by then. A reshape's result is its
operand's buffer, and so is what a loop carries unchanged, what passes a barrier, and what enters or leaves a manual computation. What
branches hand on and nobody reads (zeros beside the picked elements of `jnp.diagonal`) is removed.
Elementwise results take no memory where a compiler rather repeats the work: see `repeating.Repeatable` and `ample`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard.mlir.listing import DataFlow, Listing
from autoshard.program.counters import Counters
from autoshard.program.handing import handing_flows
from autoshard.program.records import Kernel, Lifetime

_SCATTER = "stablehlo.scatter"


def lifetimes(
    listing: Listing,
    kernels: Sequence[Kernel],
    pairs: Sequence[tuple[int, int]],
    free: frozenset[int],
    counters: Counters,
    finished: Mapping[int, int],
    apart: frozenset[int],
    early: Mapping[int, int],
) -> dict[int, Lifetime]:
    """Half-open lifetimes of every value that an argument, a data-flow op or a kernel defines, ranked or not.

    Args:
        finished: of work done as a product leaves the matrix unit, the name under which each result's kernel reads the product.
        apart: results that write over nothing (`pairs.stored_apart`).
        early: when kernels run that do not run in their place, by their times.
    """
    end_of_program = len(listing.ops) + 1
    handing = handing_flows(listing, free)
    begin: dict[int, int] = {argument.value: 0 for argument in listing.arguments}
    begin.update((flow.target, flow.begin) for flow in listing.data_flows)
    for kernel in kernels:
        begin.update(dict.fromkeys(kernel.results, early.get(kernel.time, kernel.time)))
    last = _last_uses(listing, kernels, handing, begin, finished, apart, early)
    aliases = {value for kernel in kernels if kernel.is_alias for value in kernel.results}
    aliases |= {flow.target for flow in handing}
    aliases |= {flow.target for flow in listing.data_flows if flow.kind == "case" and flow.target not in last}
    end = {value: max(last.get(value, 0), begin[value] + 1) for value in begin}
    for flow in listing.data_flows:
        end[flow.target] = max(end[flow.target], flow.end)
    shared = aliases | counters.passing | _sharing_a_buffer(listing, kernels, handing, pairs, begin, last)
    for value in permanent_arguments(listing, pairs):
        end[value] = end_of_program
    results = returned(listing, kernels, handing, pairs) & begin.keys()
    within = written_over(listing, kernels, results, last)
    begin.update(counters.begin)
    end.update(counters.end)
    begin.update(dict.fromkeys(results, 0))
    return {
        value: Lifetime(begin[value], end[value], False, None if value in shared else within[value])
        if value in within
        else Lifetime(begin[value], end[value], value not in shared)
        for value in begin
        if value not in free
    }


def permanent_arguments(listing: Listing, pairs: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Arguments whose buffers stay for the whole program: those not donated, and carried state."""
    return undonated_arguments(listing, pairs) | _carried(listing, pairs)


def undonated_arguments(listing: Listing, pairs: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Arguments that are the caller's when the program is done, as they were."""
    return frozenset({a.value for a in listing.arguments if not a.is_donated} - _carried(listing, pairs))


def _carried(listing: Listing, pairs: Sequence[tuple[int, int]]) -> set[int]:
    return {listing.arguments[argument].value for _, argument in pairs}


def returned(
    listing: Listing, kernels: Sequence[Kernel], handing: Sequence[DataFlow], pairs: Sequence[tuple[int, int]]
) -> frozenset[int]:
    """Values whose buffers become results that take over no argument's: they are written into memory that is there from the start."""
    renamed, carried = _renamed(kernels, handing), {result for result, _ in pairs}
    found = {_behind(r.value, renamed) for i, r in enumerate(listing.results) if i not in carried}
    return frozenset(found - {argument.value for argument in listing.arguments})


def copied_results(
    listing: Listing,
    kernels: Sequence[Kernel],
    handing: Sequence[DataFlow],
    pairs: Sequence[tuple[int, int]],
    free: frozenset[int],
) -> frozenset[int]:
    """Numbers of the results that take memory of their own, since the value returned has none or keeps its own.

    Those are constants, arguments, and what another result returns too (seen in what libtpu 0.0.51 compiles for v5e).
    """
    renamed, carried = _renamed(kernels, handing), [result for result, _ in pairs]
    kept = {argument.value for argument in listing.arguments} | free
    kept |= {_behind(listing.results[number].value, renamed) for number in carried}
    found: set[int] = set()
    for number, result in enumerate(listing.results):
        value = _behind(result.value, renamed)
        if number not in carried:
            found.update([number] if value in kept else [])
            kept.add(value)
    return frozenset(found)


def _renamed(kernels: Sequence[Kernel], handing: Sequence[DataFlow]) -> dict[int, int]:
    """Of values that are another one's buffer, that one."""
    renamed = {k.results[0]: k.uses[0].value for k in kernels if k.is_alias and len(k.uses) == 1}
    return renamed | {flow.target: flow.sources[0].value for flow in handing}


def written_over(
    listing: Listing, kernels: Sequence[Kernel], results: Collection[int], last: Mapping[int, int]
) -> dict[int, int]:
    """What elementwise kernels on the way to a result write over in its memory: one operand of each, that dies there and is no larger.

    Args:
        last: the end of each value's life.

    Returns:
        The result in whose memory each of those values lies.
    """
    made_by = {kernel.results[0]: kernel for kernel in kernels if kernel.results}
    found: dict[int, int] = {}
    for result in results:
        value: int | None = result
        while value is not None and (kernel := made_by.get(value)) is not None and kernel.is_in_place:
            room = stored_bytes(listing, result)
            dying = [
                use.value for use in kernel.uses if use.value in made_by and last[use.value] == kernel.time
            ]
            value = next((v for v in dying if stored_bytes(listing, v) <= room and v not in results), None)
            if value is not None:
                found[value] = result
    return found


def has_buffer(value: int, lives: Mapping[int, Lifetime]) -> bool:
    """Whether it takes memory of its own."""
    return value in lives and lives[value].is_own_buffer


def stored_bytes(listing: Listing, value: int) -> int:
    """Of the whole value; 0 for a token."""
    type_ = listing.values[value].type
    return type_.num_bytes if type_ is not None else 0


def recompute(
    kernels: Sequence[Kernel], lives: Mapping[int, Lifetime], repeatable: Mapping[int, frozenset[int]]
) -> tuple[tuple[Kernel, ...], dict[int, Lifetime]]:
    """Take the buffers from elementwise results whose operands are stored at least as long: a compiler short of memory repeats them.

    `repeatable` has the buffers behind the operands of each elementwise result. An operand that is itself repeated does not count as
    stored, so that no chain of work is repeated.
    """
    found = dict(lives)
    done: list[Kernel] = []
    for kernel in kernels:
        buffers = repeatable.get(kernel.results[0]) if kernel.results else None
        if buffers and all(_outlives(found.get(b), found[kernel.results[0]]) for b in buffers):
            found[kernel.results[0]] = replace(found[kernel.results[0]], is_own_buffer=False, within=None)
            done.append(replace(kernel, is_alias=True))
        else:
            done.append(kernel)
    return tuple(done), found


def keep_until(value: int, end: int, made: Mapping[int, Kernel], lives: dict[int, Lifetime]) -> None:
    """A value, and what it is a name for."""
    left, seen = [value], {value}
    while left:
        one = left.pop()
        if one in lives and lives[one].end < end:
            lives[one] = replace(lives[one], end=end)
        if one in made and made[one].is_alias:
            behind = {use.value for use in made[one].uses} - seen
            seen |= behind
            left.extend(behind)


def slices_in_loops(
    kernels: Sequence[Kernel], listing: Listing, handing: Sequence[DataFlow]
) -> dict[int, frozenset[int]]:
    """The buffer behind each slice at an index that changes: of what a loop steps through, XLA cuts slices out where they are read."""
    handed = {flow.target: flow.sources[0].value for flow in handing}
    return {
        kernel.results[0]: frozenset({_behind(kernel.uses[0].value, handed)})
        for kernel in kernels
        if listing.ops[kernel.time].name == "stablehlo.dynamic_slice" and kernel.uses and kernel.results
    }


def _outlives(buffer: Lifetime | None, value: Lifetime) -> bool:
    return buffer is not None and buffer.is_own_buffer and buffer.end >= value.end


def _last_uses(
    listing: Listing,
    kernels: Sequence[Kernel],
    handing: Sequence[DataFlow],
    begin: dict[int, int],
    finished: Mapping[int, int],
    apart: frozenset[int],
    early: Mapping[int, int],
) -> dict[int, int]:
    """Half-open end of the last read of each value; reads inside a loop of a value from outside count until the loop's end."""
    around: dict[int, list[tuple[int, int]]] = {}
    for loop in {(flow.begin, flow.end) for flow in listing.data_flows if flow.kind == "while"}:
        for inside in range(*loop):
            around.setdefault(inside, []).append(loop)

    def loop_end(value: int, time: int) -> int:
        defined = begin.get(value, 0)
        return max((stop for start, stop in around.get(time, ()) if defined < start), default=time)

    last: dict[int, int] = {}
    for flow in listing.data_flows:
        for source in flow.sources:
            last[source.value] = max(last.get(source.value, 0), source.time)
    for result in listing.results:
        last[result.value] = len(listing.ops) + 1
    for step in _backwards(kernels, handing):
        if isinstance(step, DataFlow):
            source = step.sources[0]
            kept = step.end if step.kind == "while" else 0
            time = max(last.get(step.target, 0), kept, loop_end(source.value, source.time))
            last[source.value] = max(last.get(source.value, 0), time)
            continue
        writes_over = step.is_in_place and apart.isdisjoint(step.results)
        runs = early.get(step.time, step.time)
        time = runs if writes_over else runs + 1
        if step.is_alias:
            time = max(last.get(step.results[0], 0), time)
        product = finished.get(step.results[0]) if step.is_alias else None
        for use in step.uses:
            is_read_once = product is not None and use.value != product
            is_read_once |= step.shape.name == _SCATTER and (step.time, 0) not in use.sites
            end = runs + 1 if is_read_once else time
            last[use.value] = max(last.get(use.value, 0), end, loop_end(use.value, runs))
    return last


def _backwards(kernels: Sequence[Kernel], handing: Sequence[DataFlow]) -> Iterator[Kernel | DataFlow]:
    """Kernels and what hands buffers on, readers before what they read; a flow at time t comes before the kernel at t."""
    flows = list(handing)
    for kernel in reversed(kernels):
        while flows and flows[-1].begin > kernel.time:
            yield flows.pop()
        yield kernel
    yield from reversed(flows)


def _sharing_a_buffer(
    listing: Listing,
    kernels: Sequence[Kernel],
    handing: Sequence[DataFlow],
    pairs: Sequence[tuple[int, int]],
    begin: dict[int, int],
    last: dict[int, int],
) -> set[int]:
    """Values written into the buffer of the state that they replace; another argument that is returned as the state is not."""
    shared: set[int] = set()
    arguments = {argument.value for argument in listing.arguments}
    handed = {flow.target: flow.sources[0].value for flow in handing}
    for result, argument in pairs:
        value, state = _behind(listing.results[result].value, handed), listing.arguments[argument].value
        if value in arguments or value == state:
            continue
        if last.get(state, 0) <= begin.get(value, 0) + 1:
            shared.add(value)
    loop_of = {flow.target: flow for flow in listing.data_flows if flow.kind == "while"}
    last_inside = dict.fromkeys(loop_of, 0)
    for kernel in kernels:
        for use in kernel.uses:
            flow = loop_of.get(use.value)
            if flow is not None and kernel.time < flow.end:
                last_inside[use.value] = max(last_inside[use.value], kernel.time + 1)
    for target, source in handed.items():
        flow = loop_of.get(source)
        if flow is not None and begin[target] <= flow.end:
            last_inside[source] = max(last_inside[source], last.get(target, 0))
    for target, flow in loop_of.items():
        for source in flow.sources:
            value = _behind(source.value, handed)
            time = begin.get(value, -1)
            if flow.begin <= time < flow.end and last_inside[target] <= time + 1:
                shared.add(value)
    return shared


def _behind(value: int, handed: Mapping[int, int]) -> int:
    """The value whose buffer one that was handed on or renamed is."""
    while value in handed:
        value = handed[value]
    return value
