"""What a plan says that its compiler will do, in the compiler's own terms, so that the two can be laid side by side.

One convention for bytes: those of the operands on one device, over all runs of a step.
"""

from dataclasses import dataclass

from autoshard.held import HeldMemory
from autoshard.plans import Plan


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
class ScheduledTime:
    """What the target's scheduler is predicted to estimate: matrix products at peak, and communication that nothing hides, in ns."""

    compute_ns: int
    communication_ns: int
    waited_ns: int  # of that, for asynchronous collectives

    @property
    def step_ns(self) -> int:
        return self.compute_ns + self.communication_ns


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one step on one device; `source` says whose it is, `held` what is in memory at its peak, where that is known.

    `scheduled`: of the module as it is written, for targets of which the scheduler's prices are known.
    """

    source: str
    hardware: str
    collectives: tuple[PredictedCollective, ...]
    peak_bytes: int
    compute_ns: int
    communication_ns: int
    held: HeldMemory | None = None
    scheduled: ScheduledTime | None = None

    @property
    def step_ns(self) -> int:
        return self.compute_ns + self.communication_ns


def prediction_of(
    plan: Plan, source: str, held: HeldMemory | None = None, at_scheduler: Plan | None = None
) -> Prediction:
    """`at_scheduler`: the same at the prices of the target's scheduler."""
    price = plan.price
    return Prediction(
        source,
        plan.hardware,
        predicted_collectives(plan),
        price.peak_bytes,
        price.compute_ns,
        price.communication_ns,
        held,
        None if at_scheduler is None else _scheduled(at_scheduler),
    )


def _scheduled(plan: Plan) -> ScheduledTime:
    """In the order of the scheduler."""
    compute_ns, scheduled = plan.price.compute_ns, plan.price.scheduled
    assert scheduled is not None, "the plan is at a scheduler's prices, for XLA on TPUs"
    return ScheduledTime(compute_ns, scheduled.step_ns - compute_ns, scheduled.waited_ns)


def predicted_collectives(plan: Plan) -> tuple[PredictedCollective, ...]:
    """What the plan's compiler is predicted to emit, nothing among groups of one device. The one place that reads it off a plan."""
    return tuple(
        PredictedCollective(
            emitted.kind.replace("_", "-"), one.axes, emitted.devices, emitted.bytes, one.repeat, one.where
        )
        for one in plan.price.collectives
        for emitted in one.emitted
        if emitted.devices > 1
    )
