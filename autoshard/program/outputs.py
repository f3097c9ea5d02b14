"""Where values are made: beside which products, and in which loop body, branch or function."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import RESHAPE, is_elementwise
from autoshard.program.prefetch import prefetchable
from autoshard.program.records import MOVES, Kernel, KernelShape, Lifetime, Program
from autoshard.program.repeating import merges_rows
from autoshard.sharding import dtype_bits

_SLICE = "stablehlo.slice"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A value that each reader evaluates for itself.

    Attributes:
        origin: the elementwise result behind it, under whatever name.
        is_made_with_product: whether one fusion makes it and the product that it is made of.
        is_of_little: whether all that it is made of has fewer elements (one-hot rows of indices): each product makes it for itself.
    """

    origin: int
    is_made_with_product: bool
    is_of_little: bool = False

    def stored_from(self, lives: Mapping[int, Lifetime], time: int) -> int:
        """When it is made for a loop that runs at `time`: beside the product that makes what it works on, else then."""
        return lives[self.origin].begin if self.is_made_with_product else time


def repeated_values(program: Program) -> dict[int, Repeated]:
    """All of them; loops are handed these evaluated."""
    beside, origins = made_with_products(program), repeated_origins(program)
    little = frozenset(_made_of_little(set(origins.values()), program))
    return {value: Repeated(origin, origin in beside, origin in little) for value, origin in origins.items()}


def repeated_origins(program: Program) -> dict[int, int]:
    """Values that each reader evaluates for itself -> the elementwise result behind them, under whatever name."""
    found: dict[int, int] = {}
    for kernel in program.kernels:
        if not kernel.is_alias or not kernel.results:
            continue
        (value, *_) = kernel.results
        if is_elementwise(program.listing.ops[kernel.time]):
            found[value] = value
        elif kernel.uses and kernel.uses[0].value in found:
            found[value] = found[kernel.uses[0].value]
    return found


def _made_of_little(values: Iterable[int], program: Program) -> Iterator[int]:
    """Those of the values that are worked out from nothing of as many elements."""
    named = {result: kernel for kernel in program.kernels if kernel.is_alias for result in kernel.results}

    def elements(value: int) -> int:
        type_ = program.listing.values[value].type
        return type_.num_elements if type_ is not None else 0

    for value in values:
        behind, left, is_of_little = {value}, [value], True
        while left and is_of_little:
            uses = {use.value for use in named[left.pop()].uses if elements(use.value) >= elements(value)}
            is_of_little = uses <= named.keys()
            left += uses - behind
            behind |= uses
        if is_of_little:
            yield value


def stored_beside(program: Program) -> dict[tuple[int, int], tuple[tuple[int, Lifetime], ...]]:
    """What is made of one product alone, beside such work that a loop may be handed, and is stored with memory to spare; by (time, operand)
    of the first product that may be that loop.

    One fusion makes the product and all of these. XLA, short of memory, makes elementwise work anew, but not that: the error function of
    exact GELU is there besides its result where that is handed to a loop (BERT L, pairs of texts, weights gathered, on v5e 4x4: 18.9 GB;
    data parallel, without loops, 15.5 GB of what would be 18.7; libtpu 0.0.52).
    """
    behind, repeated = _products_behind(program), repeated_origins(program)
    stored: dict[frozenset[int], dict[int, Lifetime]] = {}
    for value, products in behind.items():
        life, ample = program.lifetimes.get(value), program.ample_lifetimes.get(value)
        if ample is not None and ample.is_own_buffer and life is not None and not life.is_own_buffer:
            stored.setdefault(products, {})[value] = ample
    found: dict[tuple[int, int], tuple[tuple[int, Lifetime], ...]] = {}
    for kernel in program.kernels if stored else ():
        for operand, use in enumerate(kernel.uses if kernel.shape.is_matmul else ()):
            handed = repeated.get(use.value)
            products = behind.get(handed, frozenset[int]()) if handed is not None else frozenset[int]()
            if sums_rows(kernel.shape, operand):
                beside = stored.pop(products, {})
                found[kernel.time, operand] = tuple((v, life) for v, life in beside.items() if v != handed)
    return found


def made_with_products(program: Program) -> frozenset[int]:
    """Elementwise results, reshaped or not, of nothing but results of products and what is there ahead of time."""
    return frozenset(_products_behind(program))


def _products_behind(program: Program) -> dict[int, frozenset[int]]:
    """Of each of those, the results of the products."""
    early, ops = prefetchable(program), program.listing.ops
    found: dict[int, frozenset[int]] = {}
    products = {value for kernel in program.kernels if kernel.shape.is_matmul for value in kernel.results}
    for kernel in program.kernels:
        made = [use.value for use in kernel.uses if use.value not in early]
        is_work = is_elementwise(ops[kernel.time]) or ops[kernel.time].name in (RESHAPE, _SLICE)
        if made and is_work and all(v in products or v in found for v in made):
            behind = frozenset[int]().union(*(found.get(v, frozenset({v})) for v in made))
            found.update(dict.fromkeys(kernel.results, behind))
    return found


def lone_operands(program: Program) -> frozenset[tuple[int, int]]:
    """(value, root op) of products that alone in their loop, branch or function read a value made there, in any of the ways of
    `product_reads`."""
    return frozenset(read for read, others in product_reads(program).items() if not others)


def product_reads(program: Program) -> dict[tuple[int, int], frozenset[tuple[int, int]]]:
    """(value, root op) of products that read a value made in their loop body, branch or function -> the other products there that read it,
    transposed, widened, as rows of one matrix or not, also where it is computed again, in the same terms.

    What loops, branches and manual computations hand on is made elsewhere; arguments are made where main begins. XLA takes a product's
    widening of what it reads away before it partitions (libtpu 0.0.51), but no narrowing.
    """
    ops = program.listing.ops
    made_by = {value: op for op in ops for value in op.results}
    arguments = {argument.value for argument in program.listing.arguments}
    readers: dict[tuple[int, int], set[tuple[int, int]]] = {}
    reads: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for kernel in program.kernels:
        root = kernel.ops[-1]
        for use in kernel.uses if kernel.shape.is_matmul else ():
            value = use.value
            while (made := made_by.get(value)) is not None and (
                merges_rows(made, program.listing) or _is_same_operand(made, program.listing)
            ):
                value = made.operands[0]
            key = program.listing.first_of(value), ops[root].region
            readers.setdefault(key, set()).add((use.value, root))
            place = 0 if use.value in arguments else made_by[use.value].region if use.value in made_by else -1
            if place == ops[root].region and all(op == root for op, _ in use.sites):
                reads.append((key, (use.value, root)))
    return {read: frozenset(one for one in readers[key] if one[1] != read[1]) for key, read in reads}


class SharedReads:
    """When products need what a loop is handed besides it; a loop is what may sum over the first dimension of what it reads."""

    def __init__(self, program: Program) -> None:
        self._reads = product_reads(program)
        self._made_at = {kernel.ops[-1]: kernel for kernel in program.kernels if kernel.shape.is_matmul}

    def spells(
        self, kernel: Kernel, operand: int, handed: tuple[int, int], waiting: Mapping[int, int]
    ) -> list[tuple[int, int]]:
        """(begin, end) of that, but for when the loop of this kernel has the operand: `handed`.

        From the read before, behind it if that is a loop which has it then, and until the last read behind that is none. `waiting` has when
        products run that wait for what they are added to, by their times; those are no loops.
        """
        root = kernel.ops[-1]
        reads = self._reads.get((kernel.uses[operand].value, root), ())
        others = sorted(
            (waiting.get(at, at), at not in waiting and self._is_looped(at, value)) for value, at in reads
        )
        before = [(at, is_looped) for at, is_looped in others if at < root]
        after = [at for at, is_looped in others if at > root and not is_looped]
        begin = before[-1][0] + before[-1][1] if before else handed[0]
        end = after[-1] + 1 if after else handed[1]
        return [spell for spell in ((begin, handed[0]), (handed[1], end)) if spell[0] < spell[1]]

    def _is_looped(self, root: int, value: int) -> bool:
        kernel = self._made_at[root]
        operands = [number for number, use in enumerate(kernel.uses) if use.value == value]
        return any(sums_rows(kernel.shape, number) for number in operands)


def sums_rows(shape: KernelShape, operand: int) -> bool:
    """Whether the first dimension of the operand is summed over."""
    kept = {factor for factors in shape.rule.results[0] for factor in factors}
    return kept.isdisjoint(shape.rule.operands[operand][0])


def gathered_as(program: Program) -> dict[int, int]:
    """Widened values that products alone read -> what was widened, which is gathered for them."""
    ops = program.listing.ops
    others = {value for op in ops if not op.is_matmul for value in op.operands}
    others |= {result.value for result in program.listing.results}
    others |= {source.value for flow in program.listing.data_flows for source in flow.sources}
    return {
        op.results[0]: op.operands[0]
        for op in ops
        if op.name != "stablehlo.transpose"
        and _is_same_operand(op, program.listing)
        and others.isdisjoint(op.results)
    }


def moved_for_products(listing: Listing) -> dict[int, int]:
    """Widened values that are only moved, for products alone, and of which nothing is demanded -> what was widened."""
    others = {result.value for result in listing.results}
    others |= {source.value for flow in listing.data_flows for source in flow.sources}
    multiplied: set[int] = set()
    moved: set[int] = set()

    def is_for_products(value: int) -> bool:
        return value not in others and (value in multiplied or value in moved)

    for op in reversed(listing.ops):  # a value's readers before what makes it
        if op.is_matmul:
            multiplied.update(op.operands)
        elif op.name in MOVES and is_for_products(op.results[0]):
            moved.update(op.operands)
        else:
            others.update(op.operands)
    only_moved = moved - multiplied - others
    return {
        op.results[0]: op.operands[0]
        for op in listing.ops
        if op.name == "stablehlo.convert"
        and op.demand is None
        and op.results[0] in only_moved
        and _is_same_operand(op, listing)
    }


def _is_same_operand(op: Op, listing: Listing) -> bool:
    """Whether products that read what an op makes and what it reads read one operand: transposed, or floating point numbers widened."""
    if op.name != "stablehlo.convert":
        return op.name == "stablehlo.transpose"
    before, after = (listing.values[values[0]].type for values in (op.operands, op.results))
    return (
        before is not None
        and after is not None
        and "f" in before.dtype
        and "f" in after.dtype
        and dtype_bits(before.dtype) < dtype_bits(after.dtype)
    )
