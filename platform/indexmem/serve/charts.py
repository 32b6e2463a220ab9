"""Line charts as coordinates; the template draws them as SVG. The y axis shows round numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from indexmem.live.status import Curve, Scores
from indexmem.report.palette import styles

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 28  # margins
ORDINARY = "#2f7df0"


@dataclass(frozen=True)
class Line:
    """One polyline, broken where a value is unknown."""

    label: str
    color: str
    pieces: tuple[tuple[tuple[float, float], ...], ...]  # (x, y) in pixels


@dataclass(frozen=True)
class Tick:
    place: float  # pixels
    text: str


@dataclass(frozen=True)
class Chart:
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def score_chart(scores: Scores) -> Chart | None:
    """Percent by budget, a line for each method in the report's colours; None where budgets are too few for lines."""
    look = styles(entry.method for entry in scores.methods)
    known = [mean for entry in scores.methods for mean in entry.means if mean is not None]
    if len(scores.budgets) < 2 or not known:
        return None
    ticks = _round_numbers(0.0, 100 * max(known))
    x_of = _scale(0, len(scores.budgets) - 1, LEFT, WIDTH - RIGHT)
    y_of = _scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    lines = []
    for entry in scores.methods:
        pieces: list[list[tuple[float, float]]] = [[]]
        for number, mean in enumerate(entry.means):
            if mean is None:
                pieces.append([])
            else:
                pieces[-1].append((x_of(number), y_of(100 * mean)))
        lines.append(Line(entry.method, look[entry.method].color, tuple(tuple(piece) for piece in pieces if piece)))
    return Chart(
        tuple(lines),
        tuple(Tick(x_of(number), budget) for number, budget in enumerate(scores.budgets)),
        tuple(Tick(y_of(value), f"{value:g}%") for value in ticks),
    )


def curve_chart(curve: Curve) -> Chart | None:
    """A value by step; None below two finite points."""
    points = [(step, value) for step, value in curve.points if math.isfinite(value)]
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    values = [value for _, value in points]
    ticks = _round_numbers(min(values), max(values))
    x_of = _scale(points[0][0], points[-1][0], LEFT, WIDTH - RIGHT)
    y_of = _scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    line = Line(curve.name, ORDINARY, (tuple((x_of(step), y_of(value)) for step, value in points),))
    ends = tuple(Tick(x_of(step), f"{step:,}") for step in (points[0][0], points[-1][0]))
    return Chart((line,), ends, tuple(Tick(y_of(value), f"{value:g}") for value in ticks))


def _round_numbers(low: float, high: float, wanted: int = 4) -> Sequence[float]:
    """Multiples of 1, 2 or 5 times a power of ten that enclose [low, high]; at least two."""
    span = max(high - low, abs(high) * 1e-6, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= wanted)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)
