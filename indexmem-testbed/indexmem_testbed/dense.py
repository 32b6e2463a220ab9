"""Token sequences without meaning in which most tokens follow from earlier ones: what teaches a model to look back.

Nearly every position trains the same circuit that a needle's one answer needs, so it forms after far fewer tokens.
All lengths are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from indexmem_testbed.documents import COPY, UNKNOWABLE, Document

BEGIN, ASSIGN, STOP = 0, 2, 3  # beginning of a sequence; after a key; after a value
RESERVED = 4  # ids below are not drawn: these, and the tokenizer's end mark
SMALLEST_ALPHABET = 16
LONGEST_SPAN = 64
REPEATED = 0.67  # of the spans
FIRST_TIME = (0.1, 0.6)  # of a dictionary, for entries that come the first time
ENTRY = (1, 5)  # tokens of a key, and of a value: from, below

Dense = Callable[[int, int, np.random.Generator], Document]


def repeats(length: int, vocabulary: int, rng: np.random.Generator) -> Document:
    """Random spans, each of which may come again later; a repeated token counts from its span's second one on."""
    ids, weights = _empty(length)
    alphabet = _alphabet(vocabulary, rng)
    filled = 1
    while filled < length:
        size = min(int(rng.integers(2, LONGEST_SPAN + 1)), length - filled)
        if filled > size and rng.random() < REPEATED:
            start = int(rng.integers(1, filled - size + 1))
            ids[filled : filled + size] = ids[start : start + size]
            weights[filled + 1 : filled + size] = COPY
        else:
            ids[filled : filled + size] = rng.choice(alphabet, size)
        filled += size
    return Document(ids, weights)


def dictionary(length: int, vocabulary: int, rng: np.random.Generator) -> Document:
    """Entries of a random key and value, then the same entries in other orders until the length is full.

    A value counts whenever its entry comes again.
    """
    ids, weights = _empty(length)
    alphabet, share = _alphabet(vocabulary, rng), rng.uniform(*FIRST_TIME)
    entries: list[np.ndarray] = []
    values: list[slice] = []
    order: list[int] = []
    filled = 1
    while filled < length:
        if not entries or filled < share * length:
            key, value = (rng.choice(alphabet, rng.integers(*ENTRY)) for _ in range(2))
            entries.append(np.concatenate((key, [ASSIGN], value, [STOP])))
            values.append(slice(key.size + 1, key.size + value.size + 2))
            entry, known = entries[-1], None
        else:
            order = order or rng.permutation(len(entries)).tolist()
            number = order.pop()
            entry, known = entries[number], values[number]
        piece = entry[: length - filled]
        ids[filled : filled + piece.size] = piece
        if known is not None:
            weights[filled : filled + piece.size][known] = COPY
        filled += piece.size
    return Document(ids, weights)


def _alphabet(vocabulary: int, rng: np.random.Generator) -> np.ndarray:
    """The ids that a sequence is made of, often few: which tokens occur at all is learned before where they occur."""
    most = vocabulary - RESERVED
    size = int(np.exp(rng.uniform(np.log(SMALLEST_ALPHABET), np.log(most))))
    return RESERVED + rng.choice(most, size, replace=False)


def _empty(length: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.empty(length, dtype=np.int16)
    ids[0] = BEGIN
    return ids, np.full(length, UNKNOWABLE, dtype=np.uint8)


DENSE: Mapping[str, Dense] = MappingProxyType({"repeats": repeats, "dictionary": dictionary})
