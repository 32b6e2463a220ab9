"""Names and values in the form that MLflow accepts: it refuses most punctuation and cuts long values silently."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from indexmem.config.budget import Budget

MAX_PARAM = 6000  # characters of a param value
MAX_TAG = 8000  # characters of a tag value
MAX_LABEL = 120  # characters of a label within a metric name, which MLflow limits to 250 as a whole


def labels(texts: Iterable[str]) -> dict[str, str]:
    """Each text -> a distinct label of letters, digits, '_', '-', '.': 'snapkv(window=64)' -> 'snapkv_window_64'."""
    named: dict[str, str] = {}
    for text in sorted(set(texts)):
        label = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.")
        if not label or len(label) > MAX_LABEL or label in named.values():
            label = f"{label[: MAX_LABEL - 9]}-{_digest(text)[:8]}"
        named[text] = label
    return named


def score_metrics(scores: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """(suite, method) -> mean score, as metrics 'score/<suite>/<method>'."""
    suites, methods = labels(suite for suite, _ in scores), labels(method for _, method in scores)
    return {f"score/{suites[suite]}/{methods[method]}": value for (suite, method), value in scores.items()}


def metric_name(text: str) -> str:
    """`text` with what MLflow refuses in a metric name replaced; '/' stays, it groups charts in the UI."""
    return re.sub(r"[^A-Za-z0-9_./: -]+", "_", text)


def model_name(text: str) -> str:
    """`text` with what MLflow refuses in a logged model's name replaced: the dot of 'lr0.01', too."""
    return re.sub(r"[/:.%\"']+", "_", text)


def budget_label(budget: Budget) -> str:
    """Half evicted -> 'r0.50', more digits only where two would hide a difference; '512tokens', '8MiB'."""
    if budget.ratio is None:
        return str(budget).replace(" ", "")
    return f"r{budget.ratio:.2f}" if round(budget.ratio, 2) == budget.ratio else f"r{budget.ratio:g}"


def value_text(value: Any) -> str:
    """A setting as it would be typed in an override: text bare, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def clip(text: str, limit: int) -> str:
    """`text` within `limit` characters; a cut is visible and carries a hash, so different texts stay different."""
    if len(text) <= limit:
        return text
    ending = f" … [{len(text)} characters, sha256 {_digest(text)[:16]}]"
    return text[: limit - len(ending)] + ending


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
