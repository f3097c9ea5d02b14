"""When labels are picked from bfloat16 logits, where a loop of products reads what goes back to them, and what is there then.

Where each device has a part of the words, what is picked is summed over devices. XLA:TPU takes sums of a type in one, from the last on:
this one with a float32 sum over the same devices that waits for what goes back (the gradient of a norm's scale), so that labels are
picked behind the loop. Where there is none it is taken in one with a sum that what goes back waits for, so that labels are picked first;
nor does one wait that is made once behind a loop over microbatches (`accumulation`).
Where words are whole nothing is summed, and what labels are picked from stays where one fusion makes it and what goes back: logarithms
unless a bias is summed too, a copy of the logits only then. Logarithms with a summed bias and split words are made later: on v5e right
behind the loop (`Compiler.picks_behind_loops`), where what the loop makes lies behind what it read, so that they do not fit into the
place of that; on v5p and v6e at the end. Parts that are padded are masked, and nothing is made with them (libtpu 0.0.51: small training
steps of seven kinds on v5e, v5p and v6e).
"""

from collections.abc import Iterator, Mapping

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise, is_reduction
from autoshard.program.outputs import repeated_values
from autoshard.program.records import MOVES, Compiler, Kernel, Picked, Program
from autoshard.program.repeating import read_times, readers_of
from autoshard.sharding import TensorType

_GATHER, _ADD, _SUMMED = "stablehlo.gather", "stablehlo.add", "f32"


def picked_beside(program: Program, compiler: Compiler) -> dict[tuple[int, int], Picked]:
    """By result and operand number of the products that read what goes back to the logits."""
    repeated, picked = repeated_values(program), dict(_picked(program))
    if not picked:
        return {}
    made, readers = _made_by(program), readers_of(program.kernels)
    found: dict[tuple[int, int], Picked] = {}
    for kernel in program.kernels:
        for number, use in enumerate(kernel.uses if kernel.shape.is_matmul else ()):
            origin = repeated[use.value].origin if use.value in repeated else None
            logits = [] if origin is None else sorted(picked.keys() & _buffers(origin, made))
            behind = [one for one, waiting in map(picked.__getitem__, logits) if origin not in waiting]
            if origin is None or not behind:
                continue
            beside = _as_read(behind[0], kernel.shape.operands[number])
            if beside is not None:
                times = read_times(origin, readers)
                is_summed = any(is_reduction(program.listing.ops[time]) for time in times)
                is_fused, is_apart = beside.is_copy == is_summed, is_summed and not beside.is_copy
                is_behind = compiler.picks_behind_loops or not is_apart
                sums = frozenset(_sums_behind(program, kernel) if is_behind else ())
                found[kernel.results[0], number] = beside._replace(is_fused=is_fused, sums=sums)
    return found


def _as_read(picked: Picked, read: TensorType) -> Picked | None:
    """Where a product reads it as it is, or as rows of a matrix; None where that has other elements, or labels are picked along rows."""
    merged, shape = picked.type.rank - read.rank, picked.type.shape
    if shape == read.shape:
        return picked
    is_of_rows = (
        merged > 0 and shape[merged + 1 :] == read.shape[1:] and picked.type.num_elements == read.num_elements
    )
    if not is_of_rows or any(dim <= merged for dim in picked.words):  # those are the rows
        return None
    type_, words = TensorType(read.shape, picked.type.dtype), (dim - merged for dim in picked.words)
    return picked._replace(type=type_, words=frozenset(words))


def _picked(program: Program) -> Iterator[tuple[int, tuple[Picked, frozenset[int]]]]:
    """The logits that labels are picked from in a wider type, or from their logarithms, and all values that wait for what is picked."""
    made = _made_by(program)
    products = {value for value, kernel in made.items() if kernel.shape.is_matmul}
    for kernel in program.kernels:
        is_gather = program.listing.ops[kernel.time].name == _GATHER
        if not is_gather or not kernel.uses or kernel.uses[0].value not in made:
            continue
        value = kernel.uses[0].value
        maker, wholes = made[value], program.wholes.get(value, ())
        begin = min((whole.begin for whole in wholes if whole.is_value), default=maker.time)
        is_stored = wholes or not maker.is_alias
        if is_stored and value not in products and begin <= kernel.time:
            type_, waiting = maker.shape.results[0], _waiting(program.listing, kernel.time)
            for logits in _buffers(value, made) & products:
                (made_as,) = made[logits].shape.results
                if (made_as.dtype, made_as.num_elements) != (type_.dtype, type_.num_elements):
                    yield logits, (Picked(begin, type_, _dropped(kernel, 0), bool(wholes)), waiting)


def _waiting(listing: Listing, time: int) -> frozenset[int]:
    """The results of an op, and all values that they are needed for."""
    found = {*listing.ops[time].results}
    for op in listing.ops[time + 1 :]:
        if not found.isdisjoint(op.operands):
            found.update(op.results)
    return frozenset(found)


def _made_by(program: Program) -> dict[int, Kernel]:
    return {value: kernel for kernel in program.kernels for value in kernel.results}


def _buffers(value: int, made: Mapping[int, Kernel]) -> set[int]:
    """What elementwise work on the way to a value reads that has a buffer."""
    found, seen, left = set[int](), set[int](), [use.value for use in made[value].uses]
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in made and made[one].is_alias:
            left.extend(use.value for use in made[one].uses)
        else:
            found.add(one)
    return found


def _sums_behind(program: Program, product: Kernel) -> Iterator[frozenset[int]]:
    reachable = {product.results[0]}
    for kernel in program.kernels:
        numbers = [number for number, use in enumerate(kernel.uses) if use.value in reachable]
        op = program.listing.ops[kernel.time]
        if numbers and (is_elementwise(op) or op.name in MOVES):
            reachable.update(kernel.results)
        elif kernel.results and kernel.results[0] in program.sums_after_loops:
            continue
        elif is_reduction(op) and op.reducer == _ADD and kernel.shape.results[0].dtype == _SUMMED:
            yield from (_dropped(kernel, number) for number in numbers)


def _dropped(kernel: Kernel, operand: int) -> frozenset[int]:
    rule = kernel.shape.rule
    kept = {factor for factors in rule.results[0] for factor in factors}
    return frozenset(dim for dim, factors in enumerate(rule.operands[operand]) if kept.isdisjoint(factors))
