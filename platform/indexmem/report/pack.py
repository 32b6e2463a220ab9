"""Data for the page, small and inert: JSON as gzip as base64, which holds no character that means something in HTML."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FIRST = 35  # character code of 0 percent: printable, and no quote
UNKNOWN = 101


def packed(content: Any) -> str:
    """`content` for a script element of type application/gzip; the page unpacks it when it is needed."""
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode("ascii")


def sixes(kept_HT: NDArray[np.bool_]) -> str:
    """Which heads kept each token: ceil(H / 6) characters a token, bit b of the c-th is head 6 c + b."""
    heads, tokens = kept_HT.shape
    padded_TCb = np.pad(kept_HT.T, ((0, 0), (0, -heads % 6))).reshape(tokens, -1, 6)
    return (FIRST + padded_TCb @ (1 << np.arange(6))).astype(np.uint8).tobytes().decode("ascii")


def percents(shares: ArrayLike) -> str:
    """Shares in [0, 1] as one character of percent each, NaN as UNKNOWN."""
    values = np.asarray(shares, dtype=np.float64)
    rounded = np.where(np.isnan(values), UNKNOWN, np.rint(100 * np.clip(values, 0, 1)))
    return (FIRST + rounded).astype(np.uint8).tobytes().decode("latin-1")
