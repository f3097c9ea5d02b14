"""Whether what the plan claims to have proved agrees with its own figures."""

from collections.abc import Iterator

from autoshard.check.report import Finding, of_offenders
from autoshard.plans import Plan

WITH_PLAN = ("optimal", "feasible")
STATUSES = (*WITH_PLAN, "infeasible", "not_found")


def bound(plan: Plan) -> Finding:
    """The bound holds for this plan and for every baseline, which are choices of the same problem.

    With priorities it holds within what the levels decided, which baselines do not follow.
    """
    step, lower = plan.price.step_ns, plan.lower_bound_ns
    above = [
        f"baseline {b.name}: {b.price.step_ns}"
        for b in plan.baselines
        if b.fits and b.price.step_ns < lower and not plan.levels
    ]
    ok = 0 <= lower <= step and not above
    return Finding("bound", ok, f"at most {step} ns", f"{lower} ns", "; ".join(above))


def status(plan: Plan) -> Finding:
    return of_offenders("status", list(_status_errors(plan)), 1, "the status says what the figures show")


def _status_errors(plan: Plan) -> Iterator[str]:
    if plan.status not in STATUSES:
        yield f'there is no status "{plan.status}"'
    if plan.status in WITH_PLAN and not plan.fits:
        yield f"{plan.status}, with a peak of {plan.price.peak_bytes} bytes in {plan.memory_bytes}"
    if plan.status not in WITH_PLAN and plan.status in STATUSES and plan.fits:
        yield f"{plan.status}, and yet the plan fits"
    if plan.status == "optimal" and plan.lower_bound_ns != plan.price.step_ns:
        yield f"optimal, with a bound of {plan.lower_bound_ns} ns below {plan.price.step_ns} ns"
    if plan.status == "infeasible" and any(b.fits for b in plan.baselines):
        yield "infeasible, and yet a baseline fits"
    if plan.smallest_peak_bytes > plan.price.peak_bytes:
        yield f"the smallest peak found is {plan.smallest_peak_bytes} bytes, the plan's is {plan.price.peak_bytes}"
