r"""The final answer of a solution: what its last \boxed{...} holds."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_INTEGER = re.compile(r"[+-]?\d+")


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete \boxed{...}, braces balanced; None when there is none.

    A box that is never closed, as in an answer that was cut off, does not count. Escaped braces, as in \{1, 2\}, do not
    open or close anything.
    """
    for box in reversed(list(_BOX.finditer(text))):
        end = _closing_brace(text, box.end())
        if end is not None:
            return text[box.end() : end].strip()
    return None


def as_integer(text: str | None) -> int | None:
    """The number that `text` writes, "016" being 16; dollar signs and thousands' commas play no part."""
    if text is None:
        return None
    plain = text.strip().strip("$").strip().replace(r"\,", "").replace("{,}", "").replace(",", "")
    return int(plain) if _INTEGER.fullmatch(plain) else None


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace opened before `start` closes."""
    depth, place = 1, start
    while place < len(text):
        letter = text[place]
        if letter == "\\":
            place += 1  # whatever is escaped is no brace
        elif letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return None
