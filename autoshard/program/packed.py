"""What is stored otherwise where comparisons are packed into words.

XLA:TPU packs a comparison that is read again, one bit an element along a dimension of 2 to 32 elements which is not one of the two minor
ones: it stores that, and makes the comparison no second time. Then a float32 operand of a rectifier that products read in 16 bits besides
need not be there (v5e and v5p: it is stored as they read it); 0.6 of the memory of perceptrons of 16 x 512 rows a device, not of
48 x 170. From 64 chips on v5e packs the comparison in an error function of bfloat16 too, and makes that anew of its operand, unless work
on it is stored, as that of a gate (libtpu 0.0.52, `pred_packing` of its passes; 70 small training steps).
"""

from collections.abc import Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing, Site
from autoshard.program.fusion import is_elementwise, is_reduction
from autoshard.program.lifetime import has_buffer
from autoshard.program.records import Compiler, Kernel, Lifetime
from autoshard.program.repeating import Readers, is_widened, readers_of
from autoshard.program.storing import Storing
from autoshard.program.widths import Widths
from autoshard.sharding import TensorType, dtype_bits

_COMPARE, _ERFC, _BROADCAST, _CONSTANT = (
    "stablehlo.compare",
    "chlo.erfc",
    "stablehlo.broadcast_in_dim",
    "stablehlo.constant",
)
_SHIFTING = frozenset(
    f"stablehlo.{name}" for name in ("add", "subtract", "convert", "reshape", "transpose")
) | {"sdy.sharding_constraint"}
_RECTIFYING = frozenset(f"stablehlo.{name}" for name in ("maximum", "minimum", "clamp")) | {_COMPARE}
_LEAST_RANK = 3  # a dimension besides the two minor ones


def packed_predicates(
    listing: Listing,
    kernels: Sequence[Kernel],
    pinned: frozenset[int],
    stored: Widths,
    lives: Mapping[int, Lifetime],
    hidden: frozenset[int],
    compiler: Compiler,
) -> dict[int, TensorType | None]:
    """Values with a buffer, and as what they are stored where comparisons are packed; None: not at all.

    Args:
        stored: in what type values are stored where none are.
        hidden: elementwise work that is stored where a device has few of the batch, without a buffer of its own (`turned`).
    """
    if not (compiler.repeats_packed_erfc or compiler.narrows_packed):
        return {}
    without = Storing(listing, kernels, pinned, compiler, _comparisons(listing)).types
    made = {value: kernel for kernel in kernels for value in kernel.results}
    readers, sites = readers_of(kernels), listing.sites
    found: dict[int, TensorType | None] = {}
    for value, life in lives.items():
        type_ = listing.values[value].type
        if not life.is_own_buffer or type_ is None or type_.rank < _LEAST_RANK or value not in made:
            continue
        root = listing.ops[made[value].time]
        if root.name == _ERFC and is_widened(root, listing):
            if compiler.repeats_packed_erfc and not _is_in_stored_work(
                value, made, readers, listing, lives, hidden
            ):
                found[value] = None
        elif compiler.narrows_packed:
            narrow = without.of_value(value)
            is_narrower = dtype_bits(narrow.dtype) < dtype_bits(stored.of_value(value).dtype)
            if is_narrower and _is_rectified(value, sites, listing):
                found[value] = narrow
    return found


def _is_rectified(value: int, sites: Mapping[int, Sequence[Site]], listing: Listing) -> bool:
    """Whether it is compared, a bias added or not, and all else that is made of it is the greater or smaller of two: it is not chosen."""
    left, seen, is_compared = [value], {value}, False
    while left:
        for op in (listing.ops[number] for number, _ in sites.get(left.pop(), ()) if number >= 0):
            is_compared |= op.name == _COMPARE
            if op.name in _SHIFTING:
                left.extend(one for one in op.results if one not in seen)
                seen.update(op.results)
            elif op.name not in _RECTIFYING and not is_reduction(op):
                return False
    return is_compared


def _is_in_stored_work(
    value: int,
    made: Mapping[int, Kernel],
    readers: Readers,
    listing: Listing,
    lives: Mapping[int, Lifetime],
    hidden: frozenset[int],
) -> bool:
    """Whether elementwise work on nothing later than the value has a buffer, or is stored: that reads the value where it is."""
    left, seen = [value], {value}
    while left:
        for reader in readers.get(left.pop(), ()):
            if not is_elementwise(listing.ops[reader.time]) or not seen.isdisjoint(reader.results):
                continue
            others = (use.value for use in reader.uses if use.value not in seen)
            if any(made[other].time > made[value].time for other in others if other in made):
                continue
            if any(has_buffer(one, lives) or one in hidden for one in reader.results):
                return True
            seen.update(reader.results)
            left.extend(reader.results)
    return False


def _comparisons(listing: Listing) -> frozenset[Site]:
    """Reads of what is compared with a constant."""
    return frozenset(_compared_with_constants(listing))


def _compared_with_constants(listing: Listing) -> Iterator[Site]:
    constant = {op.results[0] for op in listing.ops if op.name == _CONSTANT}
    for op in listing.ops:
        if op.name == _BROADCAST and op.operands[0] in constant:
            constant.update(op.results)
    for number, op in enumerate(listing.ops):
        if op.name == _COMPARE and not constant.isdisjoint(op.operands):
            yield from ((number, position) for position, v in enumerate(op.operands) if v not in constant)
