"""Rows of answers with a thinking part: all tokens count, what follows is scored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_models import tiny_backbone
from tiny_tokenizers import SENTENCES, THINKING_TEMPLATE, tiny_tokenizer

from indexmem.benchmarks.base import Sample, Turn
from indexmem.board.stores import PARTS
from indexmem.config.budget import NOTHING_EVICTED
from indexmem.config.decoding import DecodingConfig
from indexmem.config.load import validate
from indexmem.engine.answers import Answer
from indexmem.evaluate import cell
from indexmem.evaluate.rows import settings_of
from indexmem.evaluate.work import GridCell, Task

SAMPLE = Sample("s/0", "niah_single_2", SENTENCES[0], " which?", "", ("oak",), 99)


def evaluator_of(thinking):
    grid = {"methods": ["full"], "benchmarks": ["niah_single_2"], "decoding": {"thinking": thinking}}
    spec = validate({"grid": grid}, "test")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = THINKING_TEMPLATE
    backbone = replace(tiny_backbone(), tokenizer=tokenizer)
    methods = {config.label: config for config in spec.grid.methods}
    return cell.CellEvaluator.load(spec, methods, None, {"git_commit": "", "versions": {}, "host": ""}, backbone)


def row_of(evaluator, monkeypatch, texts, sample=SAMPLE):
    """The row of a model that says `texts`, an answer each."""
    first, *later = (evaluator.backbone.tokenizer.encode(text, add_special_tokens=False) for text in texts)
    asked = []

    def decode(backbone, rows, *_):
        asked.extend(backbone.tokenizer.decode(row.question_ids) for row in rows)
        return [Answer(first, True, 1.0, 1, 0.0, 1, tuple(later))]

    monkeypatch.setattr(cell, "answers_of", decode)
    (full,) = evaluator.experiment.grid.methods
    (row,), _ = evaluator.evaluate([Task(sample, (GridCell("c", full, NOTHING_EVICTED, sample.benchmark, "b", ""),))])
    assert row["new_tokens"] == len(first) + sum(map(len, later))
    return row, asked[0]


@pytest.mark.parametrize(
    ("text", "on", "off"),
    [
        ("<think>not oak</think>elm", 0.0, 1.0),
        ("<think>not elm</think>oak", 1.0, 1.0),
        ("<think>oak, or", 0.0, 1.0),
        ("oak", 1.0, 1.0),
    ],
)
def test_what_follows_the_thinking_part_is_scored(monkeypatch, text, on, off):
    for thinking, score in ((True, on), (False, off)):
        row, asked = row_of(evaluator_of(thinking), monkeypatch, [text])
        assert (row["score"], row["prediction"]) == (score, text), "the row keeps what was thought"
        assert asked.endswith("<think></think>") is not thinking


def test_each_answer_of_a_conversation_has_its_own(monkeypatch):
    sample = replace(SAMPLE, turns=(Turn(" and then?", "", ("elm",), 9),))
    row, _ = row_of(evaluator_of(True), monkeypatch, ["<think>elm</think>oak", "<think>elm</think>ash"], sample)
    assert row["score"] == 0.5


def test_thinking_is_part_of_what_a_row_is():
    plain, on = DecodingConfig(), DecodingConfig(thinking=True)
    drawn = DecodingConfig(temperature=0.6, thinking=True)
    assert plain.identity == {} == DecodingConfig(thinking=False).identity, "rows from before there was a choice count"
    assert on.identity == {"decoding": {"thinking": True}}
    assert drawn.identity == {"decoding": {"temperature": 0.6, "thinking": True}}
    told = {thinking: settings_of(evaluator_of(thinking).experiment) for thinking in (False, True, "default")}
    said = {thinking: PARTS["decoding"](settings) for thinking, settings in told.items()}
    assert said == {False: "greedy", True: "greedy thinking=True", "default": "greedy thinking=default"}
