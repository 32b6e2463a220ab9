"""A line of scores over nights, small enough for a table's cell: as text, and as points of an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indexmem.nightly.verdict import NightVerdict

BARS = "▁▂▃▄▅▆▇█"
WIDTH, HEIGHT, EDGE = 150, 36, 3  # as in the template


@dataclass(frozen=True)
class Trend:
    """Mean scores in [0, 1], oldest first; None for a night without."""

    scores: tuple[float | None, ...]

    @classmethod
    def of(cls, suite: str, method: str, nights: Sequence[NightVerdict]) -> Trend:
        return cls(tuple(night.scores(suite).get(method) for night in nights))

    def __str__(self) -> str:
        return "".join(" " if score is None else BARS[round(score * (len(BARS) - 1))] for score in self.scores)

    @property
    def said(self) -> str:
        """For those who do not see the line."""
        return ", ".join("none" if score is None else f"{100 * score:.1f}%" for score in self.scores)

    @property
    def points(self) -> list[tuple[float, float]]:
        """Places of the known scores, from 0% at the bottom to 100% at the top; the last is the newest."""
        step = (WIDTH - 2 * EDGE) / max(1, len(self.scores) - 1)
        height = HEIGHT - 2 * EDGE
        return [
            (round(EDGE + step * place, 1), round(EDGE + height * (1 - score), 1))
            for place, score in enumerate(self.scores)
            if score is not None
        ]
