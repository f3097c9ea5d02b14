"""A scatter plot as SVG text: two logarithmic axes, a colour for each series, a line where both are equal."""

import math
from collections.abc import Mapping, Sequence
from html import escape

SIZE, MARGIN = 560, 60
COLOURS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f"),
    *("#bcbd22", "#17becf", "#000000", "#aec7e8"),
)


def scatter(series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> str:
    """SVG of the points of each series; those that are not positive are left out."""
    points = [point for found in series.values() for point in found if min(point) > 0]
    low = math.floor(math.log10(min(map(min, points))))
    high = math.ceil(math.log10(max(map(max, points))))
    scale = SIZE / max(high - low, 1)

    def at(value: float) -> float:
        return (math.log10(value) - low) * scale

    parts = [_grid(low, high, scale)]
    for number, (name, found) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += [
            f'<circle cx="{MARGIN + at(a):.1f}" cy="{MARGIN + SIZE - at(b):.1f}" r="3" fill="{colour}" fill-opacity="0.6"/>'
            for a, b in found
            if min(a, b) > 0
        ]
        top = MARGIN + 14 * (number + 1)
        parts.append(f'<text x="{MARGIN + 10}" y="{top}" fill="{colour}">{escape(name)}</text>')
    middle, edge = MARGIN + SIZE / 2, SIZE + 2 * MARGIN
    parts.append(f'<text x="{middle}" y="{edge - 15}" text-anchor="middle">{escape(x)}</text>')
    parts.append(
        f'<text transform="translate(15 {middle}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{edge}" height="{edge}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{edge}" height="{edge}" fill="white"/>\n{body}\n</svg>\n'
    )


def _grid(low: int, high: int, scale: float) -> str:
    lines = [f'<path d="M{MARGIN} {MARGIN + SIZE}L{MARGIN + SIZE} {MARGIN}" stroke="#888"/>']
    for power in range(low, high + 1):
        place = (power - low) * scale
        row, column = MARGIN + SIZE - place, MARGIN + place
        lines.append(
            f'<path d="M{MARGIN} {row:.1f}h{SIZE}M{column:.1f} {MARGIN}v{SIZE}" stroke="#ddd"/>'
            f'<text x="{MARGIN - 6}" y="{row + 4:.1f}" text-anchor="end">1e{power}</text>'
            f'<text x="{column:.1f}" y="{MARGIN + SIZE + 16}" text-anchor="middle">1e{power}</text>'
        )
    return "\n".join(lines)
