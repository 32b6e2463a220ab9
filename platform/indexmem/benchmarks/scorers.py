"""Scores of generated answers, pure functions into [0, 1].

`string_match_all` and `string_match_part` follow RULER (github.com/NVIDIA/RULER, Apache-2.0): a reference counts as
found when it is a case-insensitive substring of the answer. So "12345" is found in "912345": kept as it is, because
published RULER numbers are scored that way.

RULER reads control characters as line breaks, kvpress deletes them (`control=""`), which may join two halves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f]")


def string_match_all(prediction: str, references: Sequence[str], *, control: str = "\n") -> float:
    """Share of the references that the answer contains (RULER's score for every task but QA)."""
    found = _found(prediction, references, control)
    return sum(found) / len(found)


def string_match_part(prediction: str, references: Sequence[str], *, control: str = "\n") -> float:
    """1.0 if the answer contains any of the references, else 0.0 (RULER's score for QA)."""
    return float(any(_found(prediction, references, control)))


def _found(prediction: str, references: Sequence[str], control: str) -> list[bool]:
    assert references, "a sample without references cannot be scored"
    answer = _CONTROL_CHARACTERS.sub(control, prediction).strip().lower()
    return [reference.lower() in answer for reference in references]
