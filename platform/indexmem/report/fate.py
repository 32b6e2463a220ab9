"""What became of the reference in a compressed context, and of the answer, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexmem.report.text import counted


def fate(kept_LHT: NDArray[np.bool_], marked: Sequence[int], score: float | None, *, memory: bool) -> str:
    """'Reference evicted in 11 of 12 heads, whole in 1; answered, with a memory of what was evicted.'

    kept_LHT: which of T tokens each KV head of each layer kept, empty where that is not known; marked: the tokens of
    the reference; score: of the answer, None where there is none; memory: the method carries one.
    """
    place = _place(kept_LHT, marked)
    answered = _answered(score, memory=memory)
    return f"{place}; {answered}." if place else f"{answered[0].upper()}{answered[1:]}."


def _place(kept_LHT: NDArray[np.bool_], marked: Sequence[int]) -> str:
    """Heads that kept all of the reference, a part, or nothing."""
    if not len(marked) or not kept_LHT.size:
        return ""
    share_N = kept_LHT[:, :, list(marked)].mean(-1).ravel()  # of all heads
    gone, whole, n = int((share_N == 0).sum()), int((share_N == 1).sum()), len(share_N)
    counts = {"evicted": gone, "whole": whole, "in part": n - gone - whole}
    found = [(word, count) for word, count in counts.items() if count]
    (word, count), *others = found
    if not others:
        return f"Reference {'kept ' * (word != 'evicted')}{word} in {'all ' * (n > 1)}{counted(n, 'head')}"
    first = f"{'kept ' * (word != 'evicted')}{word} in {count} of {counted(n, 'head')}"
    return f"Reference {', '.join([first, *(f'{name} in {number}' for name, number in others)])}"


def _answered(score: float | None, *, memory: bool) -> str:
    if score is None:
        return "no answer"
    if score == 0:
        return "answered wrong"
    said = "answered" if score == 1 else f"answered in part ({100 * score:.0f}%)"
    return f"{said}, with a memory of what was evicted" if memory else said
