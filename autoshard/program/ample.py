"""The kernels of a compiler with memory to spare: it stores what costs many instructions to repeat and what two buffers would be read for.

A compiler short of memory repeats elementwise work instead (XLA's rematerialisation pass, which runs where a program would not fit);
`lifetimes` of the kernels as `build` makes them are those. Both are needed: the one says what a plan takes, the other whether it fits.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, FREE_LEAVES, RESHAPING, is_reduction
from autoshard.program.headed import scaled_weights
from autoshard.program.lifetime import stored_bytes
from autoshard.program.matrices import read_as_matrices
from autoshard.program.pooled import POOL
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
from autoshard.program.softmaxes import Softmaxes, is_narrow
from autoshard.program.traded import Traffic, as_first
from autoshard.program.widths import Widths

_EXPONENTIAL, _LOGISTIC, _DIVIDE = "stablehlo.exponential", "stablehlo.logistic", "stablehlo.divide"
_SELECT_AND_SCATTER = "stablehlo.select_and_scatter"
_PAD, _ERFC, _ADD = "stablehlo.pad", "chlo.erfc", "stablehlo.add"
_GATING = (
    frozenset(f"stablehlo.{name}" for name in ("multiply", "divide", "negate", "convert", "logistic", "tanh"))
    | RESHAPING
    | FREE_LEAVES
    | {BROADCAST, _EXPONENTIAL}
)

LONGEST_ROW = 8192
"""Elements of a softmax's row up to which XLA:TPU was seen to keep exponentials that are wider than what they are made of; not of a
loss."""


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
    a polynomial in float32, beside its operand (ViT, BERT, RoBERTa), or what goes back to a softmax's scores; other functions that are
    worked out in float32 and narrowed products repeat, also of normalized values (a VAE's blocks; perceptrons and convnets with logistic
    functions, tanh and GELU), and so they do what a loss gives back to its logits, which loops alone are handed (`wholes`; libtpu 0.0.52,
    losses of optax, of levanter and by one-hot labels, vocabularies whole and split, v5e, v6e and v5p).

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
    keeper = _Keeper(kernels, listing, permanent, may_repeat, repeated, names, cut, compiler, held, inside)
    return Ample([keeper.kept(kernel) for kernel in kernels], keeper.narrowed)


class _Keeper:
    """Decides kernel by kernel, in program order; arguments as of `keep_costly`."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        listing: Listing,
        permanent: frozenset[int],
        may_repeat: Repeatable,
        repeated: Collection[int],
        names: Collection[int],
        cut: Mapping[int, int],
        compiler: Compiler,
        held: Widths,
        inside: frozenset[int],
    ) -> None:
        self._listing, self._permanent, self._may_repeat = listing, permanent, may_repeat
        self._repeated, self._names, self._cut, self._inside = repeated, names, cut, inside
        self._compiler = compiler
        self._readers = readers_of(kernels)
        self._as_stored = _read_as_stored(kernels, listing, may_repeat)
        self._made_by = {value: op for op in listing.ops for value in op.results}
        self._softmaxes = Softmaxes(listing, self._made_by, compiler)
        self._pooled = _pooled(listing, self._made_by, compiler)
        self._reduced = _made_of_sums(kernels, listing, may_repeat)
        costly_inside = _costly_inside(kernels, listing, may_repeat)
        self._of_exponentials = _made_of_sums(kernels, listing, may_repeat, costly_inside)
        self._grouped = _read_in_groups(kernels) if compiler.keeps_grouped_operands else frozenset[int]()
        self._reshaped = frozenset[int]()
        if compiler.is_xla_tpu:
            self._reshaped = read_as_matrices(listing) | scaled_weights(listing)
        self._moved = Traffic(kernels, listing, held)
        self._made = {value: kernel for kernel in kernels for value in kernel.results}
        self._roots: dict[int, frozenset[int]] = {}
        self._made_of: dict[int, frozenset[int]] = {}  # of what is stored
        self._costly: set[int] = set()  # values that each reader would repeat costly work for
        self._spared: set[int] = set()  # casts whose equals are names of them
        self.narrowed: dict[int, frozenset[int]] = {}

    def kept(self, kernel: Kernel) -> Kernel:
        root, reads = self._listing.ops[kernel.time], [use.value for use in kernel.uses]
        first = self._moved.first.get(kernel.results[0], -1) if kernel.results else -1
        if first in self._spared and first != kernel.results[0]:
            return as_first(kernel, first)
        stored = frozenset[int]()
        if root.results:
            stored = stored_operands(root, reads, self._listing, self._roots, self._permanent)
        if not kernel.is_alias:
            self._note(root, stored, first)
            return kernel
        (value,) = root.results
        if value in self._names:
            return kernel
        is_stored, is_in_place = False, kernel.is_in_place
        if self._may_repeat.includes(root, len(reads)):
            is_stored, is_in_place = self._stores(kernel, root, reads, stored)
        if is_stored:
            self._made_of[value] = stored
            if first == value and self._keeps(value, stored):
                self._spared.add(value)
        else:
            self._roots[value] = stored
        return replace(kernel, is_alias=not is_stored, is_in_place=is_in_place)

    def _note(self, root: Op, stored: frozenset[int], first: int) -> None:
        """What has a buffer anyway."""
        is_again = (
            root.results and root.results[0] in self._repeated and not self._keeps(root.results[0], stored)
        )
        if not is_again and root.results[:1] == (first,) and self._keeps(first, stored):
            self._spared.add(first)
        whole = as_cut(stored, self._cut)
        if is_again and (len(whole) == 1 or root.results[0] in self._as_stored.products):
            self.narrowed[root.results[0]] = whole
        self._made_of |= dict.fromkeys(root.results, stored)

    def _stores(
        self, kernel: Kernel, root: Op, reads: Sequence[int], stored: frozenset[int]
    ) -> tuple[bool, bool]:
        """Whether what might be repeated is stored, and in place."""
        (value,), listing, compiler = root.results, self._listing, self._compiler
        whole, is_reduced = as_cut(stored, self._cut), value in self._reduced
        is_just_widened = is_reduced and self._softmaxes.are_just_widened(value)
        is_made_again = compiler.products_apart and root.name == _EXPONENTIAL and is_reduced
        is_dear_itself = is_costly(kernel.ops, listing) and not is_just_widened and not is_made_again
        is_dear = is_dear_itself or not self._costly.isdisjoint(reads)
        is_wide_inside = is_widened(root, listing) or (compiler.keeps_erfc and root.name == _ERFC)
        is_narrowed = is_narrowing(root, listing) and value in self._of_exponentials
        is_narrower = is_wide_inside or (is_narrowed and not self._softmaxes.are_logged(value))
        is_epilogue = not is_reduced or is_narrower
        is_for_products = value in self._as_stored.products

        def is_instead() -> bool:
            """Whether it is stored in place of what it is made of, or of work that readers cannot repeat."""
            if is_wide_inside:
                return True
            if is_epilogue and value in self._as_stored.all and (is_narrower or not is_for_products):
                return True
            may_replace = is_dear_itself and (stored or not is_for_products)
            if not may_replace:
                return False
            is_short = is_reduced and _row(listing, value) <= LONGEST_ROW
            width = 2 if is_short and not self._softmaxes.are_logged(value) else 1
            return _replaces(kernel, whole, self._readers, listing, width)

        is_read_again = len(self._readers.get(value, ())) > 1
        is_kept = (
            value in self._pooled
            or (is_for_products and self._is_read_often(value) and self._keeps(value, stored))
            or (is_dear and is_read_again and is_instead())
        )
        is_free = any(self._may_repeat.is_recomputed(root, buffers, listing) for buffers in (stored, whole))
        is_stored = is_kept or not is_free
        if is_stored and not is_kept and (len(whole) == 1 or is_for_products):
            self.narrowed[value] = whole
        if is_dear and not is_stored:
            self._costly.add(value)
        return is_stored, kernel.is_in_place and not (is_dear and is_narrower)

    def _is_read_often(self, value: int) -> bool:
        """By itself, under other names or as an equal value."""
        readers = self._readers
        return (
            len(readers.get(value, ())) > 1
            or self._moved.has_equals(value)
            or len(read_times(value, readers)) > 1
        )

    def _keeps(self, value: int, stored: Collection[int]) -> bool:
        """Whether products, or a library, read it from a buffer."""
        compiler, softmaxes = self._compiler, self._softmaxes
        if compiler.products_apart and value in self._as_stored.all and value not in self._inside:
            return True
        if value in self._reshaped:
            return True
        uses = self._made[value].uses if value in self._made else ()
        read = self._permanent.intersection(use.value for use in uses) | frozenset(stored)
        is_read_by_products = compiler.is_xla_tpu and value in self._as_stored.products
        if is_read_by_products and softmaxes.are_biased(value):
            return True
        is_spared = is_read_by_products and self._moved.is_spared(value, read)
        if is_spared and not self._is_read_besides(value, stored):
            return True
        is_quotient = compiler.keeps_costly_operands and _is_quotient_of_exponential(
            value, stored, self._listing, self._made_by
        )
        if is_quotient and self._is_wide(value):
            return True
        if not compiler.keeps_narrow_operands:
            is_grouped = value in self._grouped and _is_of_twice_as_much(value, stored, self._listing)
            return is_grouped and softmaxes.are_of_narrow_products(value)
        apart = [one for one in stored if self._made_of.get(one, frozenset()).isdisjoint(stored)]
        one_of_each = {self._cut.get(one, one): one for one in apart}.values()
        is_of_much = _is_of_twice_as_much(value, one_of_each, self._listing)
        is_kept = len(one_of_each) < 2 or self._is_kept_of_several(value, frozenset(apart))
        is_of_others = softmaxes.are_dropped(value) or softmaxes.are_of_turned_scores(value)
        return (is_of_much and is_kept) or is_of_others

    def _is_read_besides(self, value: int, stored: Collection[int]) -> bool:
        """Whether something else reads a buffer that the value is made of, as the backward pass does."""
        made_at = self._made[value].time
        times = (time for one in stored for time in read_times(one, self._readers, besides=value))
        return any(time > made_at for time in times)

    def _is_wide(self, value: int) -> bool:
        """Whether products make of it what is less than half as large."""
        products = (one for one in reading(value, self._readers) if one.shape.is_matmul)
        made = max((stored_bytes(self._listing, one.results[0]) for one in products), default=0)
        return 2 * made < stored_bytes(self._listing, value)

    def _is_kept_of_several(self, value: int, stored: frozenset[int]) -> bool:
        """Whether it is stored where it is made of several values."""
        if self._compiler.keeps_costly_operands:
            work = _work_behind(value, stored, self._listing, self._made_by)
            return any(op.name in COSTLY for op in work)
        return _is_just_gated(value, stored, self._made_by)


def _pooled(listing: Listing, made_by: Mapping[int, Op], compiler: Compiler) -> frozenset[int]:
    """Values whose windows are reduced, and whose windows gradients are scattered to, as they are or padded.

    What is padded XLA:TPU stores as it is or with its padding, which is not counted (ResNet-50 on nine slices, libtpu 0.0.52).
    """
    reduced = {op.operands[0] for op in listing.ops if op.name == POOL}
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
    return is_narrow(value, listing) and sum(stored_bytes(listing, one) for one in stored) >= twice


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
    if not is_narrow(value, listing):
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
