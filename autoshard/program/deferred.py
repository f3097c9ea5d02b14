"""Products that run later than the program has them: what they read is there until then.

**Whose sums loops scatter.** XLA for v5p and v6e puts the loops in which products of gradients scatter their sums (`sharding.scattering`)
behind the backward pass where the update reads what the last pass brings: its latency-hiding scheduler goes from the end and takes first
what reads the end of an asynchronous collective, the loops thus one after the other. Where a part lies otherwise than what it updates it
is copied in between, and the loop runs where the program has it (`Tiles.are_updated_as_made`: of products that are turned for the update,
as JAX's gradients are, parts of multiples of 128 rows or columns, on v6e of rows; of others, as torch's, on v6e of columns). What is first
of all, mostly the unembedding's, runs in its place. Of a step that makes activations anew layer by layer, what late loops are handed is all
there in the end: 1.3 to 1.6 times the memory. Seen of 25 unrolled training steps, of widths from 768 to 4096 over 8 and 16 devices (libtpu
0.0.52; between passes of eight of them); of five such on v5e, whose gathers run inside products, they run within a layer or two.

Of scanned layers the same goes for a trip: they run behind the body's other products, on v5e too and there however their parts lie. And the
scheduler takes the backward scan, which has asynchronous collectives inside, like the end of one: as soon as all that reads it is placed.
What waits in front of it for less, as the unembedding's gradient mostly does, runs behind it (the scheduler's own account of MaxText's
training steps: so on v6e and v5p; on v5e of three that scatter it in a loop, and of four, whose original order has it early, not).

**That are added to what a scatter makes later**, as the gradient of a table that is looked up in and predicted with: XLA makes one
fusion of the product and the addition, which waits for the scatter (Gemma 2 and 3, GPT-2 and BERT on v6e: what goes back to logits is
there to the end of the step). What it reads is stored for it where a loop is handed the same. Not where the product is summed over
devices first.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoshard.mlir.listing import Op
from autoshard.program.nearby import innermost
from autoshard.program.outputs import Repeated, product_reads, repeated_values
from autoshard.program.records import Kernel, Lifetime, Program
from autoshard.program.repeating import readers_of, reading, unnamed

_ADD, _SCATTER, _TRANSPOSE = "stablehlo.add", "stablehlo.scatter", "stablehlo.transpose"
_PASSING = frozenset({"stablehlo.convert", "stablehlo.reshape"})

_Body = tuple[int, int]
"""When a loop begins and ends."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Of values, and until when operands are there that are worked out for those products, by the times of these.

    Attributes:
        waiting: when products run that wait for what they are added to, by their times.
        is_least: the shortest that a compiler can come to, which a plan has to fit with.
    """

    of_values: Mapping[int, Lifetime]
    handed: Mapping[int, int] = field(default_factory=dict[int, int])
    waiting: Mapping[int, int] = field(default_factory=dict[int, int])
    is_least: bool = False

    def end_of_handed(self, time: int) -> int:
        """Half-open, of the product of that time."""
        return self.handed.get(time, time + 1)


class Deferring:
    """Of one program: what those products read stays until they run.

    That is with the last product of all, or of the loop, or in front of the first that waits for what they make: an optimizer that
    multiplies gradients, or the next of several steps.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def lives(
        self, lives: Mapping[int, Lifetime], scattered: Mapping[int, bool], summed: Collection[int] = ()
    ) -> Lives:
        """Those lives, and longer ones of what is kept.

        Args:
            scattered: values whose sum a loop scatters, and whether the parts are updated as they are made.
            summed: values of products that are summed over devices before anything reads them.
        """
        late = list(self._late(scattered))
        handed = {kernel.time: self._end(kernel) for kernel in late}
        found = dict(lives)
        for kernel in late:
            self._keep((use.value for use in kernel.uses), handed[kernel.time], found)
        waiting: dict[int, int] = {}
        for kernel, time in self._added:
            if kernel.results[0] not in scattered and kernel.results[0] not in summed:
                waiting[kernel.time] = time
                read = (use.value for use in kernel.uses if not self._is_stored(use.value, kernel, scattered))
                self._keep(read, time + 1, found, is_handed=False)
        return Lives(found, handed, waiting)

    def _late(self, scattered: Mapping[int, bool]) -> Iterator[Kernel]:
        """Those products among what is scattered that are put off."""
        program = self._program
        kernels = [
            kernel for kernel in program.kernels if any(value in scattered for value in kernel.results)
        ]
        looped = [kernel for kernel in kernels if kernel.time in self._around]
        straight = [kernel for kernel in kernels if kernel.time not in self._around]
        for kernel in kernels:
            if kernel.time in self._around:
                is_late = True
            elif kernel is straight[0]:
                is_late = any(kernel.time < other.time < self._end(kernel) for other in looped)
            else:
                is_late = program.scatters_last
            if is_late and (scattered[kernel.results[0]] or not program.scatters_last):
                yield kernel

    def _end(self, kernel: Kernel) -> int:
        """Half-open, of the time until which that product is put off: the last that runs where it does, unless one waits for it."""
        last = self._last_of[self._around.get(kernel.time)] + 1
        awaited = [self._awaited[value] for value in kernel.results if value in self._awaited]
        return min([last, *(time for time in awaited if time > kernel.time)])

    def _keep(
        self, values: Iterable[int], end: int, lives: dict[int, Lifetime], *, is_handed: bool = True
    ) -> None:
        """The values, or the buffers that they are worked out from where that is not done ahead of time for the product, as it is where a
        loop is handed them.
        """
        left, seen = list(values), set[int]()
        while left:
            value = left.pop()
            if value in seen or value not in lives:
                continue
            seen.add(value)
            if lives[value].is_own_buffer:
                lives[value] = replace(lives[value], end=max(lives[value].end, end))
            elif value in self._made and not (is_handed and self._is_handed(value, lives)):
                left.extend(use.value for use in self._made[value].uses)

    def _is_handed(self, value: int, lives: Mapping[int, Lifetime]) -> bool:
        """Whether a loop gets that worked out."""
        return value in self._repeated and not lives[self._repeated[value].origin].is_own_buffer

    @cached_property
    def waiting(self) -> frozenset[int]:
        """When products would run that wait for what they are added to."""
        return frozenset(kernel.time for kernel, _ in self._added)

    @cached_property
    def _added(self) -> list[tuple[Kernel, int]]:
        """Products whose results are only added to what a scatter makes later, and when."""
        readers = readers_of(self._program.kernels)
        found: list[tuple[Kernel, int]] = []
        for kernel in self._program.kernels:
            added = list(reading(kernel.results[0], readers)) if kernel.shape.is_matmul else []
            if len(added) != 1 or kernel.repeat != added[0].repeat or added[0].shape.name != _ADD:
                continue
            others = [unnamed(use.value, self._made) for use in added[0].uses]
            makers = [self._made[value] for value in others if value in self._made]
            if any(maker.shape.name == _SCATTER and maker.time > kernel.time for maker in makers):
                found.append((kernel, added[0].time))
        return found

    def _is_stored(self, value: int, product: Kernel, scattered: Collection[int]) -> bool:
        """Whether what the product reads is worked out for a loop that reads it too, and stays for it."""
        if value not in self._repeated:
            return False
        others = self._reads.get((value, product.ops[-1]), ())
        return any(self._products[at].results[0] in scattered for _, at in others)

    @cached_property
    def _reads(self) -> Mapping[tuple[int, int], frozenset[tuple[int, int]]]:
        return product_reads(self._program)

    @cached_property
    def _products(self) -> dict[int, Kernel]:
        """By their times."""
        return {kernel.time: kernel for kernel in self._program.kernels if kernel.shape.is_matmul}

    def is_turned(self, value: int) -> bool:
        """Whether the result of a product is transposed on its way to what it updates; twice is not at all."""
        found = False
        while value in self._passed:
            op = self._passed[value]
            found ^= op.name == _TRANSPOSE
            value = op.results[0]
        return found

    @cached_property
    def _passed(self) -> dict[int, Op]:
        """The op through which a value goes on as it is: the first that transposes it, else the first of the others."""
        found: dict[int, Op] = {}
        for op in self._program.listing.ops:
            if op.operands and (op.name == _TRANSPOSE or op.name in _PASSING):  # none of constants
                known = found.get(op.operands[0])
                if known is None or (op.name == _TRANSPOSE and known.name in _PASSING):
                    found[op.operands[0]] = op
        return found

    @cached_property
    def _made(self) -> dict[int, Kernel]:
        return {value: kernel for kernel in self._program.kernels for value in kernel.results}

    @cached_property
    def _repeated(self) -> dict[int, Repeated]:
        return repeated_values(self._program)

    @cached_property
    def _around(self) -> dict[int, _Body]:
        """Of each time in a loop with products, the innermost around it."""
        flows = self._program.listing.data_flows
        loops = {(flow.begin, flow.end) for flow in flows if flow.kind == "while"}
        found = [loop for loop in loops if any(loop[0] <= time < loop[1] for time in self._products)]
        found.sort(key=lambda loop: (loop[0], -loop[1]))
        return {time: found[number] for time, number in innermost(found).items()}

    @cached_property
    def _last_of(self) -> dict[_Body | None, int]:
        """When the last product of a loop runs, and the last of all."""
        return {**{self._around.get(time): time for time in self._products}, None: max(self._products)}

    @cached_property
    def _awaited(self) -> dict[int, int]:
        """When the first product runs that waits for a value."""
        flows = sorted(self._program.listing.data_flows, key=lambda flow: flow.begin)
        found: dict[int, int] = {}

        def hand_back(values: Iterable[int], times: Sequence[int]) -> None:
            for value in values if times else ():
                found[value] = min(*times, found.get(value, times[0]))

        for kernel in reversed(self._program.kernels):  # what reads a value before what makes it
            while flows and flows[-1].begin > kernel.time:
                flow = flows.pop()
                after = [found[flow.target]] if flow.target in found else []
                hand_back((source.value for source in flow.sources), after)
            after = [found[value] for value in kernel.results if value in found]
            after += [kernel.time] if kernel.shape.is_matmul else []
            hand_back((use.value for use in kernel.uses), after)
        return found
