"""Samples whose kept tokens are stored for the viewer: the first of each benchmark, and those that cells lose.

Shapes: L layers, H KV heads, K kept tokens, T tokens of the context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from indexmem.eviction.context import RowCache
from indexmem.results.head_bits import head_bits
from indexmem.results.schema import FULL_LABEL, SCHEMA_VERSION

MOST_LOSSES = 4  # samples of a benchmark that one worker stores for their losses: all cells of a sample take room
CLEARLY = 0.1  # of a score: by so much a loss must be larger than those before
MOST_BYTES = 4  # of a character
BROKEN = "\N{REPLACEMENT CHARACTER}"


class Losses:
    """What cells lost so far against the full cache, as far as one worker knows: it tells which samples say more."""

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}  # cell id -> loss
        self._stored: Counter[str] = Counter()  # by benchmark

    def tells(self, rows: Sequence[Mapping[str, Any]], *, stored: bool) -> bool:
        """Whether one sample's rows are of one to store: a cell loses more on it than on any before.

        `stored`: it is stored anyway, and counts against no limit. Samples without a full cache's score tell nothing.
        """
        full = next((row["score"] for row in rows if row["method"] == FULL_LABEL), None)
        lost = {} if full is None else {row["cell_id"]: full - row["score"] for row in rows if row["score"] is not None}
        more = {cell: loss for cell, loss in lost.items() if loss > self._largest.get(cell, 0.0) + CLEARLY}
        benchmark = rows[0]["benchmark"]
        tells = stored or (bool(more) and self._stored[benchmark] < MOST_LOSSES)
        if tells:
            self._largest |= more
            self._stored[benchmark] += not stored
        return tells


def retention_rows(
    rows: Iterable[Mapping[str, Any]],
    caches: Iterable[RowCache],
    question: str,
    context_ids: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
) -> list[dict[str, Any]]:
    """RETENTION_SCHEMA of one sample: what each of its rows' caches kept."""
    tokens = token_texts(tokenizer, context_ids)
    return [
        {name: row[name] for name in ("cell_id", "sample_id", "repeat")}
        | {"schema_version": SCHEMA_VERSION, "question": question, "tokens": tokens}
        | _kept(cache, len(tokens))
        for row, cache in zip(rows, caches)
    ]


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token. Of a character that several tokens spell, the first has all, and the others ''."""
    texts: list[str] = []
    open_ids: list[int] = []
    for place, token in enumerate(ids, start=1):
        open_ids.append(token)
        text = str(tokenizer.decode(open_ids))
        if text.endswith(BROKEN) and len(open_ids) < MOST_BYTES and place < len(ids):
            continue
        texts += [text, *[""] * (len(open_ids) - 1)]
        open_ids = []
    return texts


def _kept(cache: RowCache, tokens: int) -> dict[str, Any]:
    layers = [kept_HK.cpu().numpy() for kept_HK in cache.kept_HK]
    kept_LHT = np.zeros((len(layers), len(layers[0]) if layers else 0, tokens), bool)
    for layer, kept_HK in enumerate(layers):
        for head, (kept_K, length) in enumerate(zip(kept_HK, cache.lengths(layer))):
            kept_LHT[layer, head, kept_K[:length]] = True
    return {
        "retention": kept_LHT.mean((0, 1)).tolist(),
        "kept_heads": list(map(head_bits, kept_LHT)),
        "kv_heads": kept_LHT.shape[1],
    }
