"""All findings about a plan, in the order in which they build on each other."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.check.bound import bound, status
from autoshard.check.boundaries import boundaries
from autoshard.check.changes import Changes, find_changes
from autoshard.check.compute import compute_ns
from autoshard.check.copies import Compiled
from autoshard.check.deep import AsWritten, compare_emitted
from autoshard.check.identity import identity
from autoshard.check.memory import find_peak
from autoshard.check.movement import differences, find_collectives, find_left_as_reshards, totals
from autoshard.check.moves import Prices
from autoshard.check.partial import partial_sums
from autoshard.check.planned import Planned, read_shardings
from autoshard.check.reads import Reads, find_reads
from autoshard.check.report import CheckReport, Finding, of_equality, of_offenders
from autoshard.check.reshards import find_laid_out
from autoshard.check.rules import check_rules
from autoshard.check.sums import looped_sums
from autoshard.mlir.collective import Collective
from autoshard.plans import Plan, PlannedCollective
from autoshard.program import Program, largest_alike
from costmodels import Communication, Hardware

LEGALITY = (
    "interface",
    "division",
    "carried state",
    "data flow",
    "manual axes",
    "demands",
    "sharding groups",
    "rules",
    "partial sums",
    "reads",
)
FIGURES = (
    "collectives",
    "collective times",
    "compiled",
    "compute",
    "communication",
    "step",
    "peak",
    "budget",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a plan is checked against: the module's program, and the mesh laid on hardware."""

    program: Program
    hardware: Hardware
    communication: Communication


def check(subject: Subject, plan: Plan, emitted: Sequence[Collective] | None = None) -> CheckReport:
    """Work out anew everything that the plan claims.

    Args:
        emitted: the collectives that Shardy's own passes make of the written module, compared too where given.
    """
    program = subject.program
    findings = identity(plan, program, subject.hardware, subject.communication)
    findings += [bound(plan), status(plan)]
    if not all(
        finding.ok for finding in findings if finding.name in ("module", "mesh", "other meshes", "devices")
    ):
        return CheckReport(tuple(findings), ("shardings", *LEGALITY, *FIGURES))
    planned, shardings = read_shardings(plan, program)
    findings.append(shardings)
    if not shardings.ok:
        return CheckReport(tuple(findings), (*LEGALITY, *FIGURES))
    runs, rules = check_rules(planned)
    reads, consistent = find_reads(planned, runs, plan.lowering)
    findings += [*boundaries(planned, plan), rules, partial_sums(planned, runs, plan.lowering), consistent]
    if not rules.ok:
        return CheckReport(tuple(findings), FIGURES)
    prices = Prices(
        subject.hardware,
        subject.communication,
        plan.lowering,
        plan.overlap,
        largest_alike(subject.program),
    )
    changes = find_changes(planned, reads, prices)
    collectives = find_collectives(planned, reads, changes, prices)
    findings += _figures(plan, planned, reads, changes, collectives, prices)
    if emitted is not None:
        written, prices = find_reads(planned, runs, "shardy")[0], replace(prices, leaves_loops=True)
        changes = find_changes(planned, written, prices)
        as_written = AsWritten(
            collectives,
            find_collectives(planned, written, changes, prices),
            find_left_as_reshards(planned, changes, prices),
        )
        findings.append(compare_emitted(plan, emitted, as_written))
    return CheckReport(tuple(findings))


def _figures(
    plan: Plan,
    planned: Planned,
    reads: Reads,
    changes: Changes,
    collectives: Sequence[PlannedCollective],
    prices: Prices,
) -> list[Finding]:
    price = plan.price
    compute = compute_ns(planned, reads, changes.left, prices.hardware)
    communication = sum(c.ns * c.repeat for c in collectives)
    compiled = Compiled(
        prices,
        changes.ahead,
        looped_sums(planned, reads, prices),
        changes.in_products,
        find_laid_out(changes, prices),
    )
    peak = find_peak(planned, reads, prices.hardware, plan.memory_bytes, compiled)
    ops = planned.listing.ops
    at = planned.where(peak.time) if peak.time < len(ops) else "the end of the program"
    return [
        _collectives(collectives, plan),
        _collective_times(collectives, plan),
        _compiled(collectives, plan),
        of_equality("compute", compute, price.compute_ns, "ns of all kernels"),
        of_equality("communication", communication, price.communication_ns, "ns of all collectives"),
        of_equality("step", price.compute_ns + price.communication_ns, price.step_ns, "ns in all"),
        of_equality("peak", peak.bytes, price.peak_bytes, f"bytes, at {at}"),
        _budget(plan, peak.bytes),
    ]


def _collectives(collectives: Sequence[PlannedCollective], plan: Plan) -> Finding:
    expected, found = totals(collectives), totals(plan.price.collectives)
    what = "count and bytes by kind and axes"
    return of_offenders("collectives", differences(expected, found), len(set(expected) | set(found)), what)


def _collective_times(collectives: Sequence[PlannedCollective], plan: Plan) -> Finding:
    """Every collective of the plan is priced as the same one is here, and together they are its communication."""
    known: dict[tuple[str, tuple[str, ...], int], dict[int, None]] = {}
    for c in collectives:
        known.setdefault((c.kind, c.axes, c.bytes), {})[c.ns + c.hidden_ns] = None
    offenders = [
        f"{c.kind} over {','.join(c.axes)} of {c.bytes} bytes at {c.where}: {c.ns + c.hidden_ns} ns, expected "
        + " or ".join(f"{ns} ns" for ns in expected)
        for c in plan.price.collectives
        if (expected := known.get((c.kind, c.axes, c.bytes))) is not None
        and c.ns + c.hidden_ns not in expected
    ]
    listed = sum(c.ns * c.repeat for c in plan.price.collectives)
    if listed != plan.price.communication_ns:
        offenders.append(
            f"the listed collectives take {listed} ns, the plan says {plan.price.communication_ns}"
        )
    count = len(plan.price.collectives)
    return of_offenders(
        "collective times", offenders, count, "listed collectives have their price and add up"
    )


def _compiled(collectives: Sequence[PlannedCollective], plan: Plan) -> Finding:
    """What the plan says that its collectives are compiled to is what they are compiled to here."""
    expected, found = _sent(collectives), _sent(plan.price.collectives)
    offenders = [
        f"{kind} over {devices} devices of {bytes_} bytes for {made_for}: expected {expected[key]} runs, the plan has {found[key]}"
        for key in sorted(expected | found)
        if expected[key] != found[key]
        for made_for, kind, devices, bytes_ in [key]
    ]
    return of_offenders("compiled", offenders, len(expected | found), "runs by kind, devices and bytes")


def _sent(collectives: Sequence[PlannedCollective]) -> Counter[tuple[str, str, int, int]]:
    runs: Counter[tuple[str, str, int, int]] = Counter()
    for c in collectives:
        for one in c.emitted:
            runs[c.kind, one.kind, one.devices, one.bytes] += c.repeat
    return runs


def _budget(plan: Plan, peak_bytes: int) -> Finding:
    limit = plan.memory_bytes
    ok = limit is None or not plan.fits or peak_bytes <= limit
    allowed = (
        "no limit" if limit is None else f"at most {limit} bytes" if plan.fits else "does not claim to fit"
    )
    return Finding("budget", ok, allowed, f"{peak_bytes} bytes")
