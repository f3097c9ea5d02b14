"""What a profile was fitted to: its `[calibration]` table, and what of a question lies outside it.

Ranges are kept by kind of measurement: for a collective of bytes and devices, for a product of m, k and n, for memory
traffic of bytes.
"""

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0, le=1e300)]
NonNegative = Annotated[float, Meta(ge=0, le=1e300)]


class Range(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[calibration.range]]`: the least and greatest that was measured of one kind; [low, high] each."""

    kind: str
    points: int
    dtype: str | None = None
    bytes: tuple[NonNegative, NonNegative] | None = None
    devices: tuple[NonNegative, NonNegative] | None = None
    m: tuple[NonNegative, NonNegative] | None = None
    k: tuple[NonNegative, NonNegative] | None = None
    n: tuple[NonNegative, NonNegative] | None = None


class Residual(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[calibration.residual]]`: one point of the table and what the fitted profile says of it."""

    point: str
    measured_us: Positive
    fitted_us: NonNegative

    @property
    def relative(self) -> float:
        """(fitted - measured) / measured."""
        return self.fitted_us / self.measured_us - 1


class Calibration(Struct, frozen=True, forbid_unknown_fields=True):
    """`[calibration]`: where the fitted figures come from and how well they fit."""

    base: str
    tables: tuple[str, ...]
    sha256: tuple[str, ...]  # of each table
    fitted: tuple[str, ...]  # figures, as "link.latency_us"
    range: tuple[Range, ...]
    residual: tuple[Residual, ...]

    @property
    def rms(self) -> float:
        """Root of the mean square of the relative residuals."""
        return (sum(r.relative**2 for r in self.residual) / max(len(self.residual), 1)) ** 0.5

    @property
    def worst(self) -> float:
        """The relative residual of greatest size."""
        return max((abs(r.relative) for r in self.residual), default=0.0)

    def outside(self, kind: str, dtype: str | None = None, **asked: float) -> str:
        """What of a question was not measured, as a sentence; "" where it lies within what was.

        Kinds of another sort than were measured (products, where collectives were) are not calibrated, and not outside.
        """
        of_kind = [r for r in self.range if r.kind == kind and r.dtype == dtype]
        if not of_kind:
            like = [r for r in self.range if set(asked) == set(limits(r))]
            what = kind if dtype is None else f"{kind} in {dtype}"
            return f"no {what} was measured" if like else ""
        for name, value in asked.items():
            ends = [limits(r)[name] for r in of_kind if name in limits(r)]
            if ends and not min(low for low, _ in ends) <= value <= max(high for _, high in ends):
                low, high = min(low for low, _ in ends), max(high for _, high in ends)
                return f"{kind} was measured for {name} from {low:.6g} to {high:.6g}, not {value:.6g}"
        return ""


def limits(range: Range) -> dict[str, tuple[float, float]]:
    """What of a kind was measured: name and [low, high]."""
    found = {name: getattr(range, name) for name in ("bytes", "devices", "m", "k", "n")}
    return {name: ends for name, ends in found.items() if ends is not None}
