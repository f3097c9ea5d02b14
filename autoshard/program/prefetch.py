"""Which values can be brought to their readers ahead of time, because nothing that runs in between makes them.

These are function arguments, what a loop carries round unchanged, and what a kernel makes of one of them alone without computing a
product: a cast, a transpose, the slice of a stack of layers.
"""

from autoshard.program.records import FlowKind, Kernel, Program


def prefetchable(program: Program) -> frozenset[int]:
    """The largest such set: what a loop carries counts until one of its sources turns out to be made anew."""
    carried = {flow.value: flow for flow in program.flows if flow.kind is FlowKind.CARRIED}
    arguments = {flow.value for flow in program.flows if flow.kind is FlowKind.ARGUMENT}
    unchanged = set(carried)
    while True:
        found = _with_kernels(program, arguments | unchanged)
        changed = {v for v in unchanged if any(s.value not in found for s in carried[v].sources)}
        if not changed:
            return frozenset(found)
        unchanged -= changed


def _with_kernels(program: Program, ready: set[int]) -> set[int]:
    found = set(ready)
    for kernel in program.kernels:
        if _source(kernel) in found:
            found.update(kernel.results)
    return found


def _source(kernel: Kernel) -> int:
    """The one ranked value that the kernel makes its result of, -1 where there are several or it is a product or a collective."""
    shape = kernel.shape
    ranked = [use.value for use, type_ in zip(kernel.uses, shape.operands, strict=True) if type_.rank]
    return ranked[0] if len(ranked) == 1 and not shape.is_matmul and shape.collective is None else -1
