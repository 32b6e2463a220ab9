"""Which KV heads kept which token, as the bytes of a retention row. Shapes: L layers, H KV heads, T context tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BITS_SINCE = 8  # schema version; before, a byte a token was the number of heads that kept it


def head_bits(kept_HT: NDArray[np.bool_]) -> bytes:
    """A layer's ceil(H / 8) bytes a token: bit h of a token's bytes is set where head h kept it."""
    return np.packbits(kept_HT.T, axis=1, bitorder="little").tobytes()


def kept_by_head(layers: Sequence[bytes], heads: int, version: int) -> NDArray[np.bool_]:
    """kept_LHT of a row's `kept_heads`. Of an older row, which has only numbers, so many heads, the first ones."""
    found = []
    for layer in layers:
        stored = np.frombuffer(layer, np.uint8)
        if version < BITS_SINCE:
            found.append(np.arange(heads)[:, None] < stored)
        else:
            bits_TB = stored.reshape(-1, -(-heads // 8))
            found.append(np.unpackbits(bits_TB, axis=1, count=heads, bitorder="little").astype(bool).T)
    return np.array(found)
