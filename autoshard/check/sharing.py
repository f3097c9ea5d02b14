"""Which readers share the copy that a plan has of a value, and what they take of it.

Who reads the value as it settles reads no copy. A plan's prices take that into account (`is_told`) of gathered copies, and on meshes of one
axis of all; of others on larger meshes those readers are paid for as if they read the copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.check.loops import Loop, kept_through
from autoshard.check.planned import Planned
from autoshard.check.reads import Read
from autoshard.sharding import TensorSharding, TensorType, dtype_bits


@dataclass(frozen=True, slots=True)
class SharedCopy:
    sharding: TensorSharding
    readers: tuple[Read, ...]  # for whom it is made
    travels: TensorType  # what these take
    is_told: bool  # those who read the value as it settles pay nothing

    def life(self, carrier: Loop | None) -> tuple[int, int]:
        """From the first reader to the last, and through all of a loop that reads what is made outside it."""
        loops = list(kept_through([read.where for read in self.readers], carrier))
        return (
            min([*(read.time for read in self.readers), *(loop.begin for loop in loops)]),
            max([*(read.end for read in self.readers), *(loop.end for loop in loops)]),
        )


def shared_copy(planned: Planned, value: int, reads: Sequence[Read]) -> SharedCopy | None:
    """None where all read the value from where it settles."""
    settled = planned.settled[value]
    found = planned.shared.get(value, settled)
    if found == settled:
        return None
    takers = [read for read in reads if read.sharding != settled]
    widest = max(_bits(read) for read in reads)
    narrow = [read for read in reads if _bits(read) < widest]
    is_narrow = len(narrow) > 1 and all(read in narrow for read in takers)
    if (
        len(reads) < 3
        or len(takers) == len(reads)
        or value in planned.program.sums_after_loops
        or not _is_told(planned, settled, found)
    ):
        return SharedCopy(found, tuple(reads), planned.program.widths.of_value(value), is_told=False)
    readers = narrow if is_narrow else reads
    travels = max(readers, key=_bits).travels
    return SharedCopy(found, tuple(readers), travels, is_told=True)


def moved_reads(copy: SharedCopy | None, reads: Sequence[Read], settled: TensorSharding) -> Iterator[Read]:
    """Those that read the shared copy, or are paid for as if they did."""
    yield from (read for read in reads if copy is None or not copy.is_told or read.sharding != settled)


def _bits(read: Read) -> int:
    return dtype_bits(read.travels.dtype)


def _is_told(planned: Planned, settled: TensorSharding, copy: TensorSharding) -> bool:
    if settled.unreduced != copy.unreduced or settled.mesh != copy.mesh:
        return False
    return settled.refines(copy) or sum(axis.size > 1 for axis in planned.mesh.axes) <= 1
