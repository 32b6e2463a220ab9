"""Data of the kept-token viewer: example contexts, which heads kept each token, and what was answered.

Shapes: L layers, H KV heads, T tokens of the context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from indexmem.config.budget import Budget
from indexmem.report.fate import fate
from indexmem.report.pack import percents, sixes
from indexmem.report.text import natural, references_text, visible
from indexmem.results.head_bits import BITS_SINCE, kept_by_head
from indexmem.results.schema import FULL_LABEL, KEY, OK

MAX_VALUES = 4_000_000  # token shares in one report
MAX_LAYER_VALUES = 8_000_000  # the same by layer, for six heads: about 3 MB of HTML
MIN_MARK = 4  # shorter references match by chance all over a context
MAX_ANSWER = 600  # characters of one shown answer
ANSWER = ("sample_id", "method", "budget", "status", "score", "prediction", "memory_bytes")


def viewer_data(rows: pa.Table, retention: pa.Table, methods: Sequence[str]) -> dict[str, Any]:
    """JSON-ready examples, at least one where any exist; `omitted` counts those left out for size.

    All benchmarks have their first example before one has its second.
    """
    rows = rows.filter(pc.is_in(rows["sample_id"], pc.unique(retention["sample_id"])))
    recorded = _recorded(rows, retention)
    order = {name: index for index, name in enumerate(methods)}
    samples: list[dict[str, Any]] = []
    values = by_layer = 0
    for sample_id in _in_turn(recorded):
        cells = recorded[sample_id]
        first = next(iter(cells.values()))
        size = len(cells) * len(retention["tokens"][first])
        if samples and values + size > MAX_VALUES:
            continue
        values += size
        layers, heads = (retention[name][first].as_py() for name in ("kept_heads", "kv_heads"))
        by_layer += size * len(layers or ()) * -(-(heads or 0) // 6)
        sample = _sample(rows, retention, sample_id, cells, layers=by_layer <= MAX_LAYER_VALUES)
        sample["cells"].sort(key=lambda c: (order.get(c["method"], len(order)), Budget.parse(c["budget"])))
        samples.append(sample)
    samples.sort(key=lambda sample: natural(sample["id"]))
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


def _in_turn(recorded: Mapping[str, Any]) -> list[str]:
    """Sample ids: the first of each benchmark, then the second of each."""
    seen: dict[str, int] = {}
    places: list[tuple[int, int, str]] = []
    for sample_id in sorted(recorded, key=natural):
        benchmark = sample_id.rpartition("/")[0]
        seen[benchmark] = seen.get(benchmark, 0) + 1
        places.append((seen[benchmark], len(places), sample_id))
    return [sample_id for *_, sample_id in sorted(places)]


def _recorded(rows: pa.Table, retention: pa.Table) -> dict[str, dict[tuple[str, str], int]]:
    """sample id -> (method, budget) -> row number in `retention`, first repeat only; not of the full cache."""
    asked = rows.select(["cell_id", "sample_id", "method", "budget"]).to_pylist()
    names = {(row["cell_id"], row["sample_id"]): (row["method"], row["budget"]) for row in asked}
    recorded: dict[str, dict[tuple[str, str], int]] = {}
    for number, key in enumerate(retention.select(list(KEY)).to_pylist()):
        cell = names.get((key["cell_id"], key["sample_id"]))
        if cell is not None and cell[0] != FULL_LABEL:
            recorded.setdefault(key["sample_id"], {}).setdefault(cell, number)
    return recorded


def _sample(
    rows: pa.Table, retention: pa.Table, sample_id: str, cells: Mapping[tuple[str, str], int], layers: bool
) -> dict[str, Any]:
    numbers = list(cells.values())
    tokens: list[str] = retention["tokens"][numbers[0]].as_py()
    asked = rows.filter(pc.equal(rows["sample_id"], sample_id))
    answers = {(row["method"], row["budget"]): row for row in reversed(asked.select(ANSWER).to_pylist())}
    full = next((row for (method, _), row in answers.items() if method == FULL_LABEL), None)
    references = asked["references"][0].as_py() or []
    marked = find_tokens(tokens, references)
    found = []
    for (method, budget), number in cells.items():
        shares = retention["retention"][number].values.to_numpy()
        assert len(shares) == len(tokens), f"{sample_id}: one context, several lengths"
        answer, kept_LHT = answers[method, budget], _by_head(retention, number)
        told = fate(kept_LHT, marked, _score(answer), memory=bool(answer["memory_bytes"]))
        cell = {"method": method, "budget": budget, "kept": percents(shares), "fate": told} | _answer(answer)
        found.append(cell | ({"layers": list(map(sixes, kept_LHT))} if layers else {}))
    versions, heads = retention["schema_version"], retention["kv_heads"]
    return {
        "id": sample_id,
        "benchmark": asked["benchmark"][0].as_py(),
        "question": visible(retention["question"][numbers[0]].as_py() or ""),
        "references": references_text(references, asked["labels"][0].as_py()),
        "tokens": list(map(visible, tokens)),
        "marked": marked,
        "heads": heads[numbers[0]].as_py() or 0,
        "by_head": all((versions[number].as_py() or 0) >= BITS_SINCE for number in numbers),
        "full": None if full is None else _answer(full),
        "lost": sum((_score(full) or 0) > (cell["score"] or 0) / 100 for cell in found) if full else 0,
        "cells": found,
    }


def _by_head(retention: pa.Table, number: int) -> NDArray[np.bool_]:
    """kept_LHT; empty for rows older than the column."""
    layers = retention["kept_heads"][number].as_py() or ()
    return kept_by_head(layers, retention["kv_heads"][number].as_py(), retention["schema_version"][number].as_py())


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    score = _score(row)
    return {
        "score": None if score is None else round(100 * score),
        "said": visible(row["prediction"] or "", MAX_ANSWER),
    }


def _score(row: Mapping[str, Any]) -> float | None:
    return row["score"] if row["status"] == OK else None
