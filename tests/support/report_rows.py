"""Made-up result rows with known differences between methods, for the report's tests. Deterministic."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.results.schema import FAILED, OK, RETENTION_SCHEMA, ROW_SCHEMA, SCHEMA_VERSION

ATTACK = "document.documentElement.dataset.pwned = 1"
HOSTILE = f'</script><script>{ATTACK}</script><img src=x onerror="{ATTACK}"> & \u2028 "q"'
METHODS = ("indexmem", "indexer", "snapkv", "expected_attention", "knorm", "streaming_llm", "random")
BUDGETS = tuple(map(Budget.of_ratio, (0.25, 0.5, 0.75, 0.9)))
MIXED = tuple(map(Budget.parse, (0.5, 0.9, "1024 tokens", "256 tokens", "16 MiB", "8 MiB", "4 MiB")))
BENCHMARKS = ("niah_multikey_1", "niah_single_1", "niah_single_2")
LOSS_AT_90 = dict(zip(METHODS, (0.10, 0.27, 0.38, 0.45, 0.62, 0.78, 0.93)))
LENGTH = 3900
KV_BYTES_PER_TOKEN = 30 * 3 * 64 * 2 * 4

PROSE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. What we write about "
    "startups is mostly what we learned by watching them closely, and by being surprised more often than we expected."
)
WORDS = PROSE.split(" ")


def make_rows(
    methods: Sequence[str] = METHODS,
    budgets: Sequence[Budget] = BUDGETS,
    benchmarks: Sequence[str] = BENCHMARKS,
    samples: int = 20,
    failures: int = 3,
    seed: int = 0,
) -> pa.Table:
    """One row per sample and cell: 0/1 scores, graded ones on the first benchmark; the last `failures` rows failed."""
    rng = np.random.default_rng(seed)
    ease = {b: rng.random(samples) for b in benchmarks}
    rows = []
    for method, budget in [("full", NOTHING_EVICTED), *((m, b) for m in methods for b in budgets)]:
        loss = LOSS_AT_90.get(method, 0.5) * (evicted(budget, LENGTH) / 0.9) ** 2
        for place, benchmark in enumerate(benchmarks):
            for index in range(samples):
                chance = 0.97 - loss + 0.15 * (ease[benchmark][index] - 0.5)
                score = float(rng.binomial(4, np.clip(chance, 0, 1)) / 4 if place == 0 else rng.random() < chance)
                rows.append(make_row(method, budget, benchmark, index, score))
    for row in rows[len(rows) - failures :]:
        row |= {"status": FAILED, "score": None, "prediction": None}
        row |= {"error_class": "OutOfMemoryError", "error_message": f"cannot allocate 2 GiB {HOSTILE}"}
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def evicted(budget: Budget, length: int) -> float:
    """The share of a context that a budget makes a method without state evict."""
    kept = {"tokens": budget.amount / length, "bytes": budget.amount / (length * KV_BYTES_PER_TOKEN)}
    return budget.amount if budget.kind == "ratio" else max(0.0, 1 - kept[budget.kind])


def make_row(
    method: str, budget: Budget | float, benchmark: str, index: int, score: float, **changes: Any
) -> dict[str, Any]:
    """One successful row with plausible measurements; `changes` replace columns."""
    budget = Budget.parse(budget)
    length, learned = LENGTH + index, method in ("indexmem", "indexer")
    ratio = evicted(budget, length)
    kept = round(length * (1 - ratio))
    reference = str(7_000_000 + 13 * index)
    row = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": f"{method}-{budget}-{benchmark}",
        "sample_id": f"{benchmark}/{index}",
        "repeat": 0,
        "model": "smollm2-135m-instruct",
        "model_fingerprint": "1f0c9a77be5d4c21",
        "method": method,
        "method_params": "{}",
        "checkpoint": "9d3be8c1aa07" if learned else "",
        "budget": str(budget),
        "ratio": budget.ratio,
        "benchmark": benchmark,
        "benchmark_build": f"build-{benchmark}",
        "question_aware": False,
        "length": 4096,
        "settings": '{"dtype": "float32", "seed": 42, "sinks": 4}',
        "prediction": f" {reference}. {HOSTILE if index == 0 else ''}" if score else " I could not find it. " + HOSTILE,
        "references": [reference],
        "score": score,
        "status": OK,
        "error_class": "",
        "error_message": "",
        "context_tokens": length,
        "question_tokens": 31,
        "new_tokens": 12,
        "kept_min": kept - 9 * (ratio > 0),
        "kept_mean": float(kept),
        "kept_max": kept + 11 * (ratio > 0),
        "measured_ratio": 1 - kept / length,
        "kv_bytes": kept * KV_BYTES_PER_TOKEN,
        "indexer_bytes": kept * 30 * 8 * 4 if learned else 0,
        "memory_bytes": 30 * 3 * 64 * 64 * 4 if method == "indexmem" else 0,
        "full_kv_bytes": length * KV_BYTES_PER_TOKEN,
        "prefill_seconds": 6.1,
        "score_seconds": 0.0 if method == "full" else 0.18,
        "decode_seconds": 9.6,
        "decode_batch": 24,
        "git_commit": "4be1d0c5a3f2",
        "versions": json.dumps({"python": "3.11.9", "torch": "2.13.0", "transformers": "5.2.1", "kvpress": "0.5.5"}),
        "device": "cpu (8 cores)",
        "host": "node-1",
        "created_at": dt.datetime(2026, 1, 5, 3, index % 60, tzinfo=dt.UTC),
    }
    return row | changes


def make_retention(rows: pa.Table, tokens: int = 1200, seed: int = 0, index: int = 0) -> pa.Table:
    """Retention of one sample of every benchmark in every cell, around the place that holds the answer."""
    rng = np.random.default_rng(seed)
    examples = [row for row in rows.to_pylist() if row["sample_id"].endswith(f"/{index}")]
    out = []
    for row in examples:
        words = [" " + WORDS[i % len(WORDS)] for i in range(tokens)]
        needle = [" One", " of", " the", " special", " magic", " numbers", " is", ":", " ", *row["references"][0], "."]
        place = tokens * 3 // 5
        words[place : place + len(needle)] = needle
        words[20] = "\n\n" + HOSTILE
        keep = np.clip(rng.beta(0.6, 0.6, tokens) + 0.5 - row["measured_ratio"], 0, 1)
        keep[:4] = 1.0
        keep[place : place + len(needle)] = 1.0 if row["score"] else 0.1
        keep = np.ones(tokens) if row["method"] == "full" else keep
        identity = {name: row[name] for name in ("schema_version", "cell_id", "sample_id", "repeat")}
        out.append(
            identity
            | {"question": f"Which number?{HOSTILE}", "tokens": words[:tokens], "retention": keep[:tokens].tolist()}
        )
    return pa.Table.from_pylist(out, schema=RETENTION_SCHEMA)


def make_history(steps: int = 400) -> list[dict[str, float]]:
    """A warm-up, stable, decay run of the distillation loss."""
    rng = np.random.default_rng(1)
    rate = [1e-3 * min(1.0, step / 40, (steps - step) / 150 + 0.01) for step in range(1, steps + 1)]
    loss = [2.6 * np.exp(-step / 60) + 0.42 + 0.05 * rng.standard_normal() for step in range(1, steps + 1)]
    return [{"step": s + 1, "loss": float(loss[s]), "lr": float(rate[s])} for s in range(steps)]
