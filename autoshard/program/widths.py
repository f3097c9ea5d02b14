"""In which element type a value may travel between devices and is stored: the widest that any of its readers takes of it.

XLA:TPU narrows float32 to bfloat16 where no reader would see the difference (its pass bfloat16-propagation): matrix products of default
precision take float32 operands as bfloat16 themselves, unless of one row or column or over one element, so do conversions to bfloat16.
Ops that move, pick or drop elements are looked through, and so are loops, branches and barriers. What is converted to an integer stays as
wide as it is, and so does what an argument is updated with in place. The largest of what was widened just before is found and sent as it
was before (not so the smallest, nor of what is masked, negated or added to in between: ten small programs). Partial sums are added up as
wide as they are: XLA narrows some, but not those of which slices are kept or that it combines with wider ones, as most are.

Seen in what libtpu 0.0.51 compiles for v5e: gathers, exchanges, permutes and halos of float32 arguments, of results of elementwise ops,
products and transposes, and of what was widened before; each op of `_PASSES` between a gather and a product; the stack of states that a
scan makes for its backward pass. So do gathers, exchanges and permutes that the user wrote (0.0.52: alone, one behind another and in scans,
before products, conversions, slices and transposes). Stored so: the states of recurrent cells, queries and keys of float32 transformers,
activations of convolutional nets.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

from autoshard.mlir.listing import RESULT_SITE, Listing, Op, Site
from autoshard.mlir.row_products import is_multiplied
from autoshard.sharding import TensorType, dtype_bits

_BARRIER = "optimization_barrier"
_CONVERT, _UPDATE = "stablehlo.convert", "stablehlo.dynamic_update_slice"
_ALL, _FIRST = 1 << 30, 1
_PASSES = {
    **dict.fromkeys(("sdy.reshard", "sdy.sharding_constraint", "sdy.propagation_barrier"), (0, _ALL)),
    **{f"stablehlo.{name}": (0, _ALL) for name in ("reshape", "slice", "transpose", "broadcast_in_dim")},
    **{f"stablehlo.{name}": (0, _ALL) for name in ("reverse", "concatenate", "pad", "abs")},
    **{f"stablehlo.{name}": (0, _ALL) for name in ("maximum", "minimum", "clamp", "sort")},
    **{f"stablehlo.{name}": (0, _FIRST) for name in ("dynamic_slice", "gather")},
    **{f"stablehlo.{name}": (0, _ALL) for name in ("all_gather", "all_to_all", "collective_permute")},
    _UPDATE: (0, 2),
    "stablehlo.select": (1, _ALL),
}
"""The operands, from and to which position, whose elements the op hands on."""
_PICKING_OPS = ("stablehlo.reduce", "stablehlo.reduce_window")
_PICKS = ("stablehlo.maximum", "stablehlo.minimum")
_NARROW = {"f32": "bf16"}


class Widths:
    """The types that the values of a listing may travel in, by who reads them.

    Args:
        sites: the reads that count; all of the listing unless given.
        instead: values that are read as another is, which stands for them.
        as_made: values that are as wide as they are made, whoever reads them.
        as_before: whether what was just widened is as narrow as it was before, whoever reads it and whatever stands for it; not what is
            returned, nor what a barrier hands on, which is as wide as it says.
    """

    def __init__(
        self,
        listing: Listing,
        sites: Mapping[int, tuple[Site, ...]] | None = None,
        instead: Mapping[int, int] | None = None,
        as_made: frozenset[int] = frozenset(),
        *,
        as_before: bool = False,
    ) -> None:
        self._as_before = as_before
        self._listing, self._sites = listing, listing.sites if sites is None else sites
        self._instead, self._as_made = instead or {}, as_made
        self._read: dict[int, str] = {}  # of what is handed on: the widest type that a reader takes of it
        handed_on = list(self._handed_on())
        is_settled = False
        while not is_settled:  # what a loop carries is read by ops before those that hand it on
            is_settled = True
            for value in handed_on:
                taken = self._widest(value, self._sites.get(value, ()))
                if taken != self._read.get(value):
                    self._read[value], is_settled = taken, False

    def of_use(self, value: int, sites: tuple[Site, ...]) -> TensorType:
        """Of a copy of the value that these operands read, as (op, operand); all others of a listing's sites take it as it is."""
        return TensorType(self._type(value).shape, self._widest(value, sites))

    def of_value(self, value: int) -> TensorType:
        """Of a copy that all readers share."""
        standing = self._behind(value)
        if standing in self._as_made:
            return self._type(value)
        dtype = self._widest(standing, self._sites.get(standing, ()))
        if self._as_before and value in self._converted and not self._is_kept_so(value):
            before = self._dtype(self._converted[value])
            dtype = before if _NARROW.get(dtype) == before else dtype
        return TensorType(self._type(value).shape, dtype)

    def _is_kept_so(self, value: int) -> bool:
        """Whether it is returned, or a barrier hands it on."""
        flows = self._listing.data_flows
        return any(
            number == RESULT_SITE or (number < 0 and flows[-1 - number].kind == _BARRIER)
            for number, _ in self._listing.sites.get(value, ())
        )

    def of_maximum(self, op: Op) -> str:
        """In which type the largest of what devices hold travels: as narrow as it was before it was widened; "" for all but such maxima."""
        if op.name != "stablehlo.reduce" or op.reducer != "stablehlo.maximum" or len(op.results) != 1:
            return ""
        maker = self._converted.get(op.operands[0])
        before = self._dtype(maker) if maker is not None else ""
        return before if before and before == _NARROW.get(self._dtype(op.results[0])) else ""

    def _behind(self, value: int) -> int:
        while value in self._instead:
            value = self._instead[value]
        return value

    def _handed_on(self) -> Iterator[int]:
        """What ops and loops hand on as it is, those made last first; readers mostly come after."""
        ops = ((index, op.results[0]) for index, op in enumerate(self._listing.ops) if _passes(op))
        flows = ((flow.begin, flow.target) for flow in self._listing.data_flows)
        for _, value in sorted((*ops, *flows), reverse=True):
            if self._listing.values[value].type is not None:
                yield value

    def _widest(self, value: int, sites: tuple[Site, ...]) -> str:
        taken = [self._taken_by(site, value) for site in sites] or [self._dtype(value)]
        return max(taken, key=dtype_bits)

    def _taken_by(self, site: Site, value: int) -> str:
        number, position = site
        own = self._dtype(value)
        narrow = _NARROW.get(own, own)
        if number == RESULT_SITE:
            return own
        if number < 0:
            return self._read.get(self._listing.data_flows[-1 - number].target, narrow)
        op = self._listing.ops[number]
        if op.has_default_precision:
            return own if is_multiplied(op) else narrow
        if op.name == _CONVERT:
            return narrow if self._dtype(op.results[0]) == narrow else own
        is_handed_on = (
            _passes(op)
            and _hands_on(op, position)
            and not self._updates_argument(op)
            and self._dtype(op.results[0]) == own  # not the magnitude of a complex number
        )
        return self._read.get(op.results[0], narrow) if is_handed_on else own

    def _updates_argument(self, op: Op) -> bool:
        return op.name == _UPDATE and op.operands[0] in self._arguments

    @cached_property
    def _converted(self) -> dict[int, int]:
        """What conversions of tensors make, and of what."""
        return {
            op.results[0]: op.operands[0]
            for op in self._listing.ops
            if op.name == _CONVERT and self._listing.values[op.operands[0]].type is not None
        }

    @cached_property
    def _arguments(self) -> frozenset[int]:
        return frozenset(argument.value for argument in self._listing.arguments)

    def _type(self, value: int) -> TensorType:
        type_ = self._listing.values[value].type
        assert type_ is not None, "only tensors travel"
        return type_

    def _dtype(self, value: int) -> str:
        return self._type(value).dtype


def _passes(op: Op) -> bool:
    """Whether narrowing before the op and after it give the same."""
    if op.name in _PICKING_OPS:
        return op.reducer in _PICKS and len(op.results) == 1
    return op.name in _PASSES and len(op.results) == 1


def _hands_on(op: Op, position: int) -> bool:
    first, end = _PASSES.get(op.name, (0, _ALL))
    return first <= position < end
