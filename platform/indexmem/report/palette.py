"""One colour, marker and weight per method, the same in every chart, legible on white and on near-black."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LEARNED = {"indexmem": "#e2542c", "indexer": "#2f7df0"}
COLORS = (
    "#12988a", "#9a63dc", "#c28a00", "#d5559b", "#6f9a1c", "#1f9cc4", "#a8704b", "#7a86a0", "#2fa35a", "#b354c4",
    "#8a8f2a", "#5f6fd8",
)  # fmt: skip
MARKERS = ("circle", "square", "triangle-up", "cross", "triangle-down", "x", "pentagon", "star", "hexagon", "bowtie")
DASHES = ("solid", "dash", "dot", "dashdot")  # one per round of colours
FULL_COLOR = "#808894"


@dataclass(frozen=True)
class Style:
    color: str
    marker: str
    emphasised: bool
    dash: str = "solid"

    @property
    def width(self) -> float:
        return 3.0 if self.emphasised else 1.6

    def faded(self, alpha: float) -> str:
        """The colour as rgba()."""
        return faded(self.color, alpha)


def faded(color: str, alpha: float) -> str:
    """'#2f7df0' -> 'rgba(47,125,240,alpha)'."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:.3g})"


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """Styles by method label. Assigned by name, not by rank, so that a re-run keeps its colours."""
    chosen: dict[str, Style] = {}
    taken = 0
    for index, method in enumerate(sorted(methods)):
        marker = MARKERS[index % len(MARKERS)]
        learned = LEARNED.get(method)
        chosen[method] = Style(
            learned or COLORS[taken % len(COLORS)],
            marker,
            emphasised=learned is not None,
            dash="solid" if learned else DASHES[taken // len(COLORS) % len(DASHES)],
        )
        taken += learned is None
    return chosen
