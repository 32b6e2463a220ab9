"""Each benchmark once with a real model: from local files in the published layouts to finished rows.

The testbed where any model will do, which is twenty times as fast; a language model where the answer must be right.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from grids import remaining

from indexmem.benchmarks.longbench.sets import SETS as PUBLISHED
from indexmem.config.load import validate
from indexmem.config.schema import ModelConfig
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.models.backbone import load_backbone
from indexmem.models.prompt import PromptFormat, encode

pytestmark = pytest.mark.model

FACT = "The lantern of the harbour hangs on the old stone bridge, as it has for eighty years. "
ITEM = {
    "input": "Where does the lantern hang?",
    "context": FACT * 12,
    "answers": ["on the old stone bridge"],
    "length": 200,
    "language": "en",
    "all_classes": None,
}
TREC = {"input": "Question: Who is he?\nType:", "context": "Question: Where is it?\nType: Place\n" * 8}
TREC |= {"answers": ["Person"], "all_classes": ["Person", "Place"]}
SETS = {
    "qasper": ITEM,
    "trec": ITEM | TREC,
    "samsum": ITEM | {"input": "Dialogue: A: Hi! B: Bye!\nSummary:"},
    "passage_count": ITEM | {"answers": ["7"]},
    "lcc": ITEM | {"input": "", "context": "def add(a, b):\n    ", "answers": ["return a + b"]},
    "multifieldqa_zh": ITEM | {"context": "灯笼挂在桥上。" * 30, "input": "灯笼挂在哪里", "language": "zh"},
}


DEFAULT, TESTBED = ModelConfig().id, {"id": "testbed"}


@pytest.fixture(scope="module")
def backbones():
    return {name: load_backbone(validate({"model": {"id": name}}, "test").model) for name in (DEFAULT, "testbed")}


@pytest.fixture
def run(backbones, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The sky is blue. The grass is green. Nobody knows why. " * 40)

    def evaluate(grid, **sections):
        usual = {"methods": ["full", "knorm"], "ratios": [0.5], "samples": 1, "length": 1024, "haystack": str(text)}
        experiment = validate({"run": {"root": str(tmp_path)}, "grid": usual | grid} | sections, "test")
        backbone = backbones[experiment.model.id]
        planned = plan(experiment)
        context = MethodContext(backbone.geometry)
        methods = {label: make_method(config, context) for label, config in planned.methods.items()}
        evaluator = CellEvaluator(experiment, backbone, methods, {"git_commit": "", "versions": {}, "host": ""})
        rows, _ = evaluator.evaluate([replace(task, keep_retention=False) for task in remaining(planned)])
        assert [row["status"] for row in rows] == ["ok"] * planned.row_count, rows
        return rows

    return evaluate


def lines(path: Path, *rows) -> str:
    path.write_text("".join(json.dumps(row) + os.linesep for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("protocol", ["official", "kvpress"])
def test_longbench(run, backbones, tmp_path, protocol):
    for name, item in SETS.items():
        lines(tmp_path / f"{name}.jsonl", item)
    params = {"path": str(tmp_path), "protocol": protocol, "sets": list(SETS)}
    grid = {"benchmarks": [{"name": "longbench", "params": params}], "max_new_tokens": 8, "methods": ["full"]}
    rows = {row["benchmark"].removeprefix("longbench_"): row for row in run(grid, model=TESTBED)}
    assert {row["protocol"] for row in rows.values()} == {protocol}
    assert json.loads(rows["trec"]["labels"])["category"] == "few-shot learning"
    if protocol == "official":
        tokenizer = backbones["testbed"].tokenizer
        plain = PromptFormat.of(tokenizer, chat=False).context(PUBLISHED["lcc"].prompt.head + SETS["lcc"]["context"])
        assert rows["lcc"]["context_tokens"] == len(encode(tokenizer, plain)), "no chat template"
        assert "\n" not in rows["samsum"]["prediction"].rstrip("\n")


def test_niah(run):
    params = {"lengths": [300], "depths": [50], "offsets": 1}
    rows = run({"benchmarks": [{"name": "niah", "params": params}], "max_new_tokens": 24})
    full = next(row for row in rows if row["method"] == "full")
    assert json.loads(full["labels"]) == {"length": 300, "depth": 50, "offset": 0, "references": "all"}
    assert full["score"] == 1.0, full["prediction"]
    assert json.loads(full["other_scores"])["rouge1_recall"] > 0.5
    assert full["context_tokens"] + full["question_tokens"] + 24 in range(295, 301)


def test_own_data(run, tmp_path):
    row = {"context": FACT * 12, "question": ITEM["input"], "answer_prefix": "The lantern hangs on the"}
    path = lines(tmp_path / "mine.jsonl", row | {"answers": ["stone bridge"], "metric": "contains_any"})
    rows = run({"benchmarks": [{"name": "jsonl", "params": {"path": path, "max_new_tokens": 8}}]})
    assert next(row for row in rows if row["method"] == "full")["score"] == 1.0


@pytest.mark.parametrize(("name", "answer"), [("aime25", 16), ("math500", r"\frac{1}{2}")])
def test_maths_within_a_budget(run, tmp_path, name, answer):
    path = lines(tmp_path / "problems.jsonl", {"problem": "What is half of a whole?" * 12, "answer": answer})
    params = {"path": path, "max_new_tokens": 24}
    grid = {"benchmarks": [{"name": name, "params": params}], "methods": ["full", "knorm"]}
    grid |= {"ratios": [], "budgets": ["40 tokens", "48 tokens"]}
    grid |= {"decoding": {"temperature": 0.7, "repeats": 2}}
    rows = run(grid, model=TESTBED, eviction={"decode_budget": "budget", "decode_every": 8, "decode_window": 16})
    cells = [("full", "0%"), ("knorm", "40 tokens"), ("knorm", "48 tokens")]
    assert sorted((row["method"], row["budget"], row["repeat"]) for row in rows) == [
        (*cell, repeat) for cell in cells for repeat in (0, 1)
    ]
    for row in rows:
        assert row["truncated"] is (row["new_tokens"] == 24)
        if row["method"] == "knorm":
            budget = int(row["budget"].removesuffix(" tokens"))
            assert row["decode_kept_mean"] < budget + 8 + row["question_tokens"] / 4, "the question's step holds more"
            assert row["kept_max"] <= budget
        else:
            assert row["decode_kept_max"] == row["context_tokens"] + row["question_tokens"] + row["new_tokens"] - 1
