"""Rows of a model with sliding-window layers: ratios speak of the layers that are evicted from, bytes of all."""

import pytest
from tiny_models import WINDOW, save_tiny_model

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.evaluate.work import GridCell, Task

TOKEN = 2 * 2 * 16 * 4  # bytes of K and V in a layer: two heads, fp32


@pytest.fixture(scope="module", params=["gemma3_text", "gemma3"])
def model(request, tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), request.param))


def test_ratios_and_bytes(model):
    spec = validate({"model": {"id": model}, "grid": {"methods": ["full", "knorm", "pyramidkv"]}}, "test")
    configs = {config.label: config for config in spec.grid.methods}
    evaluator = CellEvaluator.load(spec, configs, None, {"git_commit": "", "versions": {}, "host": ""})
    sample = Sample("niah_single_1/0", "niah_single_1", "words that go on for a while " * 12, "what?", "", ("x",), 9)
    budget = {name: Budget.of_ratio(0.0 if name == "full" else 0.5) for name in configs}
    cells = tuple(GridCell(name, config, budget[name], "niah_single_1", "b", "") for name, config in configs.items())
    rows, retention = evaluator.evaluate([Task(sample, cells, keep_retention=True)])
    assert [row["status"] for row in rows] == ["ok"] * 3, rows
    by_method = {row["method"]: row for row in rows}
    tokens = by_method["full"]["context_tokens"]
    assert tokens > WINDOW
    windows = 4 * (WINDOW - 1) * TOKEN
    assert {row["full_kv_bytes"] for row in rows} == {3 * tokens * TOKEN + windows}
    assert by_method["full"]["kv_bytes"] == by_method["full"]["full_kv_bytes"]
    assert by_method["full"]["measured_ratio"] == 0
    kept = tokens // 2
    assert by_method["knorm"]["kv_bytes"] == 3 * kept * TOKEN + windows
    assert by_method["knorm"]["measured_ratio"] == pytest.approx(1 - kept / tokens)
    assert by_method["knorm"]["kept_min"] == by_method["knorm"]["kept_max"] == kept
    assert by_method["pyramidkv"]["kept_min"] < kept < by_method["pyramidkv"]["kept_max"]
    mean = sum(retention[1]["retention"]) / tokens
    assert mean == pytest.approx(kept / tokens)


def test_eviction_before_prefill_is_refused_by_the_plan(model):
    spec = validate(
        {"model": {"id": model}, "eviction": {"when": "before_prefill"}, "grid": {"methods": ["full", "indexer"]}},
        "test",
    )
    with pytest.raises(UserError, match="full attention in every layer, and 4 of this model's layers have a sliding"):
        plan(spec, require_checkpoint=False)
