"""What a plan says that its compiler will do, in the compiler's own terms, so that the two can be laid side by side.

One convention for bytes: those of the operands on one device, over all runs of a step. A plan has the result of an all-gather, which is the
operand times the devices that it gathers from. The exchange of halos is made of permutes; what only slices sends nothing.
"""

import math
import re
from dataclasses import dataclass

from autoshard.plans import Plan, PlannedCollective

_LOCAL = frozenset({"all_slice", "replicated_to_unreduced", "sharded_to_unreduced"})
_EMITTED = {"halo_exchange": "collective-permute"}
_EMITTED_BY = {"xla-tpu": {"reduce_scatter": "all-reduce"}}
"""XLA:TPU sums everywhere and slices; the lowering of the plan prices it so."""

_SUB_AXIS = re.compile(r".*:\(\d+\)(\d+)")


@dataclass(frozen=True, slots=True)
class PredictedCollective:
    """`kind` as XLA names it, `operand_bytes` of one run on one device."""

    kind: str
    axes: tuple[str, ...]
    group_size: int
    operand_bytes: int
    times: int
    where: str

    @property
    def total_bytes(self) -> int:
        return self.operand_bytes * self.times


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one step on one device; `source` says whose it is."""

    source: str
    hardware: str
    collectives: tuple[PredictedCollective, ...]
    peak_bytes: int
    compute_ns: int
    communication_ns: int

    @property
    def step_ns(self) -> int:
        return self.compute_ns + self.communication_ns


def prediction_of(plan: Plan, source: str) -> Prediction:
    price = plan.price
    return Prediction(
        source,
        plan.hardware,
        predicted_collectives(plan),
        price.peak_bytes,
        price.compute_ns,
        price.communication_ns,
    )


def predicted_collectives(plan: Plan) -> tuple[PredictedCollective, ...]:
    """Those that send something. The one place that reads them off a plan."""
    sizes = dict(plan.mesh)
    return tuple(
        _predicted(one, sizes, plan.lowering) for one in plan.price.collectives if one.kind not in _LOCAL
    )


def _predicted(one: PlannedCollective, sizes: dict[str, int], lowering: str) -> PredictedCollective:
    group = math.prod(_axis_size(axis, sizes) for axis in one.axes)
    emitted = (
        _EMITTED_BY.get(lowering, {}).get(one.kind) or _EMITTED.get(one.kind) or one.kind.replace("_", "-")
    )
    is_gather = one.kind == "all_gather"
    operand = -(-one.bytes // group) if is_gather else one.bytes
    return PredictedCollective(emitted, one.axes, group, operand, one.repeat, one.where)


def _axis_size(axis: str, sizes: dict[str, int]) -> int:
    """Of `x`, or of the part `x:(2)4`."""
    part = _SUB_AXIS.fullmatch(axis)
    return int(part[1]) if part else sizes.get(axis, 1)
