"""Numbers and foreign text as a reader wants to see them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

ELLIPSIS = "…"
# What moves, hides or ends text without being seen: control characters and bidirectional overrides.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")


def bytes_text(count: float) -> str:
    """1234567 -> '1.2 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """0.0123 -> '12 ms', 6.1 -> '6.1 s'."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def signed(share: float) -> str:
    """0.033 -> '+3.3', with a real minus sign."""
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def p_words(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def counted(number: int, noun: str) -> str:
    """'1 row', '1,620 rows'."""
    return f"{number:,} {noun}" + ("s" if number != 1 else "")


def references_text(references: Sequence[str], labels: str | None, limit: int | None = None) -> str:
    """References as a reader sees them: 'a  and  b' where a right answer has all of them, 'a  or  b' where one is
    enough, 'a, b' where the row's labels (JSON) do not say.
    """
    needed = json.loads(labels or "{}").get("references")
    return {"all": "  and  ", "any": "  or  "}.get(needed, ", ").join(visible(text, limit) for text in references)


def visible(text: str, limit: int | None = None) -> str:
    """`text` with unseen characters spelled out (␀, [U+202E]) and, beyond `limit` characters, an ellipsis."""
    shown = text if limit is None or len(text) <= limit else text[:limit] + ELLIPSIS
    return _UNSEEN.sub(_spelled, shown)


def natural(sample_id: str) -> tuple[str, int, str]:
    """'b/10' after 'b/9'."""
    name, _, index = sample_id.rpartition("/")
    return (name, int(index), "") if index.isdecimal() else (name, -1, index)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"
