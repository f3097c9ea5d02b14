"""Which values are exponentials and quotients of softmaxes, and of which kind: a compiler with memory to spare keeps some (`ample`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard.mlir.listing import Listing, Op
from autoshard.program.biased import biased_exponentials
from autoshard.program.fusion import BROADCAST, is_cheap, is_reduction
from autoshard.program.records import Compiler, Kernel, Lifetime
from autoshard.program.repeating import is_narrowing
from autoshard.program.turning import turning_of
from autoshard.sharding import TensorType, dtype_bits

_EXPONENTIAL, _SUBTRACT, _LOG = "stablehlo.exponential", "stablehlo.subtract", "stablehlo.log"
_DIVIDE, _COMPARE = "stablehlo.divide", "stablehlo.compare"
_WIDENED = {_EXPONENTIAL, _SUBTRACT, "stablehlo.convert"}
_JUST_WIDENED = {*_WIDENED, BROADCAST}
_QUOTIENT = frozenset({_EXPONENTIAL, _DIVIDE, BROADCAST, "stablehlo.convert", "stablehlo.reshape"})
_ADDING = frozenset({"stablehlo.add", "stablehlo.select"})
_NARROW_BITS = 16
_LEAST_RANK = 4  # sequences, heads, and both of the words


class Softmaxes:
    """What becomes of the scores of attention, whatever kernels it is in."""

    def __init__(self, listing: Listing, made_by: Mapping[int, Op], compiler: Compiler) -> None:
        self._listing, self._made_by = listing, made_by
        logs = [op.operands[0] for op in listing.ops if op.name == _LOG]
        self._logged = {op.operands[0] for op in self._ops_behind(logs) if is_reduction(op)}
        self._biased = biased_exponentials(listing, made_by) if compiler.is_xla_tpu else frozenset[int]()

    def are_just_widened(self, value: int) -> bool:
        """Exponentials whose scores are widened for the softmax and nothing else, or come out of a product in another order of dimensions
        than that; not of a loss, of which somebody asks for the logarithm of the sum.

        XLA:TPU takes their maximum out of the product that makes the scores, and every reader repeats the exponential. Of scores that a
        mask or a bias is added to, in the order in which a product makes them, it takes exponentials and their sum out of that.
        """
        op = self._made_by[value]
        if op.name != _EXPONENTIAL or value in self._logged:
            return False
        inside = self._wide_behind(value)
        is_narrowed = any(is_narrowing(one, self._listing) for one in inside)
        names = {one.name for one in inside}
        return not is_narrowed and (names == _JUST_WIDENED or (names > _WIDENED and self._are_turned(value)))

    def scores_of(self, value: int) -> TensorType | None:
        """As what scores of 16 bits leave their product, of exponentials of these that are widened and masked; None of others."""
        op, type_ = self._made_by.get(value), self._listing.values[value].type
        if op is None or op.name != _EXPONENTIAL or type_ is None or value in self._logged:
            return None
        if is_narrow(value, self._listing) or not {one.name for one in self._wide_behind(value)} > _WIDENED:
            return None
        products = [product.results[0] for product in self._products_behind(value)]
        made = self._listing.values[products[0]].type if len(products) == 1 else None
        if made is None or not is_narrow(products[0], self._listing):
            return None
        return replace(type_, dtype=made.dtype)

    def _are_turned(self, value: int) -> bool:
        """Whether a narrow product that it is made of is transposed in another way than its operands could be exchanged for."""
        products = [op for op in self._products_behind(value) if is_narrow(op.results[0], self._listing)]
        turnings = [turning_of(product, self._listing) for product in products]
        return any(turning is not None and not turning.is_exchange for turning in turnings)

    def _products_behind(self, value: int) -> list[Op]:
        """Of as many elements."""
        size = self._num_elements(value)
        return [
            op
            for op in self._ops_behind([value])
            if op.is_matmul and self._num_elements(op.results[0]) == size
        ]

    def _num_elements(self, value: int) -> int:
        type_ = self._listing.values[value].type
        return 0 if type_ is None else type_.num_elements

    def are_logged(self, value: int) -> bool:
        """What is made of exponentials of whose sums somebody asks for the logarithms, as losses do, and z-losses of
        attention."""
        before = self._ops_behind([value], frozenset({_EXPONENTIAL}))
        made = {op.results[0] for op in before if op.name == _EXPONENTIAL}
        return bool(made) and made <= self._logged

    def are_dropped(self, value: int) -> bool:
        """Narrow quotients, some of which a comparison drops, of scores that a bias or a mask was added to."""
        if not is_narrow(value, self._listing):
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

    def are_of_turned_scores(self, value: int) -> bool:
        """Narrow quotients, and nothing more, of exponentials that readers repeat of scores in another order of dimensions."""
        if not is_narrow(value, self._listing):
            return False
        before = [op for op in self._ops_behind([value], frozenset({_EXPONENTIAL})) if not is_reduction(op)]
        made, names = [op.results[0] for op in before if op.name == _EXPONENTIAL], {op.name for op in before}
        is_quotient = {_EXPONENTIAL, _DIVIDE} <= names <= _QUOTIENT
        return is_quotient and all(map(self._are_turned, made))

    def are_of_narrow_products(self, value: int) -> bool:
        """Quotients of exponentials of scores of a product that reads nothing wider."""
        left, seen = [value], set[int]()
        while left:
            op = self._made_by.get(left.pop())
            if op is None or op.results[0] in seen:
                continue
            seen.add(op.results[0])
            if op.is_matmul:
                return all(is_narrow(operand, self._listing) for operand in op.operands)
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


def is_narrow(value: int, listing: Listing) -> bool:
    """Whether it is of 16 bits."""
    type_ = listing.values[value].type
    return type_ is not None and dtype_bits(type_.dtype) == _NARROW_BITS


def scores_of_one(
    kernels: Sequence[Kernel], listing: Listing, lives: Mapping[int, Lifetime], compiler: Compiler
) -> dict[int, TensorType]:
    """Exponentials with a buffer in whose place the scores are stored on a device with one sequence, of this type.

    Of several sequences, even with one head, XLA:TPU makes exponentials and sums where it makes the scores; of one it makes the scores
    and their maxima, whose exponentials every reader repeats (libtpu 0.0.52; v5e, v6e and v5p; 1, 2, 16 and 32 heads, 512 to 2048 words,
    masks that are added or chosen by, of words and of positions).
    """
    softmaxes = Softmaxes(listing, {value: op for op in listing.ops for value in op.results}, compiler)
    found: dict[int, TensorType] = {}
    for kernel in kernels:
        for value in kernel.results if kernel.shape.name == _EXPONENTIAL else ():
            scores = softmaxes.scores_of(value) if lives[value].is_own_buffer else None
            if scores is not None and scores.rank >= _LEAST_RANK:
                found[value] = scores
    return found
