"""What a compiler evaluates in each reader of a value instead of storing it, and what it stores whole nevertheless."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import RESHAPE, adds_unit_dims, is_elementwise, is_reduction
from autoshard.program.gates import Gates
from autoshard.program.pooled import POOL
from autoshard.program.records import Compiler, Kernel, Lifetime, Whole
from autoshard.sharding import TensorType, dtype_bits

COSTLY = frozenset(
    {
        f"stablehlo.{name}"
        for name in ("atan2", "cbrt", "cosine", "exponential", "exponential_minus_one", "log", "log_plus_one")
    }
    | {f"stablehlo.{name}" for name in ("logistic", "power", "sine", "tan", "tanh")}
    | {
        f"chlo.{name}"
        for name in (
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "bessel_i1e",
            "cosh",
            "digamma",
            "erf",
            "erf_inv",
            "erfc",
        )
    }
    | {f"chlo.{name}" for name in ("lgamma", "next_after", "polygamma", "sinh", "tan", "zeta")}
)
"""Elementwise ops of many instructions each, which XLA's fusion does not repeat (`InstructionFusion::IsExpensive`)."""


def is_costly(ops: Sequence[int], listing: Listing) -> bool:
    """Whether a kernel of those ops has elementwise work of many instructions in it."""
    return any(listing.ops[op].name in COSTLY for op in ops)


def is_narrowing(root: Op, listing: Listing) -> bool:
    """A conversion to a type of fewer bytes."""
    if root.name != "stablehlo.convert":
        return False
    before, after = (_bytes(listing, values[0]) for values in (root.operands, root.results))
    return after < before


_POLYNOMIALS = frozenset({"chlo.erf", "chlo.erf_inv", "chlo.erfc"})
_WORD_BYTES = 4
_MATRIX_RANK = 2
_PAD = "stablehlo.pad"
_CUTS = frozenset({_PAD, "stablehlo.slice"})


def is_widened(root: Op, listing: Listing) -> bool:
    """A function that is worked out as a long polynomial in float32 and narrowed again."""
    type_ = listing.values[root.results[0]].type if root.results else None
    return root.name in _POLYNOMIALS and type_ is not None and dtype_bits(type_.dtype) < 8 * _WORD_BYTES


@dataclass(frozen=True, slots=True)
class Repeatable:
    """Which results a compiler can evaluate in each of their readers."""

    zeros: frozenset[int]  # values that are zero everywhere
    transposed: frozenset[int]  # and those of `into_matmuls`
    gathered: frozenset[int]
    """What gathers take their slices from, also under the names that it had before reshapes."""
    only_gathered: frozenset[int]  # and what nothing else reads
    into_pools: frozenset[int]  # see `pooled.into_pools`
    gates: Gates

    def includes(self, root: Op, operands: int) -> bool:
        """Whether the kernel of that root and so many operands is elementwise work, in any order of dimensions where matmuls alone read it.

        A transpose of one operand is none: it is that operand's buffer.
        """
        is_work_on_transposed = operands > 1 and not self.transposed.isdisjoint(root.results)
        is_work = is_elementwise(root) or adds_unit_dims(root) or is_selecting(root, self.zeros)
        return is_work or is_work_on_transposed

    def is_stored_whole(self, value: int, stored: frozenset[int]) -> bool:
        """Whether XLA:TPU makes and stores all of an elementwise result for gathers, however few rows they take.

        So it does where the result is made of arguments (a table of embeddings is converted as a whole, and a matmul that reads the same
        table reads what is stored) and where gathers alone read it (the logarithms of a softmax of which a loss picks one a row).

        Args:
            stored: the buffers behind its operands, leaving out arguments.
        """
        return value in self.only_gathered or (not stored and value in self.gathered)

    def is_recomputed(self, root: Op, stored: frozenset[int], listing: Listing) -> bool:
        """Whether a compiler can repeat this elementwise kernel in each of its readers instead of storing its result, at no loss of memory.

        So it is where one buffer, no larger than the result, holds all that it needs (XLA's fusion duplicates such producers), or is there
        for a reader anyway; of what is pooled several may.
        """
        result = root.results[0]
        return (len(stored) <= 1 or result in self.into_pools) and all(
            _bytes(listing, value) <= _bytes(listing, result) or self.gates.is_gate(result, value)
            for value in stored
        )


def made_for_gathers(
    kernels: Sequence[Kernel], listing: Listing, may_repeat: Repeatable
) -> dict[int, tuple[Whole, ...]]:
    """Elementwise results without a buffer that gathers read: there is a copy for these.

    A loss that picks labels from logits in bfloat16 after their conversion to float32 has these logits twice for a while (libtpu 0.0.51,
    training steps of BERT, BART and a GPT): the loss is needed at the end only, and labels are picked there (BlenderBot, Phi-3 and GPT-NeoX
    on v5e, v5p and v6e); but where what goes back to the logits is summed too, for a bias, one fusion makes both. What is worked out as a
    product leaves the matrix unit, and has its type, is there in its place: logits with a bias in float32.
    """
    readers, last = readers_of(kernels), len(listing.ops) - 1
    awaited = _awaited_by_products(kernels, listing)
    products = {kernel.results[0]: kernel for kernel in kernels if kernel.shape.is_matmul}
    found: dict[int, tuple[Whole, ...]] = {}
    for kernel in kernels:
        if kernel.is_alias and may_repeat.includes(listing.ops[kernel.time], len(kernel.uses)):
            (value,) = kernel.results
            if any(_is_in_place_of(kernel, products.get(use.value), readers) for use in kernel.uses):
                continue
            gathers = [r.time for r in readers.get(value, ()) if _is_picking(r, value, listing)]
            if gathers:
                sums = [time for time in read_times(value, readers) if is_reduction(listing.ops[time])]
                is_last = max(sums, default=0) < min(gathers) and awaited.isdisjoint(gathers)
                begin, end = (last, last) if is_last else (min(gathers), max([*gathers, *sums]))
                found[value] = (Whole(begin, end + 1, kernel.shape.results[0], is_value=True),)
    return found


def picked_at_the_end(
    wholes: Mapping[int, Sequence[Whole]],
    kernels: Sequence[Kernel],
    listing: Listing,
    lives: Mapping[int, Lifetime],
    compiler: Compiler,
) -> dict[int, Lifetime]:
    """Logarithms that are wider than what they are made of, and that a loss picks labels from, are made where that is: at the end.

    What these, and copies of what has no buffer, are made of is there until then. Where what goes back is summed too, for a bias, a
    compiler that picks behind the loop over that (`picking`) does not wait (a step with a biased head on v5e: 0.82, 1.04).
    """
    readers, last = readers_of(kernels), len(listing.ops) - 1
    awaited = _awaited_by_products(kernels, listing)
    made = {value: kernel for kernel in kernels for value in kernel.results}
    found = dict(lives)
    for value, copies in wholes.items():
        if value in found and not found[value].is_own_buffer and any(copy.begin == last for copy in copies):
            _keep_buffers([value], last + 1, made, found)
    for value, kernel in made.items():
        by = {reader.time for reader in readers.get(value, ()) if _is_picking(reader, value, listing)}
        is_picked = bool(by) and len(by) == len(readers[value]) and awaited.isdisjoint(by)
        life = found.get(value)
        if not is_picked or life is None or not life.is_own_buffer:
            continue
        later = (time for use in kernel.uses for time in read_times(use.value, readers) if time > max(by))
        are_summed = any(_sums_rows(listing.ops[time], kernel.shape.results[0], listing) for time in later)
        if _is_wider(kernel, made, listing) and not (are_summed and compiler.picks_behind_loops):
            found[value] = replace(life, begin=last, end=last + 1)
            _keep_buffers([use.value for use in kernel.uses], last + 1, made, found)
    return found


def _sums_rows(op: Op, logits: TensorType, listing: Listing) -> bool:
    """Whether it reduces logits, or what goes back to them, to one element a word."""
    type_ = listing.values[op.results[0]].type if is_reduction(op) else None
    return type_ is not None and type_.shape[-1:] == logits.shape[-1:]


def _keep_buffers(
    values: Sequence[int], end: int, made: Mapping[int, Kernel], lives: dict[int, Lifetime]
) -> None:
    """The values, or the buffers that they are worked out from."""
    left = list(values)
    while left:
        value = left.pop()
        life = lives.get(value)
        if life is None or life.end >= end:
            continue
        lives[value] = replace(life, end=end)
        if not life.is_own_buffer and value in made:
            left.extend(use.value for use in made[value].uses)


def _is_picking(reader: Kernel, value: int, listing: Listing) -> bool:
    return listing.ops[reader.time].name == "stablehlo.gather" and reader.uses[0].value == value


def _is_wider(kernel: Kernel, made: Mapping[int, Kernel], listing: Listing) -> bool:
    """Whether it is elementwise work on a buffer of as many elements that takes fewer bytes."""
    (result,) = kernel.shape.results
    left = [use.value for use in kernel.uses] if is_elementwise(listing.ops[kernel.time]) else []
    while left:
        value = left.pop()
        type_ = listing.values[value].type
        if type_ is None or type_.num_elements != result.num_elements:
            continue
        if value in made and made[value].is_alias:
            left.extend(use.value for use in made[value].uses)
        elif type_.num_bytes < result.num_bytes:
            return True
    return False


def _awaited_by_products(kernels: Sequence[Kernel], listing: Listing) -> frozenset[int]:
    """When kernels run that products, or loops, wait for."""
    waiting = {source.value for flow in listing.data_flows for source in flow.sources}
    found = set[int]()
    for kernel in reversed(kernels):
        if kernel.shape.is_matmul or kernel.repeat > 1 or not waiting.isdisjoint(kernel.results):
            waiting.update(use.value for use in kernel.uses)
            found.add(kernel.time)
    return frozenset(found)


def _is_in_place_of(kernel: Kernel, product: Kernel | None, readers: "Readers") -> bool:
    return (
        product is not None
        and product.shape.results == kernel.shape.results
        and len(readers[product.results[0]]) == 1
    )


Readers = dict[int, list[Kernel]]


def readers_of(kernels: Sequence[Kernel]) -> Readers:
    """The kernels that read each value."""
    found: Readers = {}
    for kernel in kernels:
        for use in kernel.uses:
            found.setdefault(use.value, []).append(kernel)
    return found


def unshaped(value: int, made: Mapping[int, Kernel]) -> int:
    """What it was before it was reshaped."""
    while (maker := made.get(value)) is not None and maker.is_alias and maker.shape.name == RESHAPE:
        value = maker.uses[0].value
    return value


def unnamed(value: int, made: Mapping[int, Kernel]) -> int:
    """What it is a name for."""
    while (maker := made.get(value)) is not None and maker.is_alias and len(maker.uses) == 1:
        value = maker.uses[0].value
    return value


def read_times(value: int, readers: Readers, besides: int = -1) -> frozenset[int]:
    """When the kernels of `reading` run."""
    return frozenset(kernel.time for kernel in reading(value, readers, besides))


def reading(value: int, readers: Readers, besides: int = -1) -> Iterator[Kernel]:
    """The kernels that read a value, also through what has no buffer, but for those who do so through `besides` alone; some come again."""
    left, seen = [value], {value, besides}
    while left:
        for reader in readers.get(left.pop(), ()):
            if not reader.is_alias:
                yield reader
            elif reader.results[0] not in seen:
                seen.add(reader.results[0])
                left.append(reader.results[0])


def read_behind(kernel: Kernel, names: Mapping[int, Kernel]) -> set[int]:
    """What a kernel reads, also what that is a name for."""
    found, left = set[int](), [use.value for use in kernel.uses]
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            left.extend(use.value for use in (names[value].uses if value in names else ()))
    return found


def repeatable(
    listing: Listing,
    zeros: frozenset[int],
    pinned: frozenset[int],
    renaming: frozenset[str],
    pooled_inside: frozenset[int],
) -> Repeatable:
    """Args: values that are zero everywhere, and those that keep a buffer of their own; ops that products look through; what is made of
    several buffers where it is pooled."""
    gathered, others = set[int](), set(pinned)
    for op in reversed(listing.ops):
        is_name = op.name == RESHAPE and op.results[0] in gathered
        if op.name == "stablehlo.gather" or is_name:
            gathered.add(op.operands[0])
        is_for_gathers = op.name == "stablehlo.gather" or (is_name and op.results[0] not in others)
        others.update(op.operands[1:] if is_for_gathers else op.operands)
    return Repeatable(
        zeros,
        into_matmuls(listing, zeros, pinned, renaming),
        frozenset(gathered),
        frozenset(gathered - others),
        pooled_inside,
        Gates(listing),
    )


def is_selecting(op: Op, zeros: frozenset[int]) -> bool:
    """A scatter into zeros that writes no element twice, and as much in each row: XLA:TPU selects by a comparison instead.

    That is elementwise work on indices and updates. So it is with what a loss gives back to the logits of which it picks one in a row of
    the vocabulary (libtpu 0.0.51). `zeros` are the values that are zero everywhere.
    """
    rule = op.rule
    if op.name != "stablehlo.scatter" or rule is None or len(op.operands) != 3 or op.operands[0] not in zeros:
        return False
    written = {factor for dim in rule.results[0] for factor in dim}
    updates = {factor for dim in rule.operands[2] for factor in dim}
    return not updates.isdisjoint(written) and all(rule.factors[f].size == 1 for f in updates - written)


def stored_operands(
    root: Op,
    reads: Sequence[int],
    listing: Listing,
    roots: Mapping[int, frozenset[int]],
    permanent: frozenset[int],
) -> frozenset[int]:
    """The buffers behind a kernel's operands, leaving out `permanent` ones and those with less than half the result's bytes.

    `roots` has the buffers behind each value that is itself recomputed.
    """
    result = listing.values[root.results[0]].type
    found: set[int] = set()
    for value in reads:
        for buffer in _buffers(value, roots):
            size = result.num_bytes if result is not None else 0
            if buffer not in permanent and 2 * _bytes(listing, buffer) >= size:
                found.add(buffer)
    return frozenset(found)


def _buffers(value: int, roots: Mapping[int, frozenset[int]]) -> Iterator[int]:
    for buffer in roots.get(value, (value,)):
        yield from roots.get(buffer, (buffer,))


def into_matmuls(
    listing: Listing, zeros: frozenset[int], pinned: frozenset[int], renaming: frozenset[str] = frozenset()
) -> frozenset[int]:
    """Values that matmuls alone read, transposed or padded by zeros, as those take their operands in any order of dimensions, and pad; and
    what pools alone read, padded or cut.

    What is transposed they may read as one matrix. XLA folds zeros around an image into the convolutions that read it (MobileNet with
    keras), and what is padded or cut to be pooled into the pooling (its ResNets, DenseNets and NASNets; libtpu 0.0.52, v5e and v6e).

    Args:
        renaming: ops whose results they read as the operands.
    """
    multiplied, as_matrix, others, found = set[int](), set[int](), set(pinned), set[int]()
    pooled, not_pooled = set[int](), set(pinned)
    for op in reversed(listing.ops):  # a value's readers before what makes it
        value = op.results[0] if op.results else -1
        is_for_products = value in multiplied and value not in others
        is_padded = op.name == _PAD and op.operands[1] in zeros and value not in as_matrix
        is_for_pools = op.name in _CUTS and value in pooled and value not in not_pooled
        if is_for_pools or (is_for_products and (op.name == "stablehlo.transpose" or is_padded)):
            found.add(value)
        (pooled if op.name == POOL or is_for_pools else not_pooled).update(op.operands)
        is_matrix = is_for_products and merges_rows(op, listing)
        is_renamed = is_for_products and op.name in renaming
        (multiplied if op.is_matmul or is_matrix or is_renamed else others).update(op.operands)
        as_matrix.update(op.operands if is_matrix or (is_renamed and value in as_matrix) else ())
    return frozenset(found)


def merges_rows(op: Op, listing: Listing) -> bool:
    """A reshape into a matrix of as many columns, in whatever order the rows are."""
    if op.name != RESHAPE:
        return False
    before, after = (listing.values[values[0]].type for values in (op.operands, op.results))
    if before is None or after is None or after.rank != _MATRIX_RANK or not before.rank:
        return False
    return before.shape[-1] == after.shape[-1]


def _bytes(listing: Listing, value: int) -> int:
    type_ = listing.values[value].type
    return type_.num_bytes if type_ is not None else 0
