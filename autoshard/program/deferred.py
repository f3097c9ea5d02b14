"""Products whose sums loops scatter, which run last: what they read is there until then.

XLA for v5p and v6e puts the loops in which products of gradients scatter their sums (`sharding.scattering`) behind the backward pass, as
nothing waits for them but the updates: all of each layer, or one or two in three, but for what is first, mostly the unembedding's. Of a
step that makes activations anew layer by layer, what these loops are handed is all there in the end. Seen of all ten unrolled training
steps with 12 loops or more that were compiled for v5p and v6e (libtpu 0.0.52), 1.3 to 1.6 times the memory where activations are made
anew; of five such on v5e, whose gathers run inside products, the loops run within a layer or two.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autoshard.program.outputs import repeated_values
from autoshard.program.records import Kernel, Lifetime, Program


@dataclass(frozen=True, slots=True)
class Lives:
    """Of values, and until when operands are there that are worked out for those products, by the times of these."""

    of_values: Mapping[int, Lifetime]
    handed: Mapping[int, int] = field(default_factory=dict[int, int])

    def end_of_handed(self, time: int) -> int:
        """Half-open, of the product of that time."""
        return self.handed.get(time, time + 1)


def with_deferred(program: Program, lives: Mapping[int, Lifetime], scattered: Collection[int]) -> Lives:
    """What those products read stays until the last product, but what the first reads, which runs in its place.

    Args:
        scattered: values whose sum a loop scatters.
    """
    late = []
    if program.scatters_last:
        late = [kernel for kernel in program.kernels if _is_scattered(kernel, scattered)][1:]
    if not late:
        return Lives(lives)
    made = {value: kernel for kernel in program.kernels for value in kernel.results}
    repeated, found = repeated_values(program), dict(lives)
    end = max(kernel.time for kernel in program.kernels if kernel.shape.is_matmul) + 1
    left, seen = [use.value for kernel in late for use in kernel.uses], set[int]()
    while left:
        value = left.pop()
        if value in seen or value not in found:
            continue
        seen.add(value)
        if found[value].is_own_buffer:
            found[value] = replace(found[value], end=max(found[value].end, end))
        elif value in made and not (value in repeated and not found[repeated[value].origin].is_own_buffer):
            left.extend(use.value for use in made[value].uses)
    return Lives(found, {kernel.time: end for kernel in late})


def _is_scattered(kernel: Kernel, scattered: Collection[int]) -> bool:
    return kernel.repeat == 1 and any(value in scattered for value in kernel.results)
