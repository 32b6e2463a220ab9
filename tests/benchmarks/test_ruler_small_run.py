"""All 13 RULER tasks through a real model at small scale, from local data, without Ray."""

from __future__ import annotations

from collections import Counter

import pytest
from grids import remaining

from indexmem.config.load import with_overrides
from indexmem.config.schema import Experiment
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.results.parts import validated
from indexmem.results.schema import OK, ROW_SCHEMA

ROOMY = ("vt", "cwe")  # their solved examples take hundreds of tokens
OTHERS = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "fwe", "qa_1", "qa_2"),
)


def spec_of(root, benchmarks, length: int) -> Experiment:
    settings = [
        "model.id=testbed",
        "grid.methods=[full, knorm]",
        "grid.ratios=[0.5]",
        "grid.samples=1",
        "grid.max_new_tokens=4",
    ]
    where = [f"run.root={root}", f"grid.benchmarks=[{', '.join(benchmarks)}]", f"grid.length={length}"]
    return with_overrides(Experiment(), settings + where)


@pytest.mark.model
def test_every_task_runs_on_a_real_model(tmp_path):
    rows, evaluator = [], None
    for benchmarks, length in ((OTHERS, 320), (ROOMY, 896)):
        spec = spec_of(tmp_path, benchmarks, length)
        grid = plan(spec)
        if evaluator is None:
            provenance = {"git_commit": "", "versions": {}, "host": ""}
            evaluator = CellEvaluator.load(spec, grid.methods, grid.checkpoint, provenance)
        evaluator = CellEvaluator(spec, evaluator.backbone, evaluator.methods, evaluator.provenance)
        found = [row for task in remaining(grid) for row in evaluator.evaluate([task])[0]]
        assert all(0.7 * length < row["context_tokens"] + row["question_tokens"] + 4 <= length for row in found)
        rows += found
    table = validated(rows, ROW_SCHEMA)
    assert Counter(table["method"].to_pylist()) == {"full": 13, "knorm": 13}
    assert set(table["status"].to_pylist()) == {OK}
    assert Counter(table["protocol"].to_pylist()) == {"ruler": 22, "ruler-generated-qa": 4}
    for row in rows:
        assert row["measured_ratio"] == (0 if row["method"] == "full" else pytest.approx(0.5, abs=0.02))
