"""How what a loop writes at an index of an inner dimension lies in memory, as caches of keys and values are written at a position.

XLA:TPU makes that dimension the most major one, in the loop and of what the loop starts from, so that what is written is in one piece;
the others stay in order, and tiles pad the last two of them: heads of 64 elements take 128 lanes, 25 heads 32 sublanes. Seen in what
libtpu 0.0.51 compiles for v5e of seven small programs that generate tokens, with heads before and behind positions, and of GPT-2 XL's.
"""

from autoshard.mlir.listing import Listing, Op
from autoshard.program.records import MinorDims


def written_at_index(listing: Listing) -> dict[int, MinorDims]:
    """Of values that loops carry and write so, of what they write, and of what they start from where that is no argument."""
    makers = {value: op for op in listing.ops for value in op.results}
    found: dict[int, MinorDims] = {}
    for flow in listing.data_flows:
        if flow.kind != "while":
            continue
        start, written = (source.value for source in flow.sources)
        op = makers.get(written)
        dims = None if op is None or op.operands[:1] != (flow.target,) else _dims(op, listing)
        if dims is not None:
            found |= {flow.target: dims, written: dims} | ({start: dims} if start in makers else {})
    return found


def _dims(op: Op, listing: Listing) -> MinorDims | None:
    if op.name != "stablehlo.dynamic_update_slice":
        return None
    whole, update = (listing.values[value].type for value in op.operands[:2])
    assert whole is not None and update is not None, "tensors"
    rest = [dim for dim, size in enumerate(whole.shape) if update.shape[dim] != 1 or size == 1]
    if len(rest) < 2 or set(range(1, whole.rank)) <= set(rest):
        return None
    return (rest[-1],), (rest[-2],), True
