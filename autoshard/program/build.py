"""From a listing to a `Program`: kernels, flows, lifetimes, and what is stored beside values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from autoshard.mlir.linearity import zero_values
from autoshard.mlir.listing import Listing
from autoshard.program.accumulation import sums_after_loops
from autoshard.program.additions import Addends, find_addends
from autoshard.program.ample import keep_costly
from autoshard.program.carrying import carried_pairs
from autoshard.program.casts import cast_inside
from autoshard.program.concatenated import made_where_read, read_again, written_into_whole
from autoshard.program.counters import NO_COUNTERS, find_counters
from autoshard.program.depthwise import error_functions
from autoshard.program.doubled import doubled_exponentials
from autoshard.program.flows import flows_of
from autoshard.program.fusion import Fusion, free_values, fuse
from autoshard.program.generated import generated_wholes
from autoshard.program.grouped import stored_in_groups
from autoshard.program.handing import handing_flows, residuals
from autoshard.program.headed import weights_of_heads
from autoshard.program.hoisted import hoisted_casts
from autoshard.program.images import image_copies
from autoshard.program.indexed import written_at_index
from autoshard.program.kernels import ALIASES, KernelMaker, sites_of_group
from autoshard.program.laid_out import laid_out_for_updates
from autoshard.program.lifetime import (
    copied_results,
    lifetimes,
    permanent_arguments,
    recompute,
    returned,
    slices_in_loops,
    undonated_arguments,
)
from autoshard.program.merging import merged_scatters, without_merged
from autoshard.program.minor import (
    as_read,
    evaluated_as_made,
    gathered_rows,
    given_rows,
    minor_dims,
    returned_as_made,
    scattered_rows,
    scattered_updates,
)
from autoshard.program.nearby import keep_near
from autoshard.program.nested import ended_in_place, finished, without_nested
from autoshard.program.packed import packed_predicates
from autoshard.program.pairs import stored_apart
from autoshard.program.picking import picked_beside
from autoshard.program.pieces import in_pieces
from autoshard.program.pooled import into_pools
from autoshard.program.prefetch import made_at_start
from autoshard.program.records import (
    MOVES,
    XLA_TPU,
    Compiler,
    Kernel,
    Lifetime,
    Program,
    Whole,
)
from autoshard.program.renamed import last_two, padded_alike, padding_names, worked_on
from autoshard.program.repeating import (
    made_for_gathers,
    picked_at_the_end,
    repeatable,
)
from autoshard.program.reported import run_early
from autoshard.program.reshaped import merged_broadcasts
from autoshard.program.resummed import ResidualSums, added_up_again
from autoshard.program.reuse import reuse_results
from autoshard.program.rowwise import copied_slices
from autoshard.program.scattered import scattered_sums
from autoshard.program.sliced import sliced_values
from autoshard.program.slicing import as_cut, cut_from, cut_where_read
from autoshard.program.softmaxes import scores_of_one
from autoshard.program.storing import Storing
from autoshard.program.strips import find_strips
from autoshard.program.summed import made_by_readers
from autoshard.program.traded import Traffic
from autoshard.program.traffic import Apart, Segment, fuse_into_products
from autoshard.program.transforms import transforms
from autoshard.program.turned import hidden_of_few, stored_besides
from autoshard.program.updates import row_copies, scattered_for, updated_at_once, updates_in_rows
from autoshard.program.widths import Widths
from autoshard.program.windowed import windowed_exponentials

_SCATTER, _RAGGED_DOT = "stablehlo.scatter", "chlo.ragged_dot"


def build_program(
    listing: Listing, carry: Sequence[tuple[int, int]] | None = None, compiler: Compiler = XLA_TPU
) -> Program:
    """Analyse a listing.

    Args:
        carry: (result index, argument index) pairs that are next step's inputs; None takes the donated arguments (see
            `carrying.donated_pairs`).
        compiler: of what the program is for.

    Raises:
        AutoshardError: a carried pair that does not exist or whose types differ.
    """
    pairs = carried_pairs(listing, carry)
    pinned = _pinned(listing)
    addends = find_addends(listing)
    fusion = _fused(listing, pinned, addends)
    behind = residuals(listing)
    roots = {value: frozenset({source}) for value, source in behind.items()}
    permanent = permanent_arguments(listing, pairs)
    zeros = zero_values(listing)
    renaming = MOVES if compiler.products_apart else frozenset[str]()
    pooled = into_pools(listing, pinned) if compiler.is_xla_tpu else frozenset[int]()
    may_repeat = repeatable(listing, zeros, pinned, renaming, pooled)
    widths = Widths(listing)
    made_once = _with_renamed(pinned.difference(behind.values()), listing)
    constants = free_values(listing, demanded=True)
    joined, summed = frozenset[int](), frozenset[int]()
    if compiler.is_xla_tpu:
        made_once |= _with_renamed(_ragged_operands(listing), listing)
        parts = made_where_read(listing, made_once | pinned, may_repeat.transposed, constants)
        joined = frozenset(parts)
        made_once |= read_again(listing, parts, may_repeat.transposed)
    inside = cast_inside(listing) if compiler.products_apart else frozenset[int]()
    maker = KernelMaker(
        listing,
        made_once,
        may_repeat,
        permanent,
        zeros,
        widths,
        addends,
        constants,
        joined,
        segment=Segment({value: value for value in undonated_arguments(listing, pairs)}),
        apart=_apart(listing, pairs, inside) if compiler.products_apart else None,
        roots=roots,
    )
    kernels = tuple(map(maker.make, fusion.groups))
    if not compiler.products_apart:
        kernels = fuse_into_products(kernels, listing, roots, pinned, maker.interned)
    kernels = cut_where_read(kernels, listing, pinned, zeros)
    if compiler.is_xla_tpu:
        kernels, summed = made_by_readers(kernels, listing, pinned, compiler)
        joined |= summed
    handing = handing_flows(listing, fusion.free)
    flows = flows_of(listing, pairs, frozenset(flow.target for flow in handing))
    slices = slices_in_loops(kernels, listing, handing)
    cut = cut_from(kernels, listing)
    repeated = {
        value: as_cut(buffers, cut) for value, buffers in maker.repeated.items() if value not in joined
    }
    storing = Storing(listing, kernels, pinned, compiler)
    stored = storing.types
    kept, narrowed = keep_costly(
        kernels,
        listing,
        permanent,
        may_repeat,
        repeated,
        behind,
        cut.keys() | joined,
        cut,
        compiler,
        stored,
        inside,
    )
    counters = find_counters(listing) if compiler.is_xla_tpu else NO_COUNTERS
    finished_names = storing.finished_products()

    early = run_early(kernels, listing, pairs) if compiler.is_xla_tpu else {}

    def lives_of(kernels: Sequence[Kernel]) -> dict[int, Lifetime]:
        apart = stored_apart(kernels, Traffic(kernels, listing, stored), compiler, summed)
        return lifetimes(listing, kernels, pairs, fusion.free, counters, finished_names, apart, early)

    _, ample = recompute(kept, lives_of(kept), narrowed | slices)
    kernels, lives = recompute(kernels, lives_of(kernels), repeated | slices)
    if compiler.is_xla_tpu:
        lives, ample = (
            _fused_by_xla_tpu(kernels, listing, pinned, stored, one, compiler) for one in (lives, ample)
        )
    merged = merged_scatters(listing, zeros) if compiler.is_xla_tpu else {}
    lives, ample = (without_merged(kernels, merged, one) for one in (lives, ample))
    later = {value: sum_ for value, sum_ in sums_after_loops(listing).items() if value not in addends.sums}
    kernels = keep_near(kernels, listing, lives, roots, later, maker.interned)
    fresh = returned(listing, kernels, handing, pairs)
    rows = scattered_rows(kernels, listing)
    updates = updates_in_rows(kernels, listing, rows, zeros, merged) if compiler.is_xla_tpu else ()
    num_times = len(listing.ops) + 1
    lives, ample = updated_at_once(lives, updates), updated_at_once(ample, updates)
    indexed = written_at_index(listing)
    read_so, named_so = as_read(kernels, listing) if compiler.is_xla_tpu else ({}, frozenset[int]())
    dims = (
        returned_as_made(kernels, listing, fresh) | minor_dims(kernels, listing, compiler) | read_so | indexed
    )
    given = given_rows(kernels, listing, compiler)
    copies_of_rows = given | row_copies(updates, listing, compiler, num_times)
    wholes = made_for_gathers(kernels, listing, may_repeat)
    ample = picked_at_the_end(wholes, kernels, listing, ample, compiler)
    alike = padded_alike(kernels, listing, dims, ample)
    padding = padding_names(kernels, listing, dims, ample) - alike.keys()
    ranks = {buffer: type_.rank for buffer in alike.values() if (type_ := listing.values[buffer].type)}
    dims = {buffer: last_two(rank) for buffer, rank in ranks.items()} | dims
    as_made = evaluated_as_made(kernels, listing, dims) | named_so | joined | alike.keys()
    besides: dict[int, Whole] = {}
    if compiler.is_xla_tpu:
        copies = [
            *merged_broadcasts(kernels, listing, fusion.free),
            *copied_slices(kernels, listing, dims, ample, compiler),
            *stored_in_groups(kernels, listing, stored),
        ]
        if compiler.doubles_exponentials:
            copies += doubled_exponentials(kernels, listing, zeros, ample)
        copies += windowed_exponentials(kept, listing, ample, compiler)
        copies += error_functions(listing, kept, ample, widths)
        added = ResidualSums.of(listing)
        besides = stored_besides(listing, kept, ample, added)
        ample, sums = added_up_again(listing, kept, ample, added)
        copies += [*besides.items(), *sums]
        for value, whole in copies:
            wholes[value] = (*wholes.get(value, ()), whole)
            as_made |= {value} if whole.is_value else set()
    program = Program(
        listing=listing,
        kernels=kernels,
        flows=flows,
        cloneable=fusion.cloneable,
        lifetimes=reuse_results(listing, kernels, fresh, lives),
        ample_lifetimes=ample,
        lent_lifetimes=reuse_results(listing, kernels, fresh, ample),
        num_times=num_times,
        carried_pairs=pairs,
        widths=widths,
        stored=stored,
        zeros=zeros,
        addends=addends.values,
        minor_dims=dims,
        returned=fresh,
        copied_results=copied_results(listing, kernels, handing, pairs, fusion.free),
        sums_after_loops=later,
        wholes=wholes,
        scattered_rows=rows | scattered_for(updates, num_times),
        row_copies=copies_of_rows,
        laid_out=laid_out_for_updates(kernels, listing) if compiler.lays_out_early else {},
        padding_names=padding,
        worked_on=worked_on(kernels, listing, dims),
        strips=find_strips(kernels, listing),
        pieces=in_pieces(kernels, listing),
        as_made=as_made,
        indexed=indexed,
        merged_scatters=frozenset(merged),
        scatters_last=compiler.scatters_last,
        early=early,
        gathers_apart=compiler.gathers_apart,
        packed=packed_predicates(listing, kernels, pinned, stored, ample, hidden_of_few(besides), compiler),
        made_at_start=made_at_start(listing, kernels, flows),
    )
    if not compiler.is_xla_tpu:
        return program
    program = replace(
        program,
        gathered=gathered_rows(kernels, listing, given, is_apart=compiler.gathers_apart),
        image_copies=image_copies(kernels, listing),
        scattered_sums=scattered_sums(listing, storing),
        transforms=transforms(kernels, permanent, fresh, ample),
        generated=generated_wholes(listing, fusion.free),
        hoisted_casts=hoisted_casts(kernels, listing),
        selected=_selected(kernels, listing),
        sliced=sliced_values(kernels, listing, ample),
        of_one=scores_of_one(kept, listing, ample, compiler),
        weights_of_heads=weights_of_heads(listing, compiler),
        scattered_updates=scattered_updates(kernels, listing, ample, rows, dims, indexed, given),
    )
    return replace(program, picked=picked_beside(program, compiler))


def _selected(kernels: Sequence[Kernel], listing: Listing) -> frozenset[int]:
    """See `Program.selected`."""
    found = set[int]()
    for kernel in kernels:
        is_selection = kernel.is_alias and listing.ops[kernel.time].name == _SCATTER
        is_moved = kernel.shape.name in MOVES and any(use.value in found for use in kernel.uses)
        if is_selection or is_moved:
            found.update(kernel.results)
    return frozenset(found)


def _fused_by_xla_tpu(
    kernels: Sequence[Kernel],
    listing: Listing,
    pinned: frozenset[int],
    stored: Widths,
    lives: dict[int, Lifetime],
    compiler: Compiler,
) -> dict[int, Lifetime]:
    """Without the buffers of what it makes where that is read, and of what is written over what it is made of."""
    lives = written_into_whole(kernels, listing, pinned, lives, compiler.devices)
    lives = finished(kernels, listing, pinned, stored, lives)
    lives = without_nested(kernels, listing, pinned, lives, compiler)
    is_alone = not compiler.ends_products_in_place
    return ended_in_place(kernels, listing, pinned, stored, lives, convolutions_alone=is_alone)


class KernelReads(NamedTuple):
    """Of all kernels, as (op, operand): reads of what the same kernel makes, and those of each operand that is read several times."""

    inner: frozenset[tuple[int, int]]
    joint: tuple[tuple[tuple[int, int], ...], ...]


def kernel_reads(listing: Listing) -> KernelReads:
    """How the kernels of `build_program` read."""
    inner: set[tuple[int, int]] = set()
    joint: list[tuple[tuple[int, int], ...]] = []
    for group in _fused(listing, _pinned(listing), find_addends(listing)).groups:
        inner |= {(op, position) for op in group.ops for position in range(len(listing.ops[op].operands))}
        inner -= {(read.op, read.operand) for read in (*group.reads, *group.free_reads)}
        joint += (tuple(sites) for sites in sites_of_group(group).values() if len(sites) > 1)
    return KernelReads(frozenset(inner), tuple(joint))


def _pinned(listing: Listing) -> frozenset[int]:
    """What the function returns and what is handed on."""
    results = {result.value for result in listing.results}
    return frozenset(results.union(source.value for flow in listing.data_flows for source in flow.sources))


def _ragged_operands(listing: Listing) -> frozenset[int]:
    """What ragged products read: XLA:TPU runs them as kernels of their own, which evaluate nothing."""
    return frozenset(value for op in listing.ops if op.name == _RAGGED_DOT for value in op.operands[:2])


def _with_renamed(pinned: frozenset[int], listing: Listing) -> frozenset[int]:
    """Those, and what they are other names of: it is made once, for them."""
    found = set(pinned)
    for op in reversed(listing.ops):
        if op.name in ALIASES and not found.isdisjoint(op.results):
            found.add(op.operands[0])
    return frozenset(found)


def _apart(listing: Listing, pairs: Sequence[tuple[int, int]], inside: frozenset[int]) -> Apart:
    stored = {value for op in listing.ops if op.is_matmul for value in op.operands}
    stored |= {value for op in listing.ops if op.name == _SCATTER for value in op.results}
    state = frozenset(listing.results[result].value for result, _ in pairs)
    return Apart(state, _with_renamed(frozenset(stored - inside), listing))


def _fused(listing: Listing, pinned: frozenset[int], addends: Addends) -> Fusion:
    grouped = frozenset(member.value for group in listing.groups for member in group.members)
    return fuse(listing, pinned | grouped | addends.sums, grouped)
