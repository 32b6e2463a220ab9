"""Rows that fill every section of a report: two models, variants, needles, categories, decode budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from report_rows import KV_BYTES_PER_TOKEN, make_row

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.results.schema import ROW_SCHEMA

LOSS = {
    "full": 0.0, "indexmem": 0.12, "indexer": 0.27, "snapkv+memory": 0.3, "snapkv": 0.38,
    "snapkv(window_size=8)": 0.47, "expected_attention": 0.45, "knorm": 0.62, "streaming_llm": 0.78, "random": 0.93,
}  # fmt: skip
BUDGETS = tuple(map(Budget.of_ratio, (0.25, 0.5, 0.75, 0.9)))
DEPTHS, LENGTHS = (15, 35, 55, 75, 95), (1000, 2000, 4000, 8000)
CATEGORIES = {
    "hotpotqa": "multi-document QA", "qasper": "single-document QA", "gov_report": "summary", "lcc": "code",
    "niah": "retrieval",
}  # fmt: skip
MODELS = ("llama-3.1-8b", "qwen3-8b")


def zoo_rows(models: Sequence[str] = MODELS, samples: int = 20) -> pa.Table:
    """Rows with every column of the schema filled."""
    rng = np.random.default_rng(0)
    rows = [row for place, model in enumerate(models) for row in _model_rows(rng, model, place, samples)]
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def many_rows(cells: int, samples: int, models: int = 4, methods: int = 20, budgets: int = 5) -> pa.Table:
    """At least `cells` cells with `samples` samples each, built by columns since there are many."""
    benchmarks = -(-cells // (models * methods * budgets))
    shares = np.linspace(0.1, 0.9, budgets).round(2)
    names = [(f"model-{o}", f"method_{m:02d}", float(r), f"task_{b:02d}") for o in range(models)
             for m in range(methods) for r in shares for b in range(benchmarks)]  # fmt: skip
    rng = np.random.default_rng(0)
    template = make_row("knorm", 0.5, "b", 0, 1.0, labels=json.dumps({"category": "qa"}), truncated=False)
    count = len(names) * samples
    columns: dict[str, Any] = {name: [value] * count for name, value in template.items()}
    each = np.repeat(np.arange(len(names)), samples)
    index = np.tile(np.arange(samples), len(names))
    columns["model"] = [names[i][0] for i in each]
    columns["method"] = [names[i][1] for i in each]
    columns["budget"] = [str(Budget.of_ratio(names[i][2])) for i in each]
    columns["ratio"] = [names[i][2] for i in each]
    columns["benchmark"] = [names[i][3] for i in each]
    columns["cell_id"] = [str(i) for i in each]
    columns["sample_id"] = [f"{names[i][3]}/{k}" for i, k in zip(each, index)]
    columns["score"] = rng.integers(0, 2, count).astype(float)
    columns["prediction"] = [
        f"The answer that model {i} gave to question {k} is {i * 7919 % 100_003}." for i, k in zip(each, index)
    ]
    return pa.table({name: columns.get(name, [None] * count) for name in ROW_SCHEMA.names}, schema=ROW_SCHEMA)


def _model_rows(rng: np.random.Generator, model: str, place: int, samples: int) -> Iterator[dict[str, Any]]:
    for method, loss in LOSS.items():
        for budget in (NOTHING_EVICTED,) if method == "full" else BUDGETS:
            for benchmark, category in CATEGORIES.items():
                needles = [(d, n) for n in LENGTHS for d in DEPTHS for _ in range(1 + samples // 10)]
                for index in range(len(needles) if benchmark == "niah" else samples):
                    labels: dict[str, Any] = {"category": category}
                    hard = loss * (budget.amount / 0.9) ** 2 + 0.05 * place
                    if benchmark == "niah":
                        labels["depth"], labels["length"] = needles[index]
                        hard *= 0.5 + 0.9 * (labels["length"] / 8000) * (1 - abs(labels["depth"] - 60) / 100)
                    chance = float(np.clip(0.95 - hard, 0.01, 1))
                    score = float(rng.random() < chance) if benchmark == "niah" else float(rng.binomial(4, chance) / 4)
                    kept = 4000 * (1 - budget.amount)
                    yield make_row(method, budget, benchmark, index, score) | {
                        "model": model,
                        "cell_id": f"{model}-{method}-{budget}-{benchmark}",
                        "labels": json.dumps(labels),
                        "protocol": "official",
                        "truncated": bool(rng.random() < 0.3 * hard),
                        "decode_kept_mean": kept * 1.1,
                        "decode_kept_max": int(kept * 1.25),
                        "new_tokens": int(40 + 200 * hard),
                        "memory_bytes": 8 * KV_BYTES_PER_TOKEN if "mem" in method else 0,
                        "score_seconds": 0.1 + loss / 2,
                        "decode_seconds": 4.0 + 6 * (1 - budget.amount),
                    }
