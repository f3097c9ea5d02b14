"""What may run behind compute under a plan that assumes so: gathers and permutes of what is there ahead of time.

A read hides up to half of the time that its kernel's product takes on the matrix unit, split over all devices, and over the operands of
the kernel that are there early, and nine tenths of its own time; a shared copy hides as much as the second kernel that reads it. What a
constraint brings hides as much as the first kernel that reads it.
"""

from collections import Counter
from dataclasses import dataclass, field

from autoshard.check.planned import Planned
from autoshard.check.reads import Reads
from autoshard.program import Ahead, Kernel, KernelTimes, Pace, first_readers, prefetchable
from costmodels import Communication, Hardware

MOVED_AHEAD = ("all_gather", "collective_permute")


@dataclass(frozen=True, slots=True)
class Hideable:
    """ns of one run by the op that reads, and by the value that is shared."""

    early: frozenset[int] = frozenset()
    by_reader: dict[int, int] = field(default_factory=dict[int, int])
    by_copy: dict[int, int] = field(default_factory=dict[int, int])
    ahead: Ahead | None = None
    gather_ns: dict[int, int] = field(default_factory=dict[int, int])

    def of_read(self, value: int, op: int) -> int:
        return self.by_reader.get(op, 0) if value in self.early else 0

    def of_copy(self, value: int) -> int:
        return self.by_copy.get(value, 0) if value in self.early else 0

    def begin_of_read(self, value: int, op: int, time: int) -> int:
        """From when a copy for a read at `time` takes memory."""
        return self._begin(value, time) if self.of_read(value, op) else time

    def begin_of_copy(self, value: int, time: int) -> int:
        return self._begin(value, time) if self.of_copy(value) else time

    def _begin(self, value: int, time: int) -> int:
        """So early that products take as long as the value's gather over all devices."""
        return self.ahead.begin(time, self.gather_ns[value]) if self.ahead is not None else time


def find_hideable(
    planned: Planned, reads: Reads, hardware: Hardware, communication: Communication
) -> Hideable:
    early = prefetchable(planned.program)
    devices = planned.mesh.num_devices
    by_reader: dict[int, int] = {}
    products: dict[int, float] = {}
    readers: dict[int, list[int]] = {}
    for read in sorted(reads.kernels, key=lambda one: one.kernel.time):
        kernel = read.kernel
        sharing = Counter(use.value in early for use in kernel.uses)[True]
        for use in kernel.uses:
            readers.setdefault(use.value, []).append(kernel.ops[-1])
        if kernel.shape.is_matmul and kernel.uses:
            product_ns = products[kernel.ops[-1]] = _product_ns(kernel, devices, hardware)
            if sharing:
                by_reader[kernel.ops[-1]] = int(product_ns / 2 / sharing)
    kernels = planned.program.kernels
    for move, reader in first_readers(planned.program).items():
        op = kernels[reader].ops[-1]
        if op in by_reader:
            by_reader[kernels[move].ops[-1]] = by_reader[op]
    by_copy = {value: by_reader.get(ops[1], 0) for value, ops in readers.items() if len(ops) > 1}
    ahead = Ahead(planned.program, [products.get(kernel.ops[-1], 0.0) for kernel in kernels])
    gather_ns = {
        value: int(communication.all_gather_ns(planned.type_of(value).num_bytes, planned.mesh.axis_names))
        for value in early
    }
    return Hideable(early, by_reader, by_copy, ahead, gather_ns)


def scheduled_limits(planned: Planned, hardware: Hardware) -> dict[int, int]:
    """By how often a reshard runs: what a scheduler hides of it at most, twice the products that run as often; none without one."""
    found: dict[int, float] = {}
    for kernel in planned.program.kernels if hardware.hidden_percent else ():
        product_ns = _product_ns(kernel, planned.mesh.num_devices, hardware)
        found[kernel.repeat] = found.get(kernel.repeat, 0.0) + product_ns
    return {repeat: int(2 * ns) for repeat, ns in found.items()}


def find_pace(planned: Planned, hardware: Hardware) -> Pace:
    """Of each kernel how long its product and its memory traffic take, split over all devices."""
    devices, bytes_per_ns = planned.mesh.num_devices, hardware.hbm_bytes_per_s / 1e9
    kernels = planned.program.kernels
    traffic = [kernel.shape.traffic_bytes / devices / bytes_per_ns for kernel in kernels]
    products = [hardware.scheduled_product_ns(_product_ns(kernel, devices, hardware)) for kernel in kernels]
    return Pace(planned.program, list(map(KernelTimes, products, traffic)))


def _product_ns(kernel: Kernel, devices: int, hardware: Hardware) -> float:
    shape = kernel.shape
    if not shape.is_matmul or not kernel.uses:
        return 0.0
    return float(
        hardware.kernel_roofline(shape.flops / devices, 0, shape.operands[0].dtype, unit="matrix").work_ns
    )
