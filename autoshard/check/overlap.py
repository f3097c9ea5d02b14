"""What may run behind compute under a plan that assumes so: gathers and permutes of what is there ahead of time.

A read hides up to half of the time that its kernel's product takes on the matrix unit, split over all devices, and over the operands of
the kernel that are there early, and nine tenths of its own time; a shared copy hides as much as the second kernel that reads it.
"""

from collections import Counter
from dataclasses import dataclass, field

from autoshard.check.planned import Planned
from autoshard.check.reads import Reads
from autoshard.program import prefetchable
from costmodels import Hardware

MOVED_AHEAD = ("all_gather", "collective_permute")


@dataclass(frozen=True, slots=True)
class Hideable:
    """ns of one run by the op that reads, and by the value that is shared."""

    early: frozenset[int] = frozenset()
    by_reader: dict[int, int] = field(default_factory=dict[int, int])
    by_copy: dict[int, int] = field(default_factory=dict[int, int])

    def of_read(self, value: int, op: int) -> int:
        return self.by_reader.get(op, 0) if value in self.early else 0

    def of_copy(self, value: int) -> int:
        return self.by_copy.get(value, 0) if value in self.early else 0


def find_hideable(planned: Planned, reads: Reads, hardware: Hardware) -> Hideable:
    early = prefetchable(planned.program)
    devices = planned.mesh.num_devices
    by_reader: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for read in sorted(reads.kernels, key=lambda one: one.kernel.time):
        kernel = read.kernel
        sharing = Counter(use.value in early for use in kernel.uses)[True]
        for use in kernel.uses:
            readers.setdefault(use.value, []).append(kernel.ops[-1])
        if kernel.shape.is_matmul and sharing:
            product = hardware.kernel_roofline(
                kernel.shape.flops / devices, 0, kernel.shape.operands[0].dtype, unit="matrix"
            )
            by_reader[kernel.ops[-1]] = int(float(product.work_ns) / 2 / sharing)
    by_copy = {value: by_reader.get(ops[1], 0) for value, ops in readers.items() if len(ops) > 1}
    return Hideable(early, by_reader, by_copy)
