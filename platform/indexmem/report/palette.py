"""How a method looks: colour, marker, dash and weight, a function of its name alone, so that no page differs.

Methods of a family, such as snapkv and snapkv+memory, have one colour and differ in marker and dash. Legible on white
and on near-black.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LEARNED = {"indexmem": "#e2542c", "indexer": "#2f7df0"}
COLORS = (
    "#12988a", "#9a63dc", "#c28a00", "#d5559b", "#6f9a1c", "#1f9cc4", "#a8704b", "#7a86a0", "#2fa35a", "#b354c4",
    "#8a8f2a", "#5f6fd8",
)  # fmt: skip
# Plotly's name of a marker -> the same as a character, for legends.
MARKERS: Mapping[str, str] = MappingProxyType(
    {
        "circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "triangle-down": "▼", "triangle-left": "◀",
        "triangle-right": "▶", "cross": "✚", "x": "✖",
    }
)  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot")
FULL_COLOR = "#808894"
# The first twelve have a colour of their own. Who comes later is added at the end, so that nobody changes.
KNOWN = (
    *("snapkv", "expected_attention", "keydiff", "knorm", "streaming_llm", "random", "kvzip", "tova", "pyramidkv"),
    *("adakv", "locret", "observed_attention", "compactor", "cur", "lagkv", "leverage", "non_causal_attention", "cap"),
    *("criticalkv", "critical_adakv", "running_mean", "duo_attention", "kvzap", "fastkvzip", "qfilter"),
    *("expected_attention_stats", "xkv", *LEARNED, "full"),
)


@dataclass(frozen=True)
class Style:
    color: str
    marker: str
    emphasised: bool
    dash: str = "solid"

    @property
    def width(self) -> float:
        return 3.0 if self.emphasised else 1.6

    @property
    def glyph(self) -> str:
        """The marker as a character."""
        return MARKERS[self.marker]

    def faded(self, alpha: float) -> str:
        """The colour as rgba()."""
        return faded(self.color, alpha)


def faded(color: str, alpha: float) -> str:
    """'#2f7df0' -> 'rgba(47,125,240,alpha)'."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:.3g})"


def family(method: str) -> str:
    """The name that a label starts with: 'snapkv+memory(window_size=8)' -> 'snapkv'."""
    return method.partition("(")[0].partition("+")[0]


def style(method: str) -> Style:
    """The look of a method, by its label. Names that are not KNOWN are drawn by lot, and two of them may look alike."""
    name = family(method)
    place = KNOWN.index(name) if name in KNOWN else _lot(name)
    colors, markers, dashes = len(COLORS), len(MARKERS), len(DASHES)
    marker, dash = (place if name in KNOWN else place // colors) % markers, place // colors % dashes
    if name != method:  # anything but the plain one's marker and dash
        lot = _lot(method)
        marker, dash = (marker + 1 + lot % (markers - 1)) % markers, (dash + 1 + lot // markers % (dashes - 1)) % dashes
    color = LEARNED.get(name, COLORS[place % colors])
    return Style(color, tuple(MARKERS)[marker], method in LEARNED, "solid" if method in LEARNED else DASHES[dash])


def _lot(text: str) -> int:
    """A number of the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
