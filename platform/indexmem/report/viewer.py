"""Data of the kept-token viewer: example contexts, and the share of heads that kept each token, in all and by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget
from indexmem.report.pack import percents
from indexmem.report.text import references_text, visible
from indexmem.results.schema import FULL_LABEL, KEY

MAX_VALUES = 4_000_000  # token shares in one report
MAX_LAYER_VALUES = 16_000_000  # the same by layer: about 3 MB of HTML, since most layers repeat themselves
MIN_MARK = 4  # shorter references match by chance all over a context


def viewer_data(rows: pa.Table, retention: pa.Table, methods: Sequence[str]) -> dict[str, Any]:
    """JSON-ready examples, at least one where any exist; `omitted` counts those left out for size."""
    rows = rows.filter(pc.is_in(rows["sample_id"], pc.unique(retention["sample_id"])))
    recorded = _recorded(rows, retention)
    order = {name: index for index, name in enumerate(methods)}
    samples: list[dict[str, Any]] = []
    values = by_layer = 0
    for sample_id, cells in recorded.items():
        first = next(iter(cells.values()))
        size = len(cells) * len(retention["tokens"][first])
        if samples and values + size > MAX_VALUES:
            continue
        values += size
        by_layer += size * len(retention["kept_heads"][first].as_py() or ())
        sample = _sample(rows, retention, sample_id, cells, layers=by_layer <= MAX_LAYER_VALUES)
        sample["cells"].sort(key=lambda c: (order.get(c["method"], len(order)), Budget.parse(c["budget"])))
        samples.append(sample)
    return {"samples": samples, "omitted": len(recorded) - len(samples)}


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


def _recorded(rows: pa.Table, retention: pa.Table) -> dict[str, dict[tuple[str, str], int]]:
    """sample id -> (method, budget) -> row number in `retention`, first repeat only; not of the full cache."""
    asked = rows.select(["cell_id", "sample_id", "method", "budget"]).to_pylist()
    names = {(row["cell_id"], row["sample_id"]): (row["method"], row["budget"]) for row in asked}
    recorded: dict[str, dict[tuple[str, str], int]] = {}
    for number, key in enumerate(retention.select(list(KEY)).to_pylist()):
        cell = names.get((key["cell_id"], key["sample_id"]))
        if cell is not None and cell[0] != FULL_LABEL:
            recorded.setdefault(key["sample_id"], {}).setdefault(cell, number)
    return dict(sorted(recorded.items()))


def _sample(
    rows: pa.Table, retention: pa.Table, sample_id: str, cells: dict[tuple[str, str], int], layers: bool
) -> dict[str, Any]:
    numbers = list(cells.values())
    tokens: list[str] = retention["tokens"][numbers[0]].as_py()
    shares = {cell: retention["retention"][number].values.to_numpy() for cell, number in cells.items()}
    assert all(len(share) == len(tokens) for share in shares.values()), f"{sample_id}: one context, several lengths"
    asked = rows.filter(pc.equal(rows["sample_id"], sample_id))
    references = asked["references"][0].as_py() or []
    return {
        "id": sample_id,
        "benchmark": asked["benchmark"][0].as_py(),
        "question": visible(retention["question"][numbers[0]].as_py() or ""),
        "references": references_text(references, asked["labels"][0].as_py()),
        "tokens": list(map(visible, tokens)),
        "marked": find_tokens(tokens, references),
        "cells": [
            {"method": m, "budget": b, "kept": percents(share)}
            | ({"layers": _layers(retention, cells[m, b])} if layers else {})
            for (m, b), share in shares.items()
        ],
    }


def _layers(retention: pa.Table, number: int) -> list[str]:
    """Per layer the share of its KV heads that kept each token; none in rows older than the column."""
    counts, heads = retention["kept_heads"][number].as_py(), retention["kv_heads"][number].as_py()
    return [percents(np.frombuffer(layer, np.uint8) / heads) for layer in counts or ()]
