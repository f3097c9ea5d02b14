"""In which element type a value is stored while it comes and goes, where not as it travels.

What XLA stores is what leaves a fusion. A sum over a value comes out of the fusion that makes the value, beside it, and does not see what
is stored; elementwise work that alone reads a product, or of which nothing but sums is made, is done before that. So what goes back to a
layer of a float32 network is stored as bfloat16 where products read it, also if the layer has a bias, or an activation function. Of a
convolution that holds where the function's gradient takes it once (rectifiers, tanh; of logistic functions, leaky rectifiers and GELU,
which take it several times, all or some are float32), of other products however often (libtpu 0.0.51, v5e 4x4, 20 perceptrons, ten
convnets). What is scattered is stored as wide as it is added up (a graph network's messages; libtpu 0.0.52, v5e and v6e), but sums of it
over devices are as wide as readers take them (`scattered`).
Where a compiler `keeps_wide_results`, what is worked out as a product leaves the matrix unit from that and vectors alone (a bias, a
function, a sign) is as wide as it is; what goes back, which reads more, is not (libtpu 0.0.52, v6e and tpu7x). Of convolutions that is
so of every chip, also with other values in it, where one op reads the result (libtpu 0.0.52, 30 small chains of convolutions on v5e, v5p,
v6e, v4 and tpu7x, and products of each pixel on v5e; the first convolution of some is stored as bfloat16 on v5e, v5p and v4, by a rule that
is not known, and on v5e so are images of which a product reads all pixels in a row).
What SparseCores gather is as wide as its table is stored: as an argument is, and as bfloat16 where products alone read it and what is
gathered from it (libtpu 0.0.52, six small programs for v6e and v5p); for v5e it is converted as it is gathered.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Site
from autoshard.program.additions import PASSED
from autoshard.program.fusion import is_elementwise, is_reduction
from autoshard.program.handing import is_invariant
from autoshard.program.records import MOVES, Compiler, Kernel
from autoshard.program.repeating import readers_of, unnamed
from autoshard.program.widths import Widths
from autoshard.sharding import TensorType, dtype_bits

_ADD = "stablehlo.add"
_CONVOLUTION = "stablehlo.convolution"
_NAMES = MOVES | PASSED
_PICKS = frozenset({"stablehlo.maximum", "stablehlo.minimum", "stablehlo.select", "stablehlo.clamp"})
_SMALL = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.constant"})
_CONVERT = "stablehlo.convert"
_GATHER, _SCATTER = "stablehlo.gather", "stablehlo.scatter"


class _Finished(NamedTuple):
    value: int
    name: int  # under which it is read, transposed or reshaped
    result: int  # what the fusion that makes it stores


class Storing:
    """What the fusions of a listing store.

    Args:
        pinned: values that are returned or handed on, and stored for that.
        besides: reads that do not count.
    """

    def __init__(
        self,
        listing: Listing,
        kernels: Sequence[Kernel],
        pinned: frozenset[int],
        compiler: Compiler,
        besides: Collection[Site] = (),
    ) -> None:
        counted = _counted(listing, kernels, pinned, besides)
        self._products = {value for kernel in kernels if kernel.shape.is_matmul for value in kernel.results}
        self._finished = list(_finished(kernels, listing, _made_at(kernels), counted, pinned))
        as_made = frozenset(op.results[0] for op in listing.ops if op.name == _SCATTER)
        as_made |= frozenset(_convolved(listing))
        if compiler.keeps_wide_results:
            as_made |= frozenset(_worked_on(listing))
        instead = {one.value: one.result for one in self._finished}
        self.types = Widths(listing, counted, instead, as_made, as_before=True)
        """`of_value` is the type that a value is stored in."""
        wide = frozenset(_as_wide_as_tables(listing, self.types)) if compiler.gathers_apart else frozenset()
        if wide:
            self.types = Widths(listing, counted, instead, as_made | wide, as_before=True)
        self._unscattered = (listing, counted, instead, wide)

    def summed(self) -> Widths:
        """`of_value` is the type in which a value is stored that has been summed over devices."""
        return Widths(*self._unscattered)

    def finished_products(self) -> dict[int, int]:
        """Of elementwise work that is done as a product leaves the matrix unit, each result with the name under which it reads the product.

        What is stored is the result, so that the other operands (a mask, a bias by position) are read there and not again.
        """
        standing, names = set(self._products), dict[int, int]()
        for one in self._finished:
            if one.value in standing:
                names[one.result] = one.name
                standing.add(one.result)
        return names


def _as_wide_as_tables(listing: Listing, types: Widths) -> Iterator[int]:
    """What is gathered from tables that are stored as wide as they are, arguments and what is gathered so among them."""
    wide = {argument.value for argument in listing.arguments}
    wide.update(
        flow.target for flow in listing.data_flows if is_invariant(flow) and flow.sources[0].value in wide
    )
    for op in listing.ops:
        if op.name in _NAMES and not wide.isdisjoint(op.operands[:1]):
            wide.update(op.results)
        elif op.name == _GATHER:
            table = op.operands[0]
            if table in wide or types.of_value(table) == listing.values[table].type:
                wide.update(op.results)
                yield op.results[0]


def _convolved(listing: Listing) -> Iterator[int]:
    """Elementwise work on what convolutions make, but for what only picks elements, that one op reads, as its first operand."""
    worked_on: dict[int, bool] = {}
    for op in listing.ops:
        if op.name == _CONVOLUTION and op.is_matmul:
            worked_on[op.results[0]] = False
        elif op.name != _CONVERT and (op.name in _NAMES or is_elementwise(op)):
            before = [worked_on[value] for value in op.operands if value in worked_on]
            if before:
                (value,) = op.results
                worked_on[value] = any(before) or not (op.name in _NAMES or op.name in _PICKS)
    for value, is_worked_on in worked_on.items():
        reading = listing.readers.get(value, ())
        if is_worked_on and len(reading) == 1 and reading[0].operands[0] == value:
            yield value


def _worked_on(listing: Listing) -> Iterator[int]:
    """Elementwise work on a product that reads nothing else as large, but for what only picks elements, and names and picks of it."""
    made_by = {value: op for op in listing.ops for value in op.results}
    for product in listing.ops:
        value, is_worked_on = product.results[0] if product.is_matmul else -1, False
        while len(reading := listing.readers.get(value, ())) == 1:
            (op,) = reading
            others = [made_by.get(one) for one in op.operands if one != value]
            if op.name not in _NAMES:
                if not is_elementwise(op) or op.name == _CONVERT:
                    break
                if any(other is None or other.name not in _SMALL for other in others):
                    break
                is_worked_on |= op.name not in _PICKS
            (value,) = op.results
            if is_worked_on:
                yield value


def _counted(
    listing: Listing, kernels: Sequence[Kernel], pinned: frozenset[int], besides: Collection[Site]
) -> dict[int, tuple[Site, ...]]:
    """The reads of each value but for sums beside what makes it, and what is not to be counted."""
    made = _made_at(kernels)
    beside = {
        site
        for kernel in _beside(kernels, listing, made, pinned)
        for use in kernel.uses
        for site in use.sites
    }
    beside.update(besides)
    return {
        value: tuple(site for site in all_ if site not in beside) or all_
        for value, all_ in listing.sites.items()
    }


def _made_at(kernels: Sequence[Kernel]) -> dict[int, Kernel]:
    return {value: kernel for kernel in kernels for value in kernel.results}


def _beside(
    kernels: Sequence[Kernel], listing: Listing, made: Mapping[int, Kernel], pinned: frozenset[int]
) -> Iterator[Kernel]:
    """Sums of what the fusion makes that they are part of, and elementwise work that is done for such sums only."""
    readers, found = readers_of(kernels), set[int]()
    for kernel in reversed(kernels):
        op = listing.ops[kernel.time]
        is_sum = is_reduction(op) and (op.reducer == _ADD or op.name != "stablehlo.reduce")
        is_for_sums = (
            is_elementwise(op)
            and pinned.isdisjoint(kernel.results)
            and all(reader.time in found for value in kernel.results for reader in readers.get(value, ()))
        )
        if (is_sum and _is_fused(kernel, made, listing)) or is_for_sums:
            found.add(kernel.time)
            yield kernel


def _is_fused(kernel: Kernel, made: Mapping[int, Kernel], listing: Listing) -> bool:
    """Whether it runs with what makes the last of its operands, and reads what that stores."""
    last = _last(kernel, made)
    if last is None or not _is_fusion(last, listing):
        return False
    before = _last(last, made) if is_elementwise(listing.ops[last.time]) else None
    sites = [use.sites for use in last.uses if before is not None and use.value in before.results]
    return before is None or all(_takes_all_of(before, read) for read in sites)


def _last(kernel: Kernel, made: Mapping[int, Kernel]) -> Kernel | None:
    """What makes the last of its operands."""
    makers = (made[use.value] for use in kernel.uses if use.value in made)
    return max(makers, key=lambda maker: maker.time, default=None)


def _takes_all_of(kernel: Kernel, sites: Sequence[Site]) -> bool:
    """Whether one fusion with that kernel makes what an elementwise one makes that reads its result there."""
    return len(sites) == 1 or (kernel.shape.is_matmul and kernel.shape.name != _CONVOLUTION)


def _is_fusion(kernel: Kernel, listing: Listing) -> bool:
    return kernel.shape.is_matmul or is_elementwise(listing.ops[kernel.time])


def _finished(
    kernels: Sequence[Kernel],
    listing: Listing,
    made: Mapping[int, Kernel],
    sites: Mapping[int, tuple[Site, ...]],
    pinned: frozenset[int],
) -> Iterator[_Finished]:
    """Values that one elementwise kernel alone reads, transposed, reshaped or not, in the fusion that makes them, and what it stores."""
    reading = {site: kernel for kernel in kernels for use in kernel.uses for site in use.sites}

    def reader_of(value: int) -> tuple[int, Kernel] | None:
        """The one kernel that reads it, and under which name."""
        while value not in pinned and (read := sites.get(value, ())):
            reader = reading.get(read[0])
            if reader is None or any(reading.get(site) is not reader for site in read):
                return None
            if listing.ops[reader.time].name not in PASSED or len(reader.uses) != 1:
                return value, reader
            value = reader.results[0]
        return None

    for kernel in kernels:
        for value in kernel.results if _is_fusion(kernel, listing) else ():
            found = reader_of(value)
            if found is None:
                continue
            name, reader = found
            others = (_made_at_time(use.value, made) for use in reader.uses if use.value != name)
            if (
                _takes_all_of(kernel, sites[name])
                and is_elementwise(listing.ops[reader.time])
                and reader.repeat == kernel.repeat
                and max(others, default=-1) <= kernel.time
                and _takes_no_more(reader.shape.results[0], listing.values[name].type)
            ):
                yield _Finished(value, name, reader.results[0])


def _made_at_time(value: int, made: Mapping[int, Kernel]) -> int:
    """When what it is a name for is made; -1 of an argument."""
    maker = made.get(unnamed(value, made))
    return maker.time if maker is not None else -1


def _takes_no_more(type_: TensorType, before: TensorType | None) -> bool:
    """As many elements, no wider."""
    return (
        before is not None
        and type_.num_elements == before.num_elements
        and dtype_bits(type_.dtype) <= dtype_bits(before.dtype)
    )
