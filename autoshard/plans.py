"""A plan: the sharding of every value, what it costs and how good it is proved to be; plain data with a JSON form.

Value numbers are positions in the listing of the module that the plan is for; `module_sha256` says which module that is.
Shardings are in Shardy's notation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from autoshard.errors import AutoshardError
from autoshard.mlir.collective import LOCAL
from autoshard.mlir.decisions import Decisions
from autoshard.mlir.forms import FORMS
from autoshard.overlaps import OVERLAPS
from autoshard.sharding import Mesh, MeshAxis, TensorSharding, parse_sharding

PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class EmittedCollective:
    """A collective as the plan's compiler writes it."""

    kind: str  # all_gather, all_reduce, all_to_all, collective_permute or reduce_scatter
    devices: int  # of a group
    bytes: int  # of the operand on one device, whatever the kind


@dataclass(frozen=True, slots=True)
class PlannedCollective:
    """One collective of the plan, in Shardy's terms, and what the plan's compiler makes of it.

    `bytes` is on one device: of the result of an all_gather or all_slice, of the operand of the others.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    ns: int  # that a step pays for one run
    repeat: int
    where: str  # location of the op that needs it
    hidden_ns: int = 0  # of one run, behind compute and beside `ns`
    emitted: tuple[EmittedCollective, ...] = ()  # in order; none for what sends nothing


@dataclass(frozen=True, slots=True)
class NamedSharding:
    name: str
    type: str
    sharding: str
    bytes: int  # on one device
    is_carried: bool = False


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """`produced` by its op; `settled` after a reshard right after it; `shared`: the copy made once for several users."""

    produced: str
    settled: str = ""  # "" where it is the same
    shared: str = ""  # "" where there is none


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """Operand `operand` of op `op` (numbers of the listing; negative: data flow and function results) is read as `sharding`.

    again: above 0: the reader, by its number, has it gathered anew, and nothing stays from a reader before that asks for the same.
    """

    op: int
    operand: int
    sharding: str
    again: int = 0


@dataclass(frozen=True, slots=True)
class PlannedMesh:
    """A mesh beside the plan's, that shardings written `@name [...]` are on; without axes: one device."""

    name: str
    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step in the order of the compiler's scheduler, at its prices: compute, synchronous collectives and `waited_ns`.

    `waited_ns`: what of asynchronous collectives, which take `asynchronous_ns` one after another, nothing runs beside. What the compiler
    makes once for several readers counts once.
    """

    step_ns: int
    asynchronous_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Price:
    """What running a plan takes, predicted by one model for plans and baselines alike."""

    step_ns: int
    compute_ns: int
    communication_ns: int
    peak_bytes: int
    collectives: tuple[PlannedCollective, ...] = ()
    scheduled: ScheduledStep | None = None  # at a scheduler's prices

    def compared_ns(self, *, is_by_order: bool) -> int:
        """The step by which plans are compared: in the scheduler's order where that is asked for and known, else by price."""
        return self.scheduled.step_ns if self.scheduled is not None and is_by_order else self.step_ns


@dataclass(frozen=True, slots=True)
class Baseline:
    name: str
    price: Price
    fits: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class PlannedLevel:
    """What the demands up to one priority came to; a step of 0 ns is of a level without a plan."""

    priority: int
    demands: int  # with a dimension of exactly this priority
    step_ns: int
    peak_bytes: int
    is_proved: bool  # the cheapest within what the levels before decided
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    module_sha256: str
    mesh: tuple[tuple[str, int], ...]
    mesh_name: str
    hardware: str
    topology: tuple[int, ...]  # in chips, of one slice
    form: str  # one of mlir.forms.FORMS: whose compiler runs it
    lowering: str  # how that compiler carries collectives out: shardy or xla-tpu
    memory_bytes: int | None
    carry: tuple[tuple[int, int], ...]  # (result, argument)
    status: str  # optimal, feasible, infeasible or not_found
    proved: str  # the sentence to read
    price: Price
    lower_bound_ns: int
    smallest_peak_bytes: int  # of any choice found
    arguments: tuple[NamedSharding, ...]
    results: tuple[NamedSharding, ...]
    values: dict[int, PlannedValue]
    uses: tuple[PlannedUse, ...]
    cloneable: tuple[int, ...]
    overlap: str = "none"  # the assumption on what runs behind compute: none or async
    baselines: tuple[Baseline, ...] = ()
    levels: tuple[PlannedLevel, ...] = ()  # of priorities, where demands have several
    other_meshes: tuple[PlannedMesh, ...] = ()
    slices: int | None = None
    """So many of the topology, joined by the data centre network; None: the hardware knows none."""
    placement: str = ""  # what each axis rides on, in the notation of costmodels; "": row-major
    device_order: tuple[int, ...] = ()
    """For each place of the mesh, row-major, the number of its device, by ids; () where that is its own number."""
    warnings: tuple[str, ...] = ()
    statistics: dict[str, float | int | str] = field(default_factory=dict[str, float | int | str])
    provenance: dict[str, str] = field(default_factory=dict[str, str])
    module_path: str = ""  # where the module was read from; "" where that was no file
    module_name: str = ""  # as it was named, and as places in it have it
    is_by_order: bool = False  # chosen for its step in the scheduler's order, which the bound is not of
    version: int = PLAN_VERSION

    @property
    def gap(self) -> float:
        """(predicted - bound) / predicted; 0 where the optimum is proved."""
        step = self.price.step_ns
        return max(0.0, (step - self.lower_bound_ns) / step) if step else 0.0

    @property
    def made_before_ns(self) -> int:
        """What of the communication is for changes of sharding and sums that the compiler has made for another reader already.

        Each reader pays for its own, as the solver's prices are sums over pairs; what is emitted for it is nothing.
        """
        if self.lowering != "xla-tpu":
            return 0
        return sum(
            one.ns * one.repeat for one in self.price.collectives if not one.emitted and one.kind not in LOCAL
        )

    @property
    def fits(self) -> bool:
        return self.memory_bytes is None or self.price.peak_bytes <= self.memory_bytes

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

    def sharding_mesh(self) -> Mesh:
        others = tuple(
            Mesh(tuple(MeshAxis(*axis) for axis in other.axes), other.name, other.device_ids)
            for other in self.other_meshes
        )
        return replace(Mesh.of(self.mesh, self.mesh_name), others=others)

    def decisions(self) -> Decisions:
        """The plan as the writer wants it."""
        mesh = self.sharding_mesh()
        read: dict[str, TensorSharding] = {}

        def sharding(text: str) -> TensorSharding:
            if text not in read:
                read[text] = parse_sharding(text, mesh)
            return read[text]

        return Decisions(
            produced={v: sharding(p.produced) for v, p in self.values.items()},
            settled={v: sharding(p.settled or p.produced) for v, p in self.values.items()},
            shared={v: sharding(p.shared) for v, p in self.values.items() if p.shared},
            uses={(use.op, use.operand): sharding(use.sharding) for use in self.uses},
            cloneable=frozenset(self.cloneable),
            again={(use.op, use.operand): use.again for use in self.uses if use.again},
        )


def emitted_bytes(price: Price) -> dict[str, int]:
    """Operand bytes on one device in a step by kind, of what the plan's compiler is predicted to emit."""
    found: dict[str, int] = {}
    for collective in price.collectives:
        for one in collective.emitted:
            found[one.kind] = found.get(one.kind, 0) + one.bytes * collective.repeat
    return found


def read_plan(path: Path) -> Plan:
    """Raises AutoshardError: the file is not there, is not a plan, or one of another version."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        raise AutoshardError(f"cannot read the plan: {error.strerror}", where=str(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AutoshardError(
            f"not a plan: {error}", where=str(path), fix="write one with autoshard plan --plan-out"
        ) from None
    if found.version != PLAN_VERSION or found.form not in FORMS:
        raise AutoshardError(
            f"a plan of version {found.version}, form {found.form!r}; this autoshard reads version {PLAN_VERSION}, form {', '.join(FORMS)}",
            where=str(path),
            fix="plan the module anew",
        )
    if found.overlap not in OVERLAPS:
        raise AutoshardError(
            f"a plan that assumes overlap {found.overlap!r}; this autoshard knows {', '.join(OVERLAPS)}",
            where=str(path),
            fix="plan the module anew",
        )
    return found


def require_same_module(plan: Plan, module_sha256: str, where: str) -> None:
    """Raises AutoshardError: the plan was made for another module."""
    if plan.module_sha256 != module_sha256:
        raise AutoshardError(
            f"the plan is for another module (sha256 {plan.module_sha256[:12]}, this one is {module_sha256[:12]})",
            where=where,
            fix="plan this module anew, or name the module that the plan was made for",
        )


def priced_groups(price: Price) -> Mapping[tuple[str, tuple[str, ...]], list[PlannedCollective]]:
    """Collectives by kind and axes, costliest group first."""
    groups: dict[tuple[str, tuple[str, ...]], list[PlannedCollective]] = {}
    for collective in price.collectives:
        groups.setdefault((collective.kind, collective.axes), []).append(collective)
    order = sorted(groups, key=lambda key: (-sum(c.ns * c.repeat for c in groups[key]), key))
    return {key: groups[key] for key in order}
