"""Hardware figures that a plan's price depends on, and a profile in which one of them is another."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from autoshard.errors import AutoshardError
from costmodels import Communication, Hardware

_PEAKS = ("bf16_tflop_per_s", "f16_tflop_per_s", "f32_tflop_per_s", "f8_tflop_per_s", "f64_tflop_per_s")


@dataclass(frozen=True, slots=True)
class ScaledFigure:
    """Entries of a profile's table that are scaled together.

    `is_rate`: a time goes by its inverse. `is_linear`: the price of every plan is a straight line in the figure (of a rate: in its
    inverse), as long as nothing else goes on at the same time; of two times of which the longer counts it is not: see `is_line_on`.
    """

    name: str
    table: str
    keys: tuple[str, ...]  # the first one that the profile has is the one to show
    is_rate: bool
    is_linear: bool

    @property
    def unit(self) -> str:
        """As in the name of the profile's entry."""
        key = self.keys[0]
        return next(text for suffix, text in _UNITS if key.endswith(suffix))

    def is_line_on(self, hardware: Hardware, communication: Communication) -> bool:
        """Whether the price of every plan is a straight line in the figure on this topology, as long as nothing runs behind compute.

        Latencies add up; links of several kinds are busy at the same time, and the slower ones count. A scheduler adds up what each
        product takes at peak and each collective on its axis.
        """
        if hardware.is_scheduled:
            return True
        has_one_kind = communication.placement.shape[0] == 1 and hardware.core_link is None
        return self.is_linear and (has_one_kind or not self.is_rate)

    def value(self, hardware: Hardware) -> float | None:
        """The figure as the profile has it; None where it has not."""
        table = getattr(hardware, self.table)
        found = [] if table is None else [getattr(table, key) for key in self.keys]
        return next((value for value in found if value is not None), None)

    def scaled(self, hardware: Hardware, factor: float) -> Hardware:
        """The profile with the figure times `factor`."""
        table = getattr(hardware, self.table)
        values = {key: getattr(table, key) for key in self.keys}
        changed = {key: value * factor for key, value in values.items() if value is not None}
        return msgspec.structs.replace(hardware, **{self.table: msgspec.structs.replace(table, **changed)})


_UNITS = (("gb_per_s", "GB/s"), ("tflop_per_s", "TFLOP/s"), ("gflop_per_s", "GFLOP/s"), ("_us", "µs"))
_BANDWIDTH = ("achievable_gb_per_s", "nominal_gb_per_s")
_LATENCY = ("latency_us", "overhead_us")
_OVERHEADS = ("kernel_overhead_us", "matrix_overhead_us")

FIGURES = (
    ScaledFigure("link-bandwidth", "link", _BANDWIDTH, is_rate=True, is_linear=True),
    ScaledFigure("link-latency", "link", _LATENCY, is_rate=False, is_linear=True),
    ScaledFigure("core-link-bandwidth", "core_link", _BANDWIDTH, is_rate=True, is_linear=False),
    ScaledFigure("network-bandwidth", "network", _BANDWIDTH, is_rate=True, is_linear=False),
    ScaledFigure("network-latency", "network", _LATENCY, is_rate=False, is_linear=True),
    ScaledFigure("matrix-peak", "chip", (*_PEAKS, "i8_top_per_s"), is_rate=True, is_linear=False),
    ScaledFigure("vector-peak", "chip", ("elementwise_gflop_per_s",), is_rate=True, is_linear=False),
    ScaledFigure("hbm-bandwidth", "chip", ("hbm_gb_per_s",), is_rate=True, is_linear=False),
    ScaledFigure("kernel-overhead", "chip", _OVERHEADS, is_rate=False, is_linear=True),
    ScaledFigure("scheduler-bandwidth", "scheduler", ("axis_gb_per_s",), is_rate=True, is_linear=True),
)
"""All that can be asked for; latencies are those of a hop and of a whole collective together, a peak that of all element types,
overheads those of a kernel and of a product."""

_OF_A_SCHEDULER = ("matrix-peak", "scheduler-bandwidth")


def figures_of_plan(
    hardware: Hardware, communication: Communication, asked: Sequence[str] = ()
) -> tuple[ScaledFigure, ...]:
    """The figures that prices on this topology depend on, or those of them that are asked for.

    Raises:
        AutoshardError: a figure that there is not, or that the topology or profile has no use for.
    """
    used = [figure for figure in FIGURES if _is_used(figure, hardware, communication)]
    if not asked:
        return tuple(used)
    known = {figure.name: figure for figure in used}
    for name in asked:
        if name not in known:
            exists = any(figure.name == name for figure in FIGURES)
            raise AutoshardError(
                f"{name} plays no part on {hardware.name} in this topology"
                if exists
                else f"no figure is called {name!r}",
                where="--figure",
                fix=f"name one of {', '.join(known)}",
            )
    return tuple(known[name] for name in dict.fromkeys(asked))


def _is_used(figure: ScaledFigure, hardware: Hardware, communication: Communication) -> bool:
    shape = communication.placement.shape
    is_there = figure.value(hardware) is not None
    if hardware.is_scheduled:
        return is_there and figure.name in _OF_A_SCHEDULER
    return is_there and figure.table != "scheduler" and (figure.table != "network" or shape[0] > 1)
