"""Greedy text equals the kvpress pipeline's own, on a real model (fp32, CPU)."""

import kvpress
import pytest
import torch
from grids import remaining
from transformers import AutoModelForCausalLM, pipeline

from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.models.backbone import resolve

METHODS = {
    "knorm": kvpress.KnormPress,
    "snapkv": kvpress.SnapKVPress,
    "keydiff": kvpress.KeyDiffPress,
    "tova": kvpress.TOVAPress,
    "expected_attention": kvpress.ExpectedAttentionPress,
    "streaming_llm": lambda compression_ratio: kvpress.StreamingLLMPress(compression_ratio, n_sink=4),
}
RATIOS = (0.3, 0.7)
SMOLLM2, TESTBED = "smollm2-135m-instruct", "testbed"
# Knorm ties on the testbed: in its first layer a token has keys of one norm wherever it stands, and which of several
# such tokens kvpress keeps is chance.
TIED = ("knorm",)


def spec_of(model: str, methods: list[str], samples: int, root: str) -> Experiment:
    return validate(
        {
            "model": {"id": model},
            # kvpress' presses do not protect sinks by themselves, so neither do we here.
            "eviction": {"sinks": 0},
            "grid": {
                "methods": methods,
                "ratios": list(RATIOS),
                "benchmarks": ["niah_single_2"],
                "length": 384,
                "samples": samples,
                "max_new_tokens": 10,
            },
            "run": {"root": root},
        },
        "test",
    )


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "methods", "samples"),
    [(SMOLLM2, list(METHODS)[:3], 3), (TESTBED, [name for name in METHODS if name not in TIED], 8)],
)
def test_text_equals_the_kvpress_pipeline(tmp_path, name, methods, samples):
    spec = spec_of(name, methods, samples, str(tmp_path))
    grid = plan(spec)
    ours = CellEvaluator.load(spec, grid.methods, None, {"git_commit": "", "versions": {}, "host": ""})
    model = AutoModelForCausalLM.from_pretrained(resolve(spec.model), attn_implementation="sdpa", dtype=torch.float32)
    theirs = pipeline("kv-press-text-generation", model=model, tokenizer=ours.backbone.tokenizer, device="cpu")
    compared, texts = 0, set()
    for task in remaining(grid):
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
    assert compared == len(methods) * len(RATIOS) * samples
    assert len(texts) > samples, "the methods must disagree somewhere, or equality shows nothing"
