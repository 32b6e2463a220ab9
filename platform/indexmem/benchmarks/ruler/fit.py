"""How many units of filler a token budget holds, exactly.

Tokens are not additive: a tokenizer may merge across the seam of two units. So prefix sums over units tokenised one by
one only propose a number; the real tokenisation of the whole text accepts or rejects it, and scales the next
proposal. The search keeps a bracket, so it ends whatever the tokenizer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokens_of_each(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of each text taken alone, in one pass."""
    ids = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return [len(text) for text in ids]


def largest_fit(unit_tokens: Sequence[int], cost: Callable[[int], int], budget: int, most: int | None = None) -> int:
    """An n <= `most` such that n units fit and one more does not: cost(n) <= budget < cost(n + 1). 0 if no unit fits.

    `unit_tokens` estimates each unit alone, repeated cyclically when there are too few; `cost(n)` is the true size in
    tokens of the text with n units. Calls `cost` three times when the estimates add up, and once with no units, once
    with n and once with n + 1 in any case.
    """
    sums = np.cumsum(unit_tokens)
    assert len(unit_tokens) > 0, "no units to fill with"
    assert sums[-1] > 0, "units must cost tokens"
    base, scale = cost(0), 1.0
    fits, exceeds = 0, max(budget, 0) + 1  # a unit costs at least one token
    if most is not None:
        exceeds = min(exceeds, most + 1)
    while exceeds - fits > 1:
        proposal = min(max(_units_within(sums, (budget - base) / scale), fits + 1), exceeds - 1)
        used = cost(proposal)
        scale = max(used - base, 1) / max(_tokens_of(sums, proposal), 1)
        fits, exceeds = (proposal, exceeds) if used <= budget else (fits, proposal)
    return fits


def _units_within(sums: np.ndarray, tokens: float) -> int:
    """The most units whose estimates sum to at most `tokens`."""
    cycles, rest = divmod(max(tokens, 0.0), float(sums[-1]))
    return int(cycles) * sums.size + int(np.searchsorted(sums, rest, side="right"))


def _tokens_of(sums: np.ndarray, units: int) -> int:
    """Estimated tokens of the first `units` units."""
    cycles, rest = divmod(units, sums.size)
    return int(cycles * sums[-1] + (sums[rest - 1] if rest else 0))
