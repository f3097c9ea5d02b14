"""The kernels of a compiler with memory to spare: it stores what costs many instructions to repeat and what two buffers would be read for.

A compiler short of memory repeats elementwise work instead (XLA's rematerialisation pass, which runs where a program would not fit);
`lifetimes` of the kernels as `build` makes them are those. Both are needed: the one says what a plan takes, the other whether it fits.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.biased import biased_exponentials
from autoshard.program.fusion import BROADCAST, FREE_LEAVES, RESHAPING, is_cheap, is_reduction
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import Compiler, Kernel
from autoshard.program.repeating import (
    COSTLY,
    Readers,
    Repeatable,
    is_costly,
    is_narrowing,
    is_widened,
    read_times,
    readers_of,
    reading,
    stored_operands,
)
from autoshard.program.slicing import as_cut
from autoshard.program.traded import Traffic, as_first
from autoshard.program.widths import Widths
from autoshard.sharding import dtype_bits

_EXPONENTIAL, _SUBTRACT, _LOG = "stablehlo.exponential", "stablehlo.subtract", "stablehlo.log"
_LOGISTIC, _DIVIDE = "stablehlo.logistic", "stablehlo.divide"
_REDUCE_WINDOW, _SELECT_AND_SCATTER = "stablehlo.reduce_window", "stablehlo.select_and_scatter"
_PAD, _ERFC = "stablehlo.pad", "chlo.erfc"
_ADD, _COMPARE = "stablehlo.add", "stablehlo.compare"
_JUST_WIDENED = {_EXPONENTIAL, _SUBTRACT, "stablehlo.convert", BROADCAST}
_ADDING = frozenset({_ADD, "stablehlo.select"})
_GATING = (
    frozenset(f"stablehlo.{name}" for name in ("multiply", "divide", "negate", "convert", "logistic", "tanh"))
    | RESHAPING
    | FREE_LEAVES
    | {BROADCAST, _EXPONENTIAL}
)
_NARROW_BITS = 16

LONGEST_ROW = 8192
"""Elements of a softmax's row up to which XLA:TPU was seen to keep exponentials that are wider than what they are made of."""


class Ample(NamedTuple):
    """Kernels, and of elementwise results with a buffer that is narrower than that of their operand, the operand's: while that lives, each
    reader repeats the work all the same."""

    kernels: list[Kernel]
    narrowed: dict[int, frozenset[int]]


def keep_costly(
    kernels: Sequence[Kernel],
    listing: Listing,
    permanent: frozenset[int],
    may_repeat: Repeatable,
    repeated: Collection[int],
    behind: Mapping[int, int],
    names: Collection[int],
    cut: Mapping[int, int],
    compiler: Compiler,
    held: Widths,
    inside: frozenset[int],
) -> Ample:
    """The same kernels, fewer of them without a buffer: some costly results have one, and so has what needs two.

    A costly result that several kernels read is stored where one of them cannot repeat the work inside (a scatter, say), or where it takes
    the place of what it is made of: that is no smaller and nothing else reads it any more. So XLA:TPU keeps in training steps the
    exponentials of a softmax instead of the scores (rows of up to 8192 also where they are wider, unless scores are just widened for the
    softmax), but of a loss the logits, and of float32 ones too where the loss picks or sums some of them afterwards. Products repeat what
    they read, of one buffer or of several that are stored as long: of an activation function XLA keeps its operands and no result (tanh and
    logistic functions in GPT-J, CLIP, Qwen3; float32 error functions), the quotients of a softmax are made in each product that reads them.
    Of what is pooled by its maximum the backward pass looks for these maxima, which repeats nothing: it is stored in the forward pass,
    beside what it is made of (VGG, Inception). What is computed wider than it is read is stored where it is an error function of bfloat16,
    a polynomial in float32, beside its operand (ViT, BERT, RoBERTa), or what a loss gives back, beside the logits (BERT, BART and GPTs);
    other functions that are worked out in float32 and narrowed products repeat, also of normalized values (a VAE's blocks; perceptrons and
    convnets with logistic functions, tanh and GELU).

    Args:
        repeated: results with a buffer that a compiler short of memory would repeat.
        behind: what values are that enter a manual computation as they left another.
        names: values without a buffer, which their readers make of parts of others, or of others as parts.
        cut: what slices without a buffer are cut from.
        compiler: one that keeps narrow operands stores them for products, one that keeps those of groups only the quotients of a softmax
            whose queries share keys, all of them narrow, one that keeps costly ones quotients of exponentials, one that keeps complementary
            error functions these in float32 too, beside their operand; one whose products are apart makes the exponentials of a softmax
            again in the backward pass, of the scores.
        held: in what type values are stored.
        inside: casts that products read inside where they are apart.
    """
    kernels = [_as_left(kernel, behind) for kernel in kernels]
    readers, as_stored = readers_of(kernels), _read_as_stored(kernels, listing, may_repeat)
    made_by = {value: op for op in listing.ops for value in op.results}
    softmaxes, pooled = _Softmaxes(listing, made_by, compiler), _pooled(listing, made_by, compiler)
    reduced = _made_of_sums(kernels, listing, may_repeat)
    of_exponentials = _made_of_sums(
        kernels, listing, may_repeat, _costly_inside(kernels, listing, may_repeat)
    )

    grouped = _read_in_groups(kernels) if compiler.keeps_grouped_operands else frozenset[int]()
    moved = Traffic(kernels, listing, held)
    made = {value: kernel for kernel in kernels for value in kernel.results}

    def is_read_besides(value: int, stored: Collection[int]) -> bool:
        """Whether something else reads a buffer that the value is made of, as the backward pass does."""
        made_at = made[value].time
        times = (time for one in stored for time in read_times(one, readers, besides=value))
        return any(time > made_at for time in times)

    def keeps(value: int, stored: Collection[int]) -> bool:
        if compiler.products_apart and value in as_stored.all and value not in inside:
            return True
        uses = made[value].uses if value in made else ()
        read = permanent.intersection(use.value for use in uses) | frozenset(stored)
        is_read_by_products = compiler.is_xla_tpu and value in as_stored.products
        if is_read_by_products and softmaxes.are_biased(value):
            return True
        if is_read_by_products and moved.is_spared(value, read) and not is_read_besides(value, stored):
            return True
        is_quotient = compiler.keeps_costly_operands and _is_quotient_of_exponential(
            value, stored, listing, made_by
        )
        if is_quotient and is_wide(value):
            return True
        if not compiler.keeps_narrow_operands:
            is_grouped = value in grouped and _is_of_twice_as_much(value, stored, listing)
            return is_grouped and softmaxes.are_of_narrow_products(value)
        apart = [one for one in stored if made_of.get(one, frozenset()).isdisjoint(stored)]
        one_of_each = {cut.get(one, one): one for one in apart}.values()
        is_of_much = _is_of_twice_as_much(value, one_of_each, listing)
        is_kept = len(one_of_each) < 2 or is_kept_of_several(value, frozenset(apart))
        return (is_of_much and is_kept) or softmaxes.are_dropped(value)

    def is_wide(value: int) -> bool:
        """Whether products make of it what is less than half as large."""
        products = (one for one in reading(value, readers) if one.shape.is_matmul)
        made = max((stored_bytes(listing, one.results[0]) for one in products), default=0)
        return 2 * made < stored_bytes(listing, value)

    def is_kept_of_several(value: int, stored: frozenset[int]) -> bool:
        """Whether it is stored where it is made of several values."""
        if compiler.keeps_costly_operands:
            return any(op.name in COSTLY for op in _work_behind(value, stored, listing, made_by))
        return _is_just_gated(value, stored, made_by)

    roots: dict[int, frozenset[int]] = {}
    made_of: dict[int, frozenset[int]] = {}  # of what is stored
    costly: set[int] = set()  # values that each reader would repeat costly work for
    narrowed: dict[int, frozenset[int]] = {}
    spared: set[int] = set()  # casts whose equals are names of them
    found: list[Kernel] = []
    for kernel in kernels:
        root, reads = listing.ops[kernel.time], [use.value for use in kernel.uses]
        first = moved.first.get(kernel.results[0], -1) if kernel.results else -1
        if first in spared and first != kernel.results[0]:
            found.append(as_first(kernel, first))
            continue
        stored = stored_operands(root, reads, listing, roots, permanent) if root.results else frozenset()
        if not kernel.is_alias:
            is_again = root.results and root.results[0] in repeated and not keeps(root.results[0], stored)
            if not is_again and root.results[:1] == (first,) and keeps(first, stored):
                spared.add(first)
            whole = as_cut(stored, cut)
            if is_again and (len(whole) == 1 or root.results[0] in as_stored.products):
                narrowed[root.results[0]] = whole
            made_of |= dict.fromkeys(root.results, stored)
            found.append(kernel)
            continue
        (value,) = root.results
        if value in names:
            found.append(kernel)
            continue
        is_stored, is_in_place, whole = False, kernel.is_in_place, as_cut(stored, cut)
        if may_repeat.includes(root, len(reads)):
            is_just_widened = value in reduced and softmaxes.are_just_widened(value)
            is_made_again = compiler.products_apart and root.name == _EXPONENTIAL and value in reduced
            is_dear_itself = is_costly(kernel.ops, listing) and not is_just_widened and not is_made_again
            is_dear = is_dear_itself or not costly.isdisjoint(reads)
            is_wide_inside = is_widened(root, listing) or (compiler.keeps_erfc and root.name == _ERFC)
            is_narrower = (is_narrowing(root, listing) and value in of_exponentials) or is_wide_inside
            is_epilogue = value not in reduced or is_narrower
            is_in_place = kernel.is_in_place and not (is_dear and is_narrower)
            width = 2 if value in reduced and _row(listing, value) <= LONGEST_ROW else 1
            is_read_again = len(readers.get(value, ())) > 1
            is_kept = (
                value in pooled
                or (
                    value in as_stored.products
                    and (is_read_again or moved.has_equals(value) or len(read_times(value, readers)) > 1)
                    and keeps(value, stored)
                )
                or (
                    is_dear
                    and is_read_again
                    and (
                        is_wide_inside
                        or (
                            is_epilogue
                            and value in as_stored.all
                            and (is_narrower or value not in as_stored.products)
                        )
                        or (
                            is_dear_itself
                            and (stored or value not in as_stored.products)
                            and _replaces(kernel, whole, readers, listing, width)
                        )
                    )
                )
            )
            is_free = any(may_repeat.is_recomputed(root, buffers, listing) for buffers in (stored, whole))
            is_stored = is_kept or not is_free
            if is_stored and not is_kept and (len(whole) == 1 or value in as_stored.products):
                narrowed[value] = whole
            if is_dear and not is_stored:
                costly.add(value)
        if is_stored:
            made_of[value] = stored
            if first == value and keeps(value, stored):
                spared.add(value)
        else:
            roots[value] = stored
        found.append(replace(kernel, is_alias=not is_stored, is_in_place=is_in_place))
    return Ample(found, narrowed)


def _pooled(listing: Listing, made_by: Mapping[int, Op], compiler: Compiler) -> frozenset[int]:
    """Values whose windows are reduced, and whose windows gradients are scattered to, as they are or padded.

    What is padded XLA:TPU stores as it is or with its padding, which is not counted (ResNet-50 on nine slices, libtpu 0.0.52).
    """
    reduced = {op.operands[0] for op in listing.ops if op.name == _REDUCE_WINDOW}
    found: set[int] = set()
    for op in listing.ops:
        if op.name == _SELECT_AND_SCATTER:
            value = op.operands[0]
            maker = made_by.get(value)
            if maker is not None and maker.name == _PAD:
                (padded, *_) = maker.operands
                is_as_large = stored_bytes(listing, padded) == stored_bytes(listing, value)
                value = padded if is_as_large or (compiler.is_xla_tpu and padded in reduced) else value
            found.add(value)
    return frozenset(found & reduced)


def _as_left(kernel: Kernel, behind: Mapping[int, int]) -> Kernel:
    if not any(use.value in behind for use in kernel.uses):
        return kernel
    return replace(
        kernel, uses=tuple(replace(use, value=behind.get(use.value, use.value)) for use in kernel.uses)
    )


def _row(listing: Listing, value: int) -> int:
    """Elements of the last dimension."""
    type_ = listing.values[value].type
    return type_.shape[-1] if type_ is not None and type_.rank else 1


def _is_of_twice_as_much(value: int, stored: Collection[int], listing: Listing) -> bool:
    """Whether a value of 16 bits is made of buffers of twice its bytes."""
    twice = 2 * stored_bytes(listing, value)
    return _is_narrow(value, listing) and sum(stored_bytes(listing, one) for one in stored) >= twice


def _work_behind(
    value: int, stored: Collection[int], listing: Listing, made_by: Mapping[int, Op]
) -> Iterator[Op]:
    """What a value is worked out by of those that are stored, on as many elements or half of them: not scales, sums and the like."""
    left, seen, least = [value], set[int](stored), stored_bytes(listing, value)
    while left:
        one = left.pop()
        op = made_by.get(one)
        if one not in seen and op is not None:
            seen.add(one)
            yield op
            left.extend(operand for operand in op.operands if 2 * stored_bytes(listing, operand) >= least)


def _is_quotient_of_exponential(
    value: int, stored: Collection[int], listing: Listing, made_by: Mapping[int, Op]
) -> bool:
    """Whether a value of 16 bits is worked out by a division and an exponential, which may be stored itself: softmaxes, logistic functions.

    So XLA keeps them for v4 and TPU7x where products make less than half as much of them, but not those of float32, nor rectifiers,
    hyperbolic tangents, GELU, softplus and Mish (libtpu 0.0.52, training steps of perceptrons with seventeen activation functions, of
    one to four and a half times as many hidden values as others, and of attention).
    """
    if not _is_narrow(value, listing):
        return False
    inside = {op.name for op in _work_behind(value, stored, listing, made_by)}
    read = {made_by[one].name for one in stored if one in made_by}
    return _LOGISTIC in inside or (_DIVIDE in inside and _EXPONENTIAL in inside | read)


def _is_just_gated(value: int, stored: Collection[int], made_by: Mapping[int, Op]) -> bool:
    """Whether stored values are multiplied, as they are or by logistic functions (1 / (1 + exp -x) too) and hyperbolic tangents of them.

    So XLA:TPU keeps the gated values of v5p, and makes those anew that need additions, comparisons or squares (GELU, rectifiers; libtpu
    0.0.51, twelve small training steps).
    """
    left, seen = [value], set[int]()
    while left:
        one = left.pop()
        op = made_by.get(one)
        if one in stored or one in seen or op is None:
            continue
        seen.add(one)
        makers = (made_by.get(operand) for operand in op.operands)
        is_logistic = op.name == _ADD and any(maker and maker.name == _EXPONENTIAL for maker in makers)
        if not (is_logistic or op.name in _GATING) or len(set(op.operands)) < len(op.operands):
            return False
        left.extend(op.operands)
    return True


def _is_narrow(value: int, listing: Listing) -> bool:
    type_ = listing.values[value].type
    return type_ is not None and dtype_bits(type_.dtype) == _NARROW_BITS


class _Softmaxes:
    """What becomes of the scores of attention, whatever kernels it is in."""

    def __init__(self, listing: Listing, made_by: Mapping[int, Op], compiler: Compiler) -> None:
        self._listing, self._made_by = listing, made_by
        logs = [op.operands[0] for op in listing.ops if op.name == _LOG]
        self._logged = {op.operands[0] for op in self._ops_behind(logs) if is_reduction(op)}
        self._biased = biased_exponentials(listing, made_by) if compiler.is_xla_tpu else frozenset[int]()

    def are_just_widened(self, value: int) -> bool:
        """Exponentials whose scores are widened for the softmax and nothing else, which is no loss: nobody asks for the logarithm of the
        sum.

        XLA:TPU takes their maximum in the narrow type, out of the product that makes the scores, and every reader repeats the exponential.
        """
        op = self._made_by[value]
        if op.name != _EXPONENTIAL or value in self._logged:
            return False
        inside = self._wide_behind(value)
        is_narrowed = any(is_narrowing(one, self._listing) for one in inside)
        return not is_narrowed and {one.name for one in inside} == _JUST_WIDENED

    def are_dropped(self, value: int) -> bool:
        """Narrow quotients, some of which a comparison drops, of scores that a bias or a mask was added to."""
        if not _is_narrow(value, self._listing):
            return False
        before = list(self._ops_behind([value], frozenset({_EXPONENTIAL})))
        if not {op.name for op in before} >= {_COMPARE, _DIVIDE}:
            return False
        made = [op.results[0] for op in before if op.name == _EXPONENTIAL]
        return any(op.name in _ADDING for one in made for op in self._wide_behind(one))

    def are_biased(self, value: int) -> bool:
        """Quotients of exponentials of scores that a bias was added to which products do not add (`biased`), dropped or not; what goes back
        to the scores, from which something is subtracted, is none."""
        if not self._biased:
            return False
        before = list(self._ops_behind([value], frozenset({_EXPONENTIAL})))
        names = {op.name for op in before}
        made = {op.results[0] for op in before if op.name == _EXPONENTIAL}
        return _DIVIDE in names and _SUBTRACT not in names and not made.isdisjoint(self._biased)

    def are_of_narrow_products(self, value: int) -> bool:
        """Quotients of exponentials of scores of a product that reads nothing wider."""
        left, seen = [value], set[int]()
        while left:
            op = self._made_by.get(left.pop())
            if op is None or op.results[0] in seen:
                continue
            seen.add(op.results[0])
            if op.is_matmul:
                return all(_is_narrow(operand, self._listing) for operand in op.operands)
            if not is_reduction(op):
                left.extend(op.operands)
        return False

    def _wide_behind(self, value: int) -> list[Op]:
        """What makes the exponentials, of their type."""
        wide = self._listing.values[value].type
        return [op for op in self._ops_behind([value]) if self._listing.values[op.results[0]].type == wide]

    def _ops_behind(self, values: Sequence[int], last: frozenset[str] = frozenset()) -> Iterator[Op]:
        """What makes the values, by cheap work up to reductions, to what is not cheap and to ops named `last`."""
        left, seen = list(values), set[int]()
        while left:
            op = self._made_by.get(left.pop())
            if op is not None and op.results[0] not in seen:
                seen.add(op.results[0])
                yield op
                if is_cheap(op) and not is_reduction(op) and op.name not in last:
                    left.extend(op.operands)


def _made_of_sums(
    kernels: Sequence[Kernel], listing: Listing, may_repeat: Repeatable, times: Collection[int] | None = None
) -> frozenset[int]:
    """What reductions make, those at `times` where given, and elementwise work on that."""
    found: set[int] = set()
    for kernel in kernels:
        root, reads = listing.ops[kernel.time], [use.value for use in kernel.uses]
        is_work = may_repeat.includes(root, len(reads)) or kernel.is_alias
        is_start = is_reduction(root) and (times is None or kernel.time in times)
        if is_start or (is_work and not found.isdisjoint(reads)):
            found.update(kernel.results)
    return frozenset(found)


def _read_in_groups(kernels: Sequence[Kernel]) -> frozenset[int]:
    """What batched products read that have several free dimensions of it, as of queries that share keys, also under another name."""
    found: set[int] = set()
    for kernel in reversed(kernels):
        if kernel.is_alias and not found.isdisjoint(kernel.results):
            found.update(use.value for use in kernel.uses)
        if "b" not in kernel.shape.matmul_roles:
            continue
        rule, roles = kernel.shape.rule, kernel.shape.matmul_roles
        for use, mapping in zip(kernel.uses, rule.operands, strict=True):
            kinds = [{roles[f] for f in dim if rule.factors[f].size > 1} for dim in mapping]
            if any("b" in kind for kind in kinds) and sum(bool(kind & {"m", "n"}) for kind in kinds) > 1:
                found.add(use.value)
    return frozenset(found)


def _costly_inside(kernels: Sequence[Kernel], listing: Listing, may_repeat: Repeatable) -> frozenset[int]:
    """When the reductions run that reduce costly work, as softmaxes do."""
    costly, found = set[int](), set[int]()
    for kernel in kernels:
        root, reads = listing.ops[kernel.time], [use.value for use in kernel.uses]
        if not is_costly(kernel.ops, listing) and costly.isdisjoint(reads):
            continue
        if is_reduction(root):
            found.add(kernel.time)
        elif may_repeat.includes(root, len(reads)) or kernel.is_alias:
            costly.update(kernel.results)
    return frozenset(found)


class _Reads(NamedTuple):
    """Values that kernels read which evaluate none of their operands, also under another name."""

    products: frozenset[int]  # by matrix products, and by such kernels no others
    all: frozenset[int]


def _read_as_stored(kernels: Sequence[Kernel], listing: Listing, may_repeat: Repeatable) -> _Reads:
    found, others = set[int](), set[int]()
    for kernel in reversed(kernels):
        root = listing.ops[kernel.time]
        is_fusing = may_repeat.includes(root, len(kernel.uses)) or is_reduction(root)
        is_name = kernel.is_alias and not is_fusing
        reads = [use.value for use in kernel.uses]
        if (not is_fusing and not is_name) or (is_name and not found.isdisjoint(kernel.results)):
            found.update(reads)
        is_other = not is_fusing and not is_name and not kernel.shape.is_matmul
        if is_other or (is_name and not others.isdisjoint(kernel.results)):
            others.update(reads)
    return _Reads(frozenset(found - others), frozenset(found))


def _replaces(
    kernel: Kernel, stored: Collection[int], readers: Readers, listing: Listing, width: int
) -> bool:
    """Whether what a kernel makes of one buffer, at most `width` times as large, can take its place: nothing else reads that later."""
    if len(stored) != 1:
        return not stored
    (value,), (buffer,) = kernel.results, stored
    is_small = stored_bytes(listing, value) <= width * stored_bytes(listing, buffer)
    return is_small and max(read_times(buffer, readers, besides=value), default=0) < kernel.time
