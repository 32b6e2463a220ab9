"""What a row says of its sample: a score in [0, 1] or a failure, and the group that the sample belongs to."""

from __future__ import annotations

import json

import pytest
from grids import remaining
from tiny_models import save_tiny_model

from indexmem.benchmarks.own import metrics
from indexmem.benchmarks.own.suite import JsonlBenchmark
from indexmem.config.load import validate
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.evaluate.rows import settings_of
from indexmem.results.schema import FAILED, OK

PROVENANCE = {"git_commit": "", "versions": {}, "host": ""}
ROW = {
    "context": "The lantern hangs in the harbour. " * 9,
    "answer_prefix": "",
    "metric": "exact",
    "answers": ["there"],
}


@pytest.fixture
def evaluated(tmp_path):
    """Evaluates three questions, of which the first two share their text; gives the plan and the rows."""
    rows = [ROW | {"question": question} for question in ("Where?", "Why?")]
    rows += [ROW | {"question": "When?", "context": "Now. " * 40}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "text.txt").write_text("Some text. And more of it.")
    grid = {
        "methods": ["full", "knorm"],
        "ratios": [0.5],
        "benchmarks": [{"name": "jsonl", "params": {"path": str(tmp_path / "mine.jsonl"), "max_new_tokens": 2}}],
        "length": 512,
        "haystack": str(tmp_path / "text.txt"),
    }
    model = {"id": str(save_tiny_model(tmp_path / "model", "llama"))}
    experiment = validate({"model": model, "run": {"root": str(tmp_path)}, "grid": grid}, "test")
    methods = {config.label: config for config in experiment.grid.methods}

    def run():
        planned = plan(experiment)
        evaluator = CellEvaluator.load(experiment, methods, None, PROVENANCE)
        return planned, evaluator.evaluate(remaining(planned))[0]

    return run


def test_rows_name_the_text_that_they_share(evaluated):
    planned, rows = evaluated()
    group = {row["sample_id"]: row["group"] for row in rows}
    assert group["jsonl/0"] == group["jsonl/1"] != group["jsonl/2"]
    planned.store.append(rows, planned.partitions[0])
    stored = planned.store.read(planned.partitions, columns=["sample_id", "group"]).to_pylist()
    assert {row["sample_id"]: row["group"] for row in stored} == group


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.5, 1.5, None, "much"])
def test_an_answer_without_a_usable_score_is_a_failed_row_with_the_reason(evaluated, monkeypatch, score):
    monkeypatch.setattr(metrics, "SINGLE", dict(metrics.SINGLE) | {"exact": lambda prediction, answers: score})
    planned, rows = evaluated()
    assert {(row["status"], row["score"], row["error_class"]) for row in rows} == {(FAILED, None, "ScoreError")}
    assert f"benchmark 'jsonl': 'score' must be a number in [0, 1], got {score!r}" in rows[0]["error_message"]
    assert rows[0]["prediction"] is not None
    planned.store.append(rows, planned.partitions[0])
    assert len(remaining(planned)) == 3


def test_a_scorer_that_stumbles_fails_its_own_rows_alone(evaluated, monkeypatch):
    sound = JsonlBenchmark.score

    def stumbles(benchmark, prediction, sample):
        if sample.id == "jsonl/1":
            raise KeyError("no such unit")
        return sound(benchmark, prediction, sample)

    monkeypatch.setattr(JsonlBenchmark, "score", stumbles)
    _, rows = evaluated()
    assert {row["sample_id"]: row["status"] for row in rows} == {"jsonl/0": OK, "jsonl/1": FAILED, "jsonl/2": OK}
    assert {row["error_class"] for row in rows if row["status"] == FAILED} == {"KeyError"}


def test_a_row_says_the_settings_that_decide_its_answer(evaluated):
    _, rows = evaluated()
    assert {row["settings"] for row in rows} == {'{"dtype": "float32", "seed": 42, "sinks": 4}'}
    told = validate({"eviction": {"sinks": 1, "equal_bytes": True}, "grid": {"decoding": {"temperature": 0.6}}}, "t")
    assert settings_of(told) == {
        **{"dtype": "float32", "seed": 42, "sinks": 1, "equal_bytes": True},
        "decoding": {"temperature": 0.6},
    }
