"""Rows of samples with options: both accuracies of lm-evaluation-harness, beside samples that are answered in text."""

import json

import pytest
from grids import remaining
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import save_tiny_model

from indexmem.benchmarks.base import Sample
from indexmem.benchmarks.own.suite import JsonlBenchmark
from indexmem.config.load import validate
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.evaluate.rows import scored_options

CONTEXT = "The lantern hangs in the harbour. " * 9
OPTIONS = ["in the harbour", "at sea", "nowhere that anybody has looked yet"]
CHOICE = {"context": CONTEXT, "question": "Where?", "options": OPTIONS, "answers": [1], "metric": "likelihood"}


def test_accuracies_are_by_likelihood_and_by_likelihood_per_character():
    sample = Sample("jsonl/0", "jsonl", "x", "?", "", (" bb",), 1, options=(" aaaa", " bb", " c"))
    row = scored_options(JsonlBenchmark(name="jsonl", path="", max_new_tokens=1), [-4.0, -2.0, -1.5], sample)
    assert (row["prediction"], row["score"]) == (" c", 0.0)
    others = json.loads(row["other_scores"])
    assert others["acc_norm"] == 0.0  # -1, -1, -1.5: the first of equal ones
    row = scored_options(JsonlBenchmark(name="jsonl", path="", max_new_tokens=1), [-4.1, -2.0, -1.5], sample)
    others = json.loads(row["other_scores"])
    assert others["acc_norm"] == 1.0
    share = [2.718281828**nats for nats in (-4.1, -2.0, -1.5)]
    assert others["probability"] == pytest.approx(share[1] / sum(share))


@given(st.lists(st.floats(-60, 0), min_size=2, max_size=6), st.floats(-30, 30))
@settings(max_examples=40, deadline=None)
def test_what_all_options_have_more_or_less_plays_no_part(likelihoods, shift):
    options = tuple(f" {'ab'[i % 2] * 3}{i}" for i in range(len(likelihoods)))  # of equal lengths
    sample = Sample("jsonl/0", "jsonl", "x", "?", "", (options[1],), 1, options=options)
    benchmark = JsonlBenchmark(name="jsonl", path="", max_new_tokens=1)
    row, moved = (scored_options(benchmark, each, sample) for each in (likelihoods, [n + shift for n in likelihoods]))
    others, after = (json.loads(each["other_scores"]) for each in (row, moved))
    assert 0 <= others["probability"] <= 1
    assert after["probability"] == pytest.approx(others["probability"], abs=1e-9)
    best = sorted(likelihoods)
    if best[-1] - best[-2] > 1e-6:
        assert row["score"] == moved["score"] == others["acc_norm"]


def test_a_grid_has_rows_of_both_kinds(tmp_path):
    rows = [CHOICE, {"context": CONTEXT, "question": "Why?", "answers": ["x"]}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "text.txt").write_text("Some text. And more of it.")
    grid = {
        "methods": ["full", "knorm"],
        "ratios": [0.8],
        "benchmarks": [{"name": "jsonl", "params": {"path": str(tmp_path / "mine.jsonl"), "max_new_tokens": 3}}],
        "length": 512,
        "haystack": str(tmp_path / "text.txt"),
        "fidelity": True,
    }
    model = {"id": str(save_tiny_model(tmp_path / "model", "llama"))}
    experiment = validate({"model": model, "run": {"root": str(tmp_path)}, "grid": grid}, "test")
    methods = {config.label: config for config in experiment.grid.methods}
    provenance = {"git_commit": "", "versions": {}, "host": ""}
    planned = plan(experiment)
    assert plan(experiment).samples == planned.samples, "as they are read from the cache"
    found, _ = CellEvaluator.load(experiment, methods, None, provenance).evaluate(remaining(planned))
    planned.store.append(found, planned.partitions[0])
    stored = planned.store.read(planned.partitions).to_pylist()
    chosen = [row for row in stored if row["sample_id"] == "jsonl/0"]
    assert {row["status"] for row in stored} == {"ok"}
    assert {row["method"]: row["prediction"].strip() in OPTIONS for row in chosen} == {"full": True, "knorm": True}
    assert all(row["score"] == (row["prediction"].strip() == OPTIONS[1]) for row in chosen)
    assert [set(json.loads(row["other_scores"])) for row in chosen] == [{"acc_norm", "probability"}] * 2
    assert all(row["fidelity_kl"] is not None for row in stored)
