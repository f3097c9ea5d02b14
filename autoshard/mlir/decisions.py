"""What a plan decides, as the writer needs it: plain data over the listing's numbers, no MLIR objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoshard.mlir.listing import Site
from autoshard.sharding import TensorSharding


@dataclass(frozen=True, slots=True)
class Decisions:
    """Shardings by value number and by use; all closed.

    A use takes the settled value, the shared copy, or a reshard of the shared copy (of the settled value where there is none). A
    use that is not named takes the settled value; a value that is not named is replicated.
    """

    produced: Mapping[int, TensorSharding]  # as the op makes it
    settled: Mapping[int, TensorSharding]  # after a reshard right after it, where the two differ
    shared: Mapping[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    """Made once for several users."""
    uses: Mapping[Site, TensorSharding] = field(default_factory=dict[Site, TensorSharding])
    cloneable: frozenset[int] = frozenset()  # recomputed for each sharding that a use wants
    again: Mapping[Site, int] = field(default_factory=dict[Site, int])
    """Uses that change the sharding anew where others before ask for the same: by the reader's number, above 0."""

    def reduced(self) -> "Decisions":
        """The same splits with every sum made where it is left to a reader."""
        produced, settled, shared = (
            {value: sharding.summed() for value, sharding in each.items()}
            for each in (self.produced, self.settled, self.shared)
        )
        uses = {site: sharding.summed() for site, sharding in self.uses.items()}
        return replace(self, produced=produced, settled=settled, shared=shared, uses=uses)

    @property
    def has_partial_sums(self) -> bool:
        everything = (self.produced, self.settled, self.shared, self.uses)
        return any(sharding.unreduced for each in everything for sharding in each.values())
