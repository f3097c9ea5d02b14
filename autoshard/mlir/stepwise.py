"""Changes of sharding, written one collective at a time.

XLA's partitioner takes a change that Shardy makes of several collectives in its own way: one that moves two axes gathers the value over all
devices and slices it, one that drops an axis and adds another exchanges and permutes (seen in what libtpu 0.0.51 compiles for v5e,
v5p: of the 240 changes between shardings of a rank 3 over two axes in mesh order, 60). A change that is one collective of Shardy's is
that collective in XLA too. So each step of Shardy's sequence gets a constraint of its own. Sums that XLA scatters while their product
runs (`sharding.scattering`) have none of the whole sum before the cut (`mlir.emit`).
"""

from collections.abc import Sequence

from autoshard.mlir.context import ir
from autoshard.mlir.emit import Change
from autoshard.mlir.reshards import decompose_reshards
from autoshard.mlir.tensors import Shardings
from autoshard.sharding import Mesh


def write_steps(changes: Sequence[Change], mesh: Mesh, shardings: Shardings) -> None:
    """Put an op like the change before it for each step of Shardy's sequence but the last, in place."""
    moving = [c for c in changes if c.before != c.after and not (c.before.is_foreign or c.after.is_foreign)]
    requests = list(dict.fromkeys((c.before.rank, c.before, c.after) for c in moving))
    sequences = dict(zip(requests, decompose_reshards(mesh, requests), strict=True))
    for change in moving:
        for step in sequences[change.before.rank, change.before, change.after][:-1]:
            op = change.op
            made = ir.Operation.create(
                op.name,
                [op.result.type],
                [op.operands[0]],
                {"sharding": shardings.attribute(step.out_sharding)},
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
            op.operands[0] = made.result
