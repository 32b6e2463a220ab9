"""Rows of the board's format, stores and results of kvpress, for the board's tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from report_rows import make_rows

from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.store import RowStore

ROW = {
    "board_version": 1,
    "model": "some/model",
    "method": "theirs",
    "budget": "75%",
    "benchmark": "lockers",
    "build": "v1",
    "prompts": "own",
    "engine": "vllm 0.12",
    "length": 8192,
    "sinks": 4,
    "question": "after",
    "decoding": "greedy",
    "dtype": "bfloat16",
    "sample": "0",
    "score": 1.0,
}
CONFIG = {
    "dataset": "ruler",
    "data_dir": "4096",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "device": None,
    "press_name": "snapkv",
    "compression_ratio": 0.5,
    "fraction": 1.0,
    "max_context_length": None,
    "query_aware": False,
    "model_kwargs": {"dtype": "auto"},
    "seed": 42,
    "press_init_command": "SnapKVPress(compression_ratio=0.5, window_size=64)",
}


def sampled(scores: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    """One row for each score."""
    return [ROW | {"sample": str(index), "score": score} | changes for index, score in enumerate(scores)]


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """JSON lines; texts are written as they are."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def write_store(
    root: Path,
    settings: dict[str, Any] | None,
    methods: Sequence[str],
    *,
    samples: int = 12,
    cell: str = "",
    code: str | None = "engine 2",
    question_aware: bool = False,
) -> Path:
    """A run root with the rows of some methods; `cell` begins their cells' ids."""
    blank = dict.fromkeys(ROW_SCHEMA.names)
    told = None if settings is None else json.dumps({"dtype": "float32", "seed": 42, "sinks": 4} | settings)
    rows = make_rows(methods, samples=samples, failures=0).to_pylist()
    for row in rows:
        row |= {"settings": told, "cell_id": cell + row["cell_id"], "code": code, "question_aware": question_aware}
    RowStore(root / "results").append([blank | row for row in rows], "p")
    return root


def write_kvpress(folder: Path, metrics: Any, predictions: str | None = None, **changes: Any) -> Path:
    """A folder as kvpress' evaluation writes it."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG | changes))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    if predictions is not None:
        (folder / "predictions.csv").write_text(predictions)
    return folder
