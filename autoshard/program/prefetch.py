"""Which values can be brought to their readers ahead of time, because nothing that runs in between makes them.

These are function arguments, what a loop carries round unchanged, and what a kernel makes of one of them alone without computing a
product: a cast, a transpose, the slice of a stack of layers.
"""

from bisect import bisect_right
from collections.abc import Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.records import MOVES, Flow, FlowKind, Kernel, Program

ENTRY = 0  # the region of the function that runs


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


def in_argument_buffers(program: Program) -> frozenset[int]:
    """Arguments and reshapes of them: values that lie where the caller put them, which nothing may write over."""
    found = {flow.value for flow in program.flows if flow.kind is FlowKind.ARGUMENT}
    for kernel in program.kernels:
        is_renamed = kernel.is_alias and program.listing.ops[kernel.time].name == "stablehlo.reshape"
        if is_renamed and kernel.uses[0].value in found:
            found.update(kernel.results)
    return frozenset(found)


def made_at_start(listing: Listing, kernels: Sequence[Kernel], flows: Sequence[Flow]) -> dict[int, int]:
    """Arguments, and what the entry function makes of one of them alone without computing a product, with that argument.

    Nothing has to be there before these. XLA's list scheduling goes from the end of a program to its start and takes first what lies behind
    asynchronous collectives. So casts of shards that are gathered are all made when the program begins, however late these are. Seen
    of what libtpu 0.0.52 compiles for v5e: 210 of 210 in Llama-3 8B forward, all of every stack of layers tried, in training steps too.
    """
    found = {flow.value: flow.value for flow in flows if flow.kind is FlowKind.ARGUMENT}
    for kernel in kernels:
        source = _source(kernel)
        if listing.ops[kernel.ops[-1]].region == ENTRY and source in found:
            found.update(dict.fromkeys(kernel.results, found[source]))
    return found


def largest_alike(program: Program) -> int:
    """Elements of the largest arrays of which products read several, each made of an argument of its own: weights of layers, mostly.

    0 where there are none, as where layers are slices of one argument.
    """
    made = program.made_at_start
    sources: dict[int, set[int]] = {}
    for kernel in program.kernels:
        if kernel.shape.is_matmul:
            for use, type_ in zip(kernel.uses, kernel.shape.operands, strict=True):
                if use.value in made:
                    sources.setdefault(type_.num_elements, set()).add(made[use.value])
    return max((size for size, arguments in sources.items() if len(arguments) > 1), default=0)


def first_readers(program: Program) -> dict[int, int]:
    """The first kernel that reads what a move gives, by the move's number among kernels; none of moves that another move reads.

    What a constraint of the user's brings is on its way while the products in front of that kernel run.
    """
    kernels = program.kernels
    makers = {kernel.results[0]: number for number, kernel in enumerate(kernels) if _is_move(kernel)}
    found: dict[int, int] = {}
    for number, kernel in enumerate(kernels):
        for use in kernel.uses:
            if use.value in makers:
                found.setdefault(makers[use.value], number)
    return {move: reader for move, reader in found.items() if not _is_move(kernels[reader])}


def _is_move(kernel: Kernel) -> bool:
    return kernel.shape.name in MOVES


class Ahead:
    """From when on what is on its way to a kernel takes memory: the latest time from which the products until then take as long.

    Seen in what libtpu 0.0.51 compiles for v5e of GPT-OSS 20B: experts are gathered while attention runs, whose scores are alive.
    """

    def __init__(self, program: Program, product_ns: Sequence[float]) -> None:
        """`product_ns`: the least time of each kernel, 0 of those that are no products."""
        ops = program.listing.ops
        self._regions = [ops[kernel.ops[-1]].region for kernel in program.kernels]
        self._times = [kernel.time for kernel in program.kernels]
        self._product_ns = product_ns

    def begin(self, time: int, ns: float) -> int:
        """Of what takes `ns` to come and is read at `time`; not before the loop body, branch or function of its reader begins."""
        last = bisect_right(self._times, time) - 1
        region, begin = self._regions[last] if last >= 0 else -1, time
        for kernel in range(last - 1, -1, -1):
            if ns <= 0 or self._regions[kernel] != region:
                break
            begin, ns = self._times[kernel], ns - self._product_ns[kernel]
        return begin


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
