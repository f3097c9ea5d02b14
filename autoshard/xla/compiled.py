"""What a real compiler made of a planned module."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from autoshard.errors import AutoshardError
from autoshard.xla.collectives import CompiledCollective
from autoshard.xla.heap import CompiledBuffer
from autoshard.xla.memory import CompiledMemory


class DoesNotFitError(AutoshardError):
    """The compiler found that the program does not fit into device memory; bytes as it said them."""

    def __init__(self, used_bytes: int, available_bytes: int, words: str, *, where: str) -> None:
        super().__init__(
            words, where=where, fix="plan with less --memory, on more devices, or for chips with more"
        )
        self.used_bytes = used_bytes
        self.available_bytes = available_bytes


@dataclass(frozen=True, slots=True)
class KindTotal:
    """All collectives of a kind in one step: how many run, and the bytes of their operands on one device."""

    count: int
    operand_bytes: int


@dataclass(frozen=True, slots=True)
class CompiledTime:
    """The compiler's estimate of a step in ns. Elementwise and memory-bound work is in it only where `fusions_ns` is known.

    matmul_ns: products and convolutions at the chip's peak. fusions_ns: the compiler's own price of all fusions, in full compiles.
    exposed_ns: what a step waits for asynchronous collectives, by kind. synchronous_ns: the others, by kind. unscheduled_ns: those in loops
    that the scheduler leaves alone, priced as it prices others; None where they cannot be.
    """

    matmul_ns: int | None
    fusions_ns: int | None
    exposed_ns: Mapping[str, int]
    synchronous_ns: Mapping[str, int]
    unscheduled_ns: int | None

    @property
    def communication_ns(self) -> int:
        scheduled = sum(self.exposed_ns.values()) + sum(self.synchronous_ns.values())
        return scheduled + (self.unscheduled_ns or 0)

    @property
    def step_ns(self) -> int | None:
        """Compute + communication; None where the chip's peak is not known."""
        compute = self.fusions_ns if self.fusions_ns is not None else self.matmul_ns
        return None if compute is None else compute + self.communication_ns


@dataclass(frozen=True, slots=True)
class Compiled:
    """`time` is None where the compiler gives no price, as for CPUs. Places in `collectives` are of the module where they are known."""

    target: str
    compiler: str
    is_full: bool  # false: stopped before code generation
    num_devices: int
    collectives: tuple[CompiledCollective, ...]
    memory: CompiledMemory
    time: CompiledTime | None
    matmul_flops: int  # of one device and step
    warnings: tuple[str, ...]
    compile_s: float
    readers: Mapping[str, str] = field(repr=False)
    """Of a constraint among the places, the op that reads through it."""
    hlo_text: str = field(repr=False)
    held: tuple[CompiledBuffer, ...] = field(default=(), repr=False)
    """In the heap at its peak, where the compiler says what is, the largest first."""

    def totals(self) -> dict[str, KindTotal]:
        """By kind of collective."""
        counts, sizes = Counter[str](), Counter[str]()
        for one in self.collectives:
            counts[one.kind] += one.times
            sizes[one.kind] += one.total_bytes
        return {kind: KindTotal(counts[kind], sizes[kind]) for kind in sorted(counts)}

    def to_data(self) -> dict[str, object]:
        """Plain data without the HLO text."""
        data = msgspec.to_builtins(self)
        del data["hlo_text"], data["readers"]
        data["totals"] = msgspec.to_builtins(self.totals())
        data["memory"]["total_bytes"] = self.memory.total_bytes
        for one, row in zip(self.collectives, data["collectives"], strict=True):
            row["operand_bytes"] = one.operand_bytes
        if self.time is not None:
            data["time"] |= {"communication_ns": self.time.communication_ns, "step_ns": self.time.step_ns}
        return data
