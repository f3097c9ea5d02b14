"""The figures of a hardware profile: one struct for each table of its TOML file, units in the names.

Figures are those of a chip; properties without a TOML unit in their name are in bytes, nanoseconds and FLOP.
One byte a nanosecond is one (decimal) GB/s. What a figure may be is checked while the file is read.
"""

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(gt=0, le=1_000_000)]
Elements = Annotated[int, Meta(gt=0, le=1_000_000_000)]
Fraction = Annotated[float, Meta(ge=1e-3, le=1)]
Gigabytes = Annotated[float, Meta(ge=1e-3, le=10_000)]
GigabytesPerSecond = Annotated[float, Meta(ge=1e-3, le=100_000)]
Gigaflops = Annotated[float, Meta(ge=1e-3, le=10_000_000)]
Microseconds = Annotated[float, Meta(gt=0, le=100_000)]
Ratio = Annotated[float, Meta(gt=0, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
Speedup = Annotated[float, Meta(ge=1, le=10)]
Teraflops = Annotated[float, Meta(ge=1e-3, le=1_000_000)]


class Chip(Struct, frozen=True, forbid_unknown_fields=True):
    """`[chip]`: memory, matrix unit, vector unit and the overhead of a kernel, `matrix_overhead_us` more of one that fills the matrix unit.

    Types with an efficiency of their own have it instead of `matrix_efficiency`. Products of which a row of an operand or of the result
    is no multiple of `row_bytes` reach `misaligned_efficiency` of what others reach. Where `products_apart`, products are a
    library's: they share nothing on the chip with other kernels. A convolution that goes through its window in turn takes
    `position_us` a position for `results_at_once` results.
    """

    hbm_gb_per_s: GigabytesPerSecond
    hbm_efficiency: Fraction
    usable_hbm_fraction: Fraction
    bf16_tflop_per_s: Teraflops
    f32_tflop_per_s: Teraflops
    elementwise_gflop_per_s: Gigaflops
    matrix_efficiency: Fraction
    matrix_tile: Count
    kernel_overhead_us: Microseconds
    hbm_gb: Gigabytes | None = None
    hbm_gib: Gigabytes | None = None
    f16_tflop_per_s: Teraflops | None = None
    f8_tflop_per_s: Teraflops | None = None
    f64_tflop_per_s: Teraflops | None = None
    i8_top_per_s: Teraflops | None = None
    f32_matrix_efficiency: Fraction | None = None
    f64_matrix_efficiency: Fraction | None = None
    f8_matrix_efficiency: Fraction | None = None
    i8_matrix_efficiency: Fraction | None = None
    matrix_overhead_us: Microseconds | None = None
    row_bytes: Count | None = None
    misaligned_efficiency: Fraction | None = None
    position_us: Microseconds | None = None
    results_at_once: Elements | None = None
    products_apart: bool | None = None
    devices_per_chip: Count = 1

    def __post_init__(self) -> None:
        if (self.row_bytes is None) != (self.misaligned_efficiency is None):
            raise ValueError("row_bytes and misaligned_efficiency go together")
        if (self.position_us is None) != (self.results_at_once is None):
            raise ValueError("position_us and results_at_once go together")
        if (self.hbm_gb is None) == (self.hbm_gib is None):
            raise ValueError("give exactly one of hbm_gb (decimal) and hbm_gib (binary)")

    @property
    def hbm_bytes(self) -> int:
        """Memory of the whole chip."""
        if self.hbm_gib is not None:
            return int(self.hbm_gib * 2**30)
        return int((self.hbm_gb or 0) * 10**9)


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """`[link]`, `[core_link]` or `[network]`: one direction of one link, or of one chip's port to a network.

    Models use the achievable figure where the profile has it, and the nominal one elsewhere.
    """

    nominal_gb_per_s: GigabytesPerSecond
    latency_us: Microseconds
    achievable_gb_per_s: GigabytesPerSecond | None = None
    overhead_us: Microseconds | None = None

    @property
    def bytes_per_ns(self) -> float:
        """Bandwidth that a program sees."""
        return self.nominal_gb_per_s if self.achievable_gb_per_s is None else self.achievable_gb_per_s

    @property
    def latency_ns(self) -> float:
        """Time of one hop of a torus, or of one doubling of a group behind a switch."""
        return self.latency_us * 1e3

    @property
    def overhead_ns(self) -> float:
        """Time that a collective takes whatever its size and group."""
        return 0.0 if self.overhead_us is None else self.overhead_us * 1e3


class Scheduler(Struct, frozen=True, forbid_unknown_fields=True):
    """`[scheduler]`: what the scheduler of the chip's compiler takes collectives for (`scheduled`), both directions of an axis together.

    `waited_share`: of asynchronous collectives, what programs wait for in its schedules where nothing is there ahead of time.
    `covering_ratio`: for how many times its least time it takes a product, before its tiles are chosen; so long it covers what is sent.
    `pass_gb_per_s`: the rate at which a part has to pass in less time than a product's operations take at the nominal peak, for the two to
    be made a loop.
    """

    axis_gb_per_s: GigabytesPerSecond
    counts_whole_gathers: bool
    waited_share: Share | None = None  # None: all
    covering_ratio: Ratio = 1.0
    pass_gb_per_s: GigabytesPerSecond | None = None  # None: what a pass takes over the links


class Torus(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="torus"):
    """`[topology]` of chips linked to their neighbours along `dimensions` physical dimensions.

    A dimension closes into a ring when its size is a multiple of `wraparound_multiple`; with
    `wraparound_whole_slice`, only when so is every other dimension of the slice. With `gathers_behind_compute`
    XLA runs all-gathers behind kernels that do not wait for them.
    """

    dimensions: Count
    max_chips: Count
    max_dimension_chips: Count
    wraparound_multiple: Count
    wraparound_whole_slice: bool
    gathers_behind_compute: bool | None = None  # None: no


class Switch(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="switch"):
    """`[topology]` of `node_chips` chips behind a switch that all reach at full bandwidth at once."""

    node_chips: Count
    all_reduce_speedup: Speedup | None = None


class FullMesh(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="full-mesh"):
    """`[topology]` of `node_chips` chips with one link between every two of them."""

    node_chips: Count


Topology = Torus | Switch | FullMesh
