"""In which element type a value may travel between devices: the widest that any of its readers takes of it.

A compiler that moves conversions before data movement (XLA:TPU) sends a value that all readers narrow in the narrow type. A matrix product
of default precision narrows float32 operands to bfloat16 itself. Ops that only move elements are looked through, and so is the largest
or smallest of a window. Seen in what libtpu 0.0.51 compiles for v5e: gathers, exchanges, permutes and halos of float32 arguments and of
results of elementwise ops, products and transposes. Values that were widened before they travel do so in the wide type, and sums stay as
wide as they are.
"""

from functools import cached_property

from autoshard.mlir.listing import Listing, Op
from autoshard.sharding import TensorType, dtype_bits

Site = tuple[int, int]

_MOVES = frozenset(
    {"stablehlo.reshape", "stablehlo.slice", "stablehlo.transpose"}
    | {"sdy.reshard", "sdy.sharding_constraint", "sdy.propagation_barrier"}
)
_PICKS = ("stablehlo.maximum", "stablehlo.minimum")
_CONVERT = "stablehlo.convert"
_NARROWED_BY_PRODUCTS = {"f32": "bf16"}


class Widths:
    """The types that the values of a listing may travel in."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._read: dict[
            int, str
        ] = {}  # what an op that only moves makes -> the widest type that a reader takes of it
        for op in reversed(listing.ops):  # readers come after
            if _keeps_order_and_values(op):
                value = op.results[0]
                taken = [self._taken_by(site, value) for site in self._sites.get(value, ())]
                self._read[value] = max(taken, key=dtype_bits, default=self._dtype(value))

    def of_use(self, value: int, sites: tuple[Site, ...]) -> TensorType:
        """Of a copy of the value that these operands read, as (op, operand); all others of a listing's sites take it as it is."""
        taken = [self._taken_by(site, value) for site in sites] or [self._dtype(value)]
        return TensorType(self._type(value).shape, max(taken, key=dtype_bits))

    def of_value(self, value: int) -> TensorType:
        """Of a copy that all readers share."""
        return self.of_use(value, self._sites.get(value, ()))

    @cached_property
    def _sites(self) -> dict[int, tuple[Site, ...]]:
        found: dict[int, list[Site]] = {}
        for index, op in enumerate(self._listing.ops):
            for position, value in enumerate(op.operands):
                found.setdefault(value, []).append((index, position))
        handed_on = [source.value for flow in self._listing.data_flows for source in flow.sources]
        for value in (*handed_on, *(result.value for result in self._listing.results)):
            found.setdefault(value, []).append((-1, 0))
        return {value: tuple(sites) for value, sites in found.items()}

    def _taken_by(self, site: Site, value: int) -> str:
        own = self._dtype(value)
        if site[0] < 0:
            return own
        op = self._listing.ops[site[0]]
        if op.has_default_precision:
            return _NARROWED_BY_PRODUCTS.get(own, own)
        if op.name == _CONVERT:
            return min(own, self._dtype(op.results[0]), key=dtype_bits)
        return self._read[op.results[0]] if _keeps_order_and_values(op) else own

    def _type(self, value: int) -> TensorType:
        type_ = self._listing.values[value].type
        assert type_ is not None, "only tensors travel"
        return type_

    def _dtype(self, value: int) -> str:
        return self._type(value).dtype


def _keeps_order_and_values(op: Op) -> bool:
    """Whether narrowing before the op and after it give the same."""
    picks = op.name == "stablehlo.reduce_window" and op.reducer in _PICKS
    return picks or op.name in _MOVES
