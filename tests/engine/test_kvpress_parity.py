"""Greedy text equals the kvpress pipeline's own, on a real model (fp32, CPU)."""

from dataclasses import replace

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


def spec_of(model: str, methods: list[str], samples: int, root: str, **changes) -> Experiment:
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
            }
            | changes,
            "run": {"root": root},
        },
        "test",
    )


def pipeline_of(spec, ours):
    model = AutoModelForCausalLM.from_pretrained(resolve(spec.model), attn_implementation="sdpa", dtype=torch.float32)
    return pipeline("kv-press-text-generation", model=model, tokenizer=ours.backbone.tokenizer, device="cpu")


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "methods", "samples"),
    [(SMOLLM2, list(METHODS)[:3], 3), (TESTBED, [name for name in METHODS if name not in TIED], 8)],
)
def test_text_equals_the_kvpress_pipeline(tmp_path, name, methods, samples):
    spec = spec_of(name, methods, samples, str(tmp_path))
    grid = plan(spec)
    ours = CellEvaluator.load(spec, grid.methods, None, {"git_commit": "", "versions": {}, "host": ""})
    theirs = pipeline_of(spec, ours)
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


@pytest.mark.model
def test_question_aware_text_equals_the_pipeline_s_with_the_question_in_its_context(tmp_path):
    """As kvpress' evaluation has it with `query_aware`. Without a chat template the one token that it reads afterwards
    is the line end after the question, the last of our prompt."""
    spec = spec_of(TESTBED, ["snapkv", "keydiff"], 5, str(tmp_path), protocol="question_aware", max_new_tokens=24)
    grid = plan(spec)
    ours = CellEvaluator.load(spec, grid.methods, None, {"git_commit": "", "versions": {}, "host": ""})
    theirs = pipeline_of(spec, ours)
    texts = set()
    for task in remaining(grid):
        sample = replace(task.sample, answer_prefix="")
        for row in ours.evaluate([replace(task, sample=sample)])[0]:
            press = METHODS[row["method"]](compression_ratio=row["ratio"])
            whole = sample.context + sample.question
            expected = theirs(whole, question="", press=press, max_new_tokens=sample.max_new_tokens)["answer"]
            assert row["prediction"] == expected, (row["method"], row["ratio"], row["sample_id"])
            texts.add(expected)
    assert len(texts) > 5, "the methods must disagree somewhere, or equality shows nothing"
