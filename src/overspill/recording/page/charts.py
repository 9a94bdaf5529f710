"""Charts as SVG that stretches to any width, with their text beside it in HTML.

A drawing is 1000 units wide and stretches without keeping its proportions, so that a phone and a
desktop show the same file; what must not stretch (lines, letters) is told so or is no part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 1000.0, 400.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """The upward axis of a chart.

    Attributes:
        top: The value at the upper edge.
        ticks: Values with a line, and how they read.
    """

    top: float
    ticks: Sequence[tuple[float, str]]

    def place(self, values: Floats) -> Floats:
        """Heights in the drawing, from its upper edge."""
        heights: Floats = HEIGHT * (1 - np.minimum(values / self.top, 1.0))
        return heights

    def percent(self, value: float) -> float:
        """The same for one value, in percent."""
        return 100 * (1 - min(value / self.top, 1.0))


def area(times: Floats, values: Floats, axis: Axis, *, name: str) -> str:
    """A filled area from zero up to the values; times are parts of the whole, 0 to 1."""
    points = _points(times, axis.place(values))
    first, last = _number(times[0] * WIDTH), _number(times[-1] * WIDTH)
    base = _number(HEIGHT)
    return f'<path class="area {name}" d="M{first} {base}L{points}L{last} {base}Z"/>'


def line(times: Floats, values: Floats, axis: Axis, *, name: str) -> str:
    """A line through the values."""
    return f'<path class="line {name}" d="M{_points(times, axis.place(values))}"/>'


def stairs(edges: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Times and values of a line that stays level over each span."""
    return np.repeat(edges, 2)[1:-1], np.repeat(values, 2)


def upright(time: float, *, name: str) -> str:
    """A line across the whole height at a time."""
    x = _number(time * WIDTH)
    return f'<path class="line {name}" d="M{x} 0V{_number(HEIGHT)}"/>'


def plot(
    shapes: Sequence[str],
    axis: Axis,
    *,
    told: str,
    over: Sequence[str] = (),
) -> str:
    """A drawing with its lines and labels of the upward axis.

    Args:
        shapes: What is drawn, the lowest first.
        axis: The upward axis.
        told: What it shows, for who cannot see it.
        over: HTML that lies over it.
    """
    grid = "".join(
        f'<path class="line grid" d="M0 {_number(y)}H{_number(WIDTH)}"/>'
        for y in axis.place(np.array([value for value, _ in axis.ticks]))
    )
    labels = "".join(
        f'<span class="y" style="top:{axis.percent(value):.2f}%">{escape(text)}</span>'
        for value, text in axis.ticks
    )
    return (
        f'<div class="ys" aria-hidden="true">{labels}</div><div class="plot">'
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(told)}">{"".join(shapes)}{grid}</svg>'
        f'{"".join(over)}<div class="cursor" hidden></div></div>'
    )


def times_axis(ticks: Sequence[tuple[float, str]]) -> str:
    """Labels of times below a drawing; every second one is left out where it is narrow."""
    labels = []
    for number, (part, text) in enumerate(ticks):
        side = " first" if part < 0.03 else " last" if part > 0.94 else ""
        extra = " extra" if number % 2 else ""
        labels.append(
            f'<span class="x{side}{extra}" style="left:{100 * part:.2f}%">{escape(text)}</span>'
        )
    return f'<div class="xs" aria-hidden="true">{"".join(labels)}</div>'


def _points(times: Floats, heights: Floats) -> str:
    # Samples closer than a tenth of a unit are one point on any screen.
    xs, ys = np.round(times * WIDTH, 1).tolist(), np.round(heights, 1).tolist()
    return " ".join(f"{_number(x)} {_number(y)}" for x, y in zip(xs, ys, strict=True))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
