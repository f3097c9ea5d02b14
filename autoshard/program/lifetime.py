"""When each value occupies memory of its own, in program order.

A kernel's result exists from its time to its last use; a value that dies at a kernel which cannot write in place overlaps
that kernel's result. Arguments stay for the whole program unless donated. Carried state is held once: a loop's new value, or a
donated argument's successor, takes the old one's buffer when the old one is dead by then. A reshape's result is its operand's buffer.
Elementwise results take no memory where a compiler rather repeats the work: see `fusion.is_recomputed` and `recompute`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing
from autoshard.program.records import Kernel, Lifetime


def lifetimes(
    listing: Listing, kernels: Sequence[Kernel], pairs: Sequence[tuple[int, int]], free: frozenset[int]
) -> dict[int, Lifetime]:
    """Half-open lifetimes of every value that an argument, a data-flow op or a kernel defines, ranked or not."""
    end_of_program = len(listing.ops) + 1
    begin: dict[int, int] = {argument.value: 0 for argument in listing.arguments}
    begin.update((flow.target, flow.begin) for flow in listing.data_flows)
    for kernel in kernels:
        begin.update(dict.fromkeys(kernel.results, kernel.time))
    last = _last_uses(listing, kernels, begin)
    aliases = {value for kernel in kernels if kernel.is_alias for value in kernel.results}
    end = {value: max(last.get(value, 0), begin[value] + 1) for value in begin}
    for flow in listing.data_flows:
        end[flow.target] = max(end[flow.target], flow.end)
    shared = aliases | _sharing_a_buffer(listing, kernels, pairs, begin, last)
    for value in permanent_arguments(listing, pairs):
        end[value] = end_of_program
    return {
        value: Lifetime(begin[value], end[value], value not in shared) for value in begin if value not in free
    }


def permanent_arguments(listing: Listing, pairs: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Arguments whose buffers stay for the whole program: those not donated, and carried state."""
    carried = {listing.arguments[argument].value for _, argument in pairs}
    return frozenset({a.value for a in listing.arguments if not a.is_donated} | carried)


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
            found[kernel.results[0]] = replace(found[kernel.results[0]], is_own_buffer=False)
            done.append(replace(kernel, is_alias=True))
        else:
            done.append(kernel)
    return tuple(done), found


def _outlives(buffer: Lifetime | None, value: Lifetime) -> bool:
    return buffer is not None and buffer.is_own_buffer and buffer.end >= value.end


def _last_uses(listing: Listing, kernels: Sequence[Kernel], begin: dict[int, int]) -> dict[int, int]:
    """Half-open end of the last read of each value; reads inside a loop of a value from outside count until the loop's end."""
    loops = sorted(
        {(flow.begin, flow.end) for flow in listing.data_flows if flow.kind == "while"},
        key=lambda loop: loop[0],
    )

    def loop_end(value: int, time: int) -> int:
        if not loops:
            return time
        defined = begin.get(value, 0)
        return max((stop for start, stop in loops if defined < start <= time < stop), default=time)

    last: dict[int, int] = {}
    for flow in listing.data_flows:
        for source in flow.sources:
            last[source.value] = max(last.get(source.value, 0), source.time)
    for result in listing.results:
        last[result.value] = len(listing.ops) + 1
    for kernel in reversed(kernels):
        time = kernel.time if kernel.is_in_place else kernel.time + 1
        if kernel.is_alias:
            time = max(last.get(kernel.results[0], 0), time)
        for use in kernel.uses:
            last[use.value] = max(last.get(use.value, 0), time, loop_end(use.value, kernel.time))
    return last


def _sharing_a_buffer(
    listing: Listing,
    kernels: Sequence[Kernel],
    pairs: Sequence[tuple[int, int]],
    begin: dict[int, int],
    last: dict[int, int],
) -> set[int]:
    """Values written into the buffer of the state that they replace."""
    shared: set[int] = set()
    for result, argument in pairs:
        value, state = listing.results[result].value, listing.arguments[argument].value
        if value != state and last.get(state, 0) <= begin.get(value, 0) + 1:
            shared.add(value)
    loop_of = {flow.target: flow for flow in listing.data_flows if flow.kind == "while"}
    last_inside = dict.fromkeys(loop_of, 0)
    for kernel in kernels:
        for use in kernel.uses:
            flow = loop_of.get(use.value)
            if flow is not None and kernel.time < flow.end:
                last_inside[use.value] = max(last_inside[use.value], kernel.time + 1)
    for target, flow in loop_of.items():
        for source in flow.sources:
            time = begin.get(source.value, -1)
            if flow.begin <= time < flow.end and last_inside[target] <= time + 1:
                shared.add(source.value)
    return shared
