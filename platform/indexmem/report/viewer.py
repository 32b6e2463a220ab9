"""Data of the kept-token viewer: example contexts, the share of heads that kept each token, and every answer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget
from indexmem.report.summary import FULL
from indexmem.results.schema import KEY

MAX_VALUES = 4_000_000  # token shares in one report: about 5 MB of HTML
MAX_ANSWER = 2_000  # characters of one shown answer
MIN_MARK = 4  # shorter references match by chance all over a context


def viewer_data(rows: pa.Table, retention: pa.Table, methods: Sequence[str]) -> dict[str, Any]:
    """JSON-ready examples, at least one where any exist; `omitted` counts those left out for size."""
    rows = rows.filter(pc.is_in(rows["sample_id"], pc.unique(retention["sample_id"])))
    places = _places(rows, retention)
    samples: list[dict[str, Any]] = []
    values = 0
    for sample_id, cells in places.items():
        size = len(cells) * len(retention["retention"][next(iter(cells.values()))])
        if samples and values + size > MAX_VALUES:
            continue
        values += size
        samples.append(_sample(rows, retention, sample_id, cells))
    order = {name: place for place, name in enumerate((FULL, *methods))}
    for sample in samples:
        for entries in (sample["answers"], sample["cells"]):
            entries.sort(key=lambda entry: (order.get(entry["method"], len(order)), Budget.parse(entry["budget"])))
    return {"samples": samples, "omitted": len(places) - len(samples)}


def find_tokens(tokens: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Indices of the tokens that cover an occurrence of one of `texts` in the joined tokens."""
    joined = "".join(tokens)
    ends = np.cumsum([len(token) for token in tokens])
    found: set[int] = set()
    for text in (text.strip() for text in texts):
        start = joined.find(text) if len(text) >= MIN_MARK else -1
        while start >= 0:
            first, last = np.searchsorted(ends, [start, start + len(text) - 1], side="right")
            found.update(range(int(first), int(last) + 1))
            start = joined.find(text, start + len(text))
    return sorted(found)


def _places(rows: pa.Table, retention: pa.Table) -> dict[str, dict[tuple[str, str], int]]:
    """sample id -> (method, budget) -> row number in `retention`, first repeat only; FULL keeps everything anyway."""
    asked = rows.select(["cell_id", "sample_id", "method", "budget"]).to_pylist()
    names = {(row["cell_id"], row["sample_id"]): (row["method"], row["budget"]) for row in asked}
    places: dict[str, dict[tuple[str, str], int]] = {}
    for number, key in enumerate(retention.select(list(KEY)).to_pylist()):
        cell = names.get((key["cell_id"], key["sample_id"]))
        if cell is not None and cell[0] != FULL:
            places.setdefault(key["sample_id"], {}).setdefault(cell, number)
    return dict(sorted(places.items()))


def _sample(rows: pa.Table, retention: pa.Table, sample_id: str, cells: dict[tuple[str, str], int]) -> dict[str, Any]:
    numbers = list(cells.values())
    tokens: list[str] = retention["tokens"][numbers[0]].as_py()
    shares = {cell: retention["retention"][number].values.to_numpy() for cell, number in cells.items()}
    assert all(len(share) == len(tokens) for share in shares.values()), f"{sample_id}: one context, several lengths"
    asked = rows.filter(pc.equal(rows["sample_id"], sample_id)).sort_by("repeat").to_pylist()
    answers = {(row["method"], row["budget"]): row for row in reversed(asked)}  # the first repeat stays
    references = asked[0]["references"] or []
    return {
        "id": sample_id,
        "question": retention["question"][numbers[0]].as_py() or "",
        "references": references,
        "tokens": tokens,
        "marked": find_tokens(tokens, references),
        "cells": [{"method": m, "budget": b, "kept": _packed(share)} for (m, b), share in shares.items()],
        "answers": [_answer(row) for row in answers.values()],
    }


def _packed(share: np.ndarray) -> str:
    """Shares in [0, 1] as base64 of one byte of percent each."""
    percent = np.rint(100 * np.clip(share, 0, 1)).astype(np.uint8)
    return base64.b64encode(percent.tobytes()).decode("ascii")


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    text = row["prediction"] or ""
    shown = text if len(text) <= MAX_ANSWER else f"{text[:MAX_ANSWER]}…"
    error = "" if row["score"] is not None else f"failed: {row['error_class']}"
    return {"method": row["method"], "budget": row["budget"], "text": shown, "score": row["score"], "error": error}
