"""Greedy text equals the kvpress pipeline's own, on a real model (fp32, CPU)."""

import kvpress
import pytest
import torch
from transformers import AutoModelForCausalLM, pipeline

from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.models.assets import ensure_model

METHODS = {"knorm": kvpress.KnormPress, "snapkv": kvpress.SnapKVPress, "keydiff": kvpress.KeyDiffPress}
RATIOS = (0.3, 0.7)
SAMPLES = 5


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> Experiment:
    return validate(
        {
            # kvpress' presses do not protect sinks by themselves, so neither do we here.
            "eviction": {"sinks": 0},
            "grid": {
                "methods": list(METHODS),
                "ratios": list(RATIOS),
                "benchmarks": ["niah_single_2"],
                "length": 384,
                "samples": SAMPLES,
                "max_new_tokens": 16,
            },
            "run": {"root": str(tmp_path_factory.mktemp("runs"))},
        },
        "test",
    )


@pytest.mark.model
def test_text_equals_the_kvpress_pipeline(spec):
    torch.set_num_threads(2)
    grid = plan(spec)
    ours = CellEvaluator.load(spec, grid.methods, None, {"git_commit": "", "versions": {}, "host": ""})
    model = AutoModelForCausalLM.from_pretrained(
        ensure_model("smollm2-135m-instruct"), attn_implementation="sdpa", dtype=torch.float32
    )
    theirs = pipeline("kv-press-text-generation", model=model, tokenizer=ours.backbone.tokenizer, device="cpu")
    compared, texts = 0, set()
    for task in grid.remaining():
        rows, _ = ours.evaluate([task])
        for row in rows:
            expected = theirs(
                task.sample.context,
                question=task.sample.question,
                answer_prefix=task.sample.answer_prefix,
                press=METHODS[row["method"]](compression_ratio=row["ratio"]),
                max_new_tokens=task.sample.max_new_tokens,
            )["answer"]
            assert row["prediction"] == expected, (row["method"], row["ratio"], row["sample_id"])
            assert row["kept_min"] == row["kept_max"] == max(1, int(row["context_tokens"] * (1 - row["ratio"])))
            compared += 1
            texts.add(expected)
    assert compared == len(METHODS) * len(RATIOS) * SAMPLES
    assert len(texts) > SAMPLES, "the methods must disagree somewhere, or equality shows nothing"
