"""Which dimensions are minor in memory, where who makes or reads a value decides.

A matrix unit: of what it reads a free and a contracted one, of what it writes one of each operand; batch dimensions, and those that
windows slide over, are never minor. Seen in the layouts that XLA:TPU gives dots and convolutions, which it all runs as convolutions.
A gather makes slices and a scatter takes them, each slice along the lanes, and elementwise work on slices keeps them so: rows of 4
columns of an embedding, or of a graph's features, take 128 lanes each. What a scatter makes, and what that is added to, lie so while it
is added only. Seen in what libtpu 0.0.51 compiles for v5e of a recommender's and a graph attention network's training steps.
What is pooled, and what goes back through a pooling, lies as what convolutions make: dimensions that windows slide over are not minor
(VGG's first images in float32 on v5e, 1.7 times as large).
What linear algebra that is a custom call reads and makes, and Cholesky decompositions, lies row by row, each row along the lanes, whatever
the batch (24 x 24 elements take 24 x 128; libtpu 0.0.52, v5e: QR, LU and eigendecompositions).
Memory in tiles pads the two minor dimensions, so that this decides how large a value is stored.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing, Op
from autoshard.program.concatenated import CONCATENATE, FULL_LANES, MOST_PARTS, joined_along, joined_parts
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import (
    Compiler,
    Gathered,
    Kernel,
    KernelShape,
    Lifetime,
    MinorDims,
    RowCopy,
    ScatteredRows,
    Updates,
)
from autoshard.program.repeating import readers_of
from autoshard.program.rowwise import as_asked, gathers_rows, rows_apart, scattered_slices, scatters_rows
from autoshard.sharding import TensorMapping, TensorType

_TABLE_RANK = 2
_SELECT_AND_SCATTER = "stablehlo.select_and_scatter"
_POOLING = frozenset({"stablehlo.reduce_window", _SELECT_AND_SCATTER})
_UPDATES = 2  # operand of a scatter of one table
_CHOLESKY = "stablehlo.cholesky"
_LINEAR_ALGEBRA = frozenset({"Eigh", "LuDecomposition", "ProductOfElementaryHouseholderReflectors", "Qr"})


def minor_dims(kernels: Sequence[Kernel], listing: Listing, compiler: Compiler) -> dict[int, MinorDims]:
    """Of every value that a matmul, a gather or linear algebra makes, or that has no other maker with a say and is read by a matmul, a
    scatter, a pooling or linear algebra, also as a part of what these make where they read it."""
    found: dict[int, MinorDims] = {}
    unpooled: dict[int, MinorDims] = {}
    for kernel in kernels:
        dims = _written(kernel, listing, found)
        if dims is None and (dims := _unpooled(kernel, listing, unpooled)) is not None:
            unpooled[kernel.results[0]] = dims
        if dims is not None:
            found[kernel.results[0]] = dims
        elif _is_of_rows(listing.ops[kernel.time]):
            found.update(_row_by_row(kernel.results, kernel.shape.results))
    for value, dims in _reads(kernels, listing, compiler):
        found.setdefault(value, dims)
    made = {kernel.results[0]: kernel for kernel in kernels if len(kernel.results) == 1}
    joined: dict[int, MinorDims] = {}
    parts = joined_parts(made, listing)
    for kernel in reversed(kernels):
        if kernel.shape.name != CONCATENATE:
            continue
        (value, *_), of = kernel.results, parts.get(kernel.results[0])
        if kernel.is_alias and value in found:
            for use in kernel.uses:
                found.setdefault(use.value, found[value])
        elif not kernel.is_alias and of is not None and of.number > MOST_PARTS:
            joined.update(_joined(kernel, of.values, listing, made, found, compiler.devices))
    return joined | {
        value: dims if (type_ := listing.values[value].type) is None else as_asked(type_, dims)
        for value, dims in found.items()
        if value not in joined
    }


def _joined(
    kernel: Kernel,
    parts: Collection[int],
    listing: Listing,
    made: Mapping[int, Kernel],
    known: Mapping[int, MinorDims],
    devices: int,
) -> Iterator[tuple[int, MinorDims]]:
    """Few images that a convolution makes and that are put together channel by channel: channels are minor, as in the whole, to images."""
    op = listing.ops[kernel.time]
    channels = joined_along(op, listing)
    for value in sorted(parts):
        maker, dims = made.get(value), known.get(value)
        if maker is None or dims is None or not maker.shape.is_matmul or channels not in dims[1]:
            continue
        if channels and maker.shape.results[0].shape[0] < FULL_LANES * devices:
            yield value, ((channels,), (0,), True)


def evaluated_as_made(
    kernels: Sequence[Kernel], listing: Listing, dims: Mapping[int, MinorDims]
) -> frozenset[int]:
    """Elementwise work on what a matrix unit made that at most one product repeats, or on slices in rows: it lies as that does, and is not
    laid out anew.
    """
    found, laid_out = set[int](), set[int]()
    readers = Counter(use.value for kernel in kernels if kernel.shape.is_matmul for use in kernel.uses)
    for kernel in kernels:
        in_rows = {value for value in kernel.results if value in dims and dims[value][2]}
        if kernel.shape.is_matmul or (in_rows and not kernel.is_alias):
            laid_out.update(kernel.results)
        elif kernel.is_alias and is_elementwise(listing.ops[kernel.time]):
            result = kernel.shape.rule.results[0]
            operands = zip(kernel.uses, kernel.shape.rule.operands, strict=True)
            if any(use.value in laid_out for use, mapping in operands if mapping == result):
                laid_out.update(kernel.results)
                found.update(value for value in kernel.results if readers[value] <= 1)
    return frozenset(found)


def returned_as_made(
    kernels: Sequence[Kernel], listing: Listing, returned: Collection[int]
) -> dict[int, MinorDims]:
    """Of results that elementwise work makes of what a matrix unit made: as that lies.

    A runtime takes results in the smallest layout, and where that is another one XLA:TPU copies them behind that work, as it does what the
    matrix unit returns itself (13 shapes, plain and with a bias; libtpu 0.0.51, v5e).
    """
    found: dict[int, MinorDims] = {}
    for kernel in kernels:
        if kernel.shape.is_matmul:
            dims = minor_of_sum(kernel.shape)
        elif not kernel.is_alias and is_elementwise(listing.ops[kernel.time]):
            dims = next(_of_alike(kernel, found), None)
        else:
            continue
        if dims is not None:
            found[kernel.results[0]] = dims
    return {value: dims for value, dims in found.items() if value in returned}


def _of_alike(kernel: Kernel, known: Mapping[int, MinorDims]) -> Iterator[MinorDims]:
    """Of operands whose dimensions are the result's, as far as they are known."""
    result = kernel.shape.rule.results[0]
    for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True):
        if mapping == result and use.value in known:
            yield known[use.value]


def minor_of_sum(shape: KernelShape) -> MinorDims | None:
    """Of what a matrix unit writes, and of rows that are gathered or scattered; None where anything may be minor."""
    rank = shape.results[0].rank
    if shape.is_matmul:
        return _dims(shape, shape.rule.results[0], ("m", "n"))
    if shape.name in ("stablehlo.gather", "stablehlo.scatter") and rank > 1:
        return (rank - 1,), tuple(range(rank - 1)), True
    return None


def minor_of_scattered(shape: KernelShape) -> MinorDims | None:
    """The same of a sum that is scattered; a product that is made turned has a dimension of its first operand along the lanes."""
    dims = minor_of_sum(shape)
    return dims if dims is None or not shape.is_turned else (*dims[:2], True)


def scattered_rows(kernels: Sequence[Kernel], listing: Listing) -> dict[int, ScatteredRows]:
    """Of what scatters make, how it lies while it is."""
    found: dict[int, ScatteredRows] = {}
    for kernel in kernels:
        op = listing.ops[kernel.time]
        if op.name == "stablehlo.scatter" and op.rule is not None and len(op.operands) == 3:
            dims = _slices(op.rule.results[0], op.rule.operands[2], op.rule.operands[1])
            if dims is not None:
                read = (n for n, use in enumerate(kernel.uses) if (kernel.time, _UPDATES) in use.sites)
                along = added[1] if (added := _of_updates(op)) is not None else ()
                slices = scattered_slices(op, listing)
                found[kernel.results[0]] = ScatteredRows(dims, kernel.time + 1, slices, next(read, -1), along)
    return found


def scattered_updates(
    kernels: Sequence[Kernel],
    listing: Listing,
    lives: Mapping[int, Lifetime],
    rows: Collection[int],
    dims: Mapping[int, MinorDims],
    indexed: Mapping[int, MinorDims],
    copies: Collection[int],
) -> dict[int, Updates]:
    """By the times of scatters; not of what is generated there, nor of arguments that are copied into rows when the program begins.

    Args:
        rows: results of scatters into rows (`scattered_rows`).
        dims: how what kernels make lies.
        indexed: how what loops carry does, where that is known.
        copies: those arguments.
    """
    readers = Counter(use.value for kernel in kernels for use in kernel.uses)
    made = {value for kernel in kernels for value in kernel.results}
    found: dict[int, Updates] = {}
    for kernel in kernels:
        in_rows = _of_updates(listing.ops[kernel.time])
        operands = [n for n, use in enumerate(kernel.uses) if (kernel.time, _UPDATES) in use.sites]
        if in_rows is None or not operands or kernel.results[0] not in rows:
            continue
        value = kernel.uses[operands[0]].value
        if value not in copies:
            is_last = value in lives and lives[value].end <= kernel.time + 1
            is_alone = is_last and readers[value] == 1
            written = (dims if value in made else indexed).get(value)
            has_gaps = rows_apart(kernel.shape.operands[operands[0]], in_rows) is not None
            found[kernel.time] = Updates(operands[0], in_rows, written, is_alone, is_last, has_gaps)
    return found


def _written(kernel: Kernel, listing: Listing, known: dict[int, MinorDims]) -> MinorDims | None:
    op = listing.ops[kernel.time]
    if kernel.shape.is_matmul:
        return _dims(kernel.shape, kernel.shape.rule.results[0], ("m", "n"))
    if op.name == "stablehlo.gather" and op.rule is not None:
        if not gathers_rows(listing.values[op.operands[0]].type):
            return None
        return _slices(op.rule.results[0], op.rule.operands[0], op.rule.operands[1])
    if is_elementwise(op):
        return next((dims for dims in _of_alike(kernel, known) if dims[2]), None)
    return None


def _unpooled(kernel: Kernel, listing: Listing, known: Mapping[int, MinorDims]) -> MinorDims | None:
    """Of what goes back through a pooling, and of elementwise work on that."""
    if kernel.shape.name == _SELECT_AND_SCATTER:
        return _pooled(kernel, kernel.shape.results[0])
    return next(_of_alike(kernel, known), None) if is_elementwise(listing.ops[kernel.time]) else None


def _pooled(kernel: Kernel, type_: TensorType) -> MinorDims | None:
    slid = {window.dim for window in kernel.shape.windows if window.size > 1}
    match [dim for dim in range(type_.rank) if dim not in slid]:
        case [batch, channels] if len(slid) > 1:
            return (batch,), (channels,), False
        case _:
            return None


def _reads(
    kernels: Sequence[Kernel], listing: Listing, compiler: Compiler
) -> Iterator[tuple[int, MinorDims]]:
    for kernel in kernels:
        if kernel.shape.is_matmul:
            for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True):
                dims = _dims(kernel.shape, mapping, ("mn", "k"))
                if dims is not None:
                    yield use.value, dims
        elif kernel.shape.name in _POOLING:
            for use, type_ in zip(kernel.uses, kernel.shape.operands, strict=True):
                dims = _pooled(kernel, type_)
                if dims is not None:
                    yield use.value, dims
        op = listing.ops[kernel.time]
        if _is_of_rows(op):
            yield from _row_by_row([use.value for use in kernel.uses], kernel.shape.operands)
        updates = _updates(op, listing, compiler)
        if updates is not None:
            yield updates


def _is_of_rows(op: Op) -> bool:
    return op.name == _CHOLESKY or op.called in _LINEAR_ALGEBRA


def _row_by_row(values: Sequence[int], types: Sequence[TensorType]) -> Iterator[tuple[int, MinorDims]]:
    for value, type_ in zip(values, types, strict=True):
        if type_.rank > 1:
            yield value, ((type_.rank - 1,), (type_.rank - 2,), True)


def as_read(kernels: Sequence[Kernel], listing: Listing) -> tuple[dict[int, MinorDims], frozenset[int]]:
    """Of what a matmul makes and matmuls alone read, transposed, with dimensions merged or neither: how they read it, where they agree.

    XLA:TPU copies it so behind the product that makes it, and keeps the copy (seven small training steps of attention, libtpu 0.0.51, v5e:
    queries, keys and values of 49 or 77 positions take tiles of positions by elements of a head, though sequences could be minor in what
    makes them; what attention returns takes none of the padding that it is made with). Also the names that lie so.
    """
    pinned = {result.value for result in listing.results}
    pinned.update(source.value for flow in listing.data_flows for source in flow.sources)
    reads: dict[int, list[MinorDims | None]] = {value: [None] for value in pinned}
    found, behind = dict[int, MinorDims](), dict[int, int]()
    for kernel in reversed(kernels):
        mine = [one for value in kernel.results for one in reads.get(value, ())]
        if kernel.shape.is_matmul:
            for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True):
                reads.setdefault(use.value, []).append(_dims(kernel.shape, mapping, ("mn", "k")))
            agreed = {None if one is None else _either_way(one) for one in mine}
            first = mine[0] if len(agreed) == 1 else None
            if first is not None:
                found[kernel.results[0]] = first
            continue
        places = _places(kernel) if kernel.is_alias and len(kernel.uses) == 1 else None
        for use in kernel.uses:
            if places is None:
                reads.setdefault(use.value, []).append(None)
                continue
            behind[kernel.results[0]] = use.value
            reads.setdefault(use.value, []).extend(_moved(one, places) for one in mine)
    named = set(found)
    for name in sorted(behind):
        if behind[name] in named:
            named.add(name)
    return found, frozenset(named.difference(found))


def _either_way(dims: MinorDims) -> frozenset[tuple[int, ...]]:
    return frozenset(dims[:2])


def _places(kernel: Kernel) -> dict[int, int] | None:
    """For each dimension of what a transposition or a merging reshape makes, the (most minor) one of its operand that it is."""
    operand, result = kernel.shape.operands[0].shape, kernel.shape.results[0].shape
    if kernel.shape.name == "stablehlo.transpose":
        rule = kernel.shape.rule
        places = {factors: place for place, factors in enumerate(rule.operands[0])}
        return {d: places[factors] for d, factors in enumerate(rule.results[0]) if factors in places}
    if kernel.shape.name != "stablehlo.reshape" or len(result) >= len(operand):
        return None
    found: dict[int, int] = {}
    left = iter(enumerate(operand))
    for dim, size in enumerate(result):
        covered = 1
        while covered < size:
            place, part = next(left, (-1, 0))
            covered *= part
            if not part or size % covered:
                return None
            if part > 1:
                found[dim] = place
    return found


def _moved(dims: MinorDims | None, places: Mapping[int, int]) -> MinorDims | None:
    if dims is None or any(one not in places for one in (*dims[0], *dims[1])):
        return None
    first, second = (tuple(sorted(places[one] for one in side)) for side in dims[:2])
    return first, second, dims[2]


def given_rows(kernels: Sequence[Kernel], listing: Listing, compiler: Compiler) -> dict[int, RowCopy]:
    """Of arguments that scatters take as they come."""
    arguments, found = {argument.value for argument in listing.arguments}, dict[int, RowCopy]()
    for kernel in kernels:
        op = listing.ops[kernel.time]
        updates = _updates(op, listing, compiler)
        if updates is not None and updates[0] in arguments:
            found[updates[0]] = RowCopy(updates[1], 0, kernel.time + 1, scattered_slices(op, listing))
    return found


def gathered_rows(
    kernels: Sequence[Kernel], listing: Listing, copies: Collection[int], *, is_apart: bool
) -> dict[int, Gathered]:
    """By the times of gathers that read copies of tables in rows, or make rows that are copied; there are `copies` of those arguments.

    A runtime hands arguments over in the smallest layout, where narrow rows lie along the rows of tiles, and what is made of these alone
    lies so too: such tables of two dimensions are copied. Where gathers run apart (`offloaded`) the next table is copied while they take
    rows of one, and these are worked on, beside them, and laid out while they take the next, unless a product is between.
    """
    smallest = {argument.value for argument in listing.arguments}.difference(copies)
    readers = readers_of(kernels) if is_apart else {}
    taken, last = dict[int, Gathered](), -1
    before, behind = dict[int, int](), dict[int, int]()
    for kernel in kernels:
        op, time = listing.ops[kernel.time], kernel.time
        if kernel.shape.is_matmul:
            last = -1
        elif is_elementwise(op) and kernel.uses and smallest.issuperset(use.value for use in kernel.uses):
            smallest.update(kernel.results)
        if op.name != "stablehlo.gather" or op.rule is None or not kernel.uses:
            continue
        before[time], behind[last] = last, time
        last = time
        table = _slices(op.rule.operands[0], op.rule.results[0], op.rule.operands[1])
        is_copied = op.operands[0] in smallest and kernel.shape.operands[0].rank == _TABLE_RANK
        rows = rows_apart(kernel.shape.results[0], _written(kernel, listing, {}))
        is_read = (time, 0) in kernel.uses[0].sites
        if table is None or not is_read or not (is_copied or rows is not None):
            continue
        work = [
            reader.time
            for reader in readers.get(kernel.results[0], ())
            for use in reader.uses
            if use.value == kernel.results[0]
            and any(_is_worked(listing.ops[number]) for number, _ in use.sites)
        ]
        taken[time] = Gathered(table, is_copied, rows, time, time + 1, min(work, default=-1))
    found = dict[int, Gathered]()
    for time, one in taken.items():
        begin, until = (before[time], behind.get(time, time)) if is_apart else (time, time)
        end = max(until, one.worked) + 1
        worked = one.worked if one.worked >= 0 else end
        found[time] = one._replace(begin=begin if begin >= 0 else time, end=end, worked=worked)
    return found


def _is_worked(op: Op) -> bool:
    return is_elementwise(op) and op.name != "stablehlo.convert"


def _updates(op: Op, listing: Listing, compiler: Compiler) -> tuple[int, MinorDims] | None:
    """What a scatter adds, and how it lies, where the table is in rows."""
    dims = _of_updates(op)
    if dims is None:
        return None
    slices, table = scattered_slices(op, listing), listing.values[op.results[0]].type
    if not scatters_rows(table, compiler.memory_bytes, slices):
        return None
    return op.operands[_UPDATES], dims


def _of_updates(op: Op) -> MinorDims | None:
    if op.name != "stablehlo.scatter" or op.rule is None or len(op.operands) != _UPDATES + 1:
        return None
    return _slices(op.rule.operands[_UPDATES], op.rule.results[0], op.rule.operands[1])


def _slices(mapping: TensorMapping, other: TensorMapping, indices: TensorMapping) -> MinorDims | None:
    """Of a tensor of slices or rows: dimensions of a slice, which the other side has and the indices have not, before the rest."""
    sliced = {f for dim in other for f in dim} - {f for dim in indices for f in dim}
    lanes = tuple(dim for dim, factors in enumerate(mapping) if not sliced.isdisjoint(factors))
    rows = tuple(dim for dim in range(len(mapping)) if dim not in lanes)
    return (lanes, rows, True) if lanes and rows else None


def _dims(shape: KernelShape, mapping: TensorMapping, kinds: tuple[str, str]) -> MinorDims | None:
    slid = shape.slid_factors
    first, second = (
        tuple(
            dim
            for dim, factors in enumerate(mapping)
            if factors and all(shape.matmul_roles[f] in kind and f not in slid for f in factors)
        )
        for kind in kinds
    )
    return (first, second, False) if first and second else None
