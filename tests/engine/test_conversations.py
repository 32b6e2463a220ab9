"""Conversations: each answer stays in the cache, and further questions are read behind it, in a batch with others."""

from dataclasses import replace

import pytest
from test_decode import PLENTY, rows_of
from tiny_models import FAMILIES, random_ids, tiny_backbone
from tiny_tokenizers import SENTENCES

from indexmem.benchmarks.base import Sample, Turn
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.engine.answers import FollowUp
from indexmem.engine.decode import DecodeRow, decode
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.prompts import Prompt
from indexmem.evaluate.work import GridCell, Task
from indexmem.models.backbone import Backbone
from indexmem.models.prompt import PromptFormat, between_turns, encode

FOLLOW_UPS = (FollowUp(random_ids(4, seed=21), 6), FollowUp(random_ids(9, seed=22), 3))


def one_by_one(backbone, row: DecodeRow) -> list[list[int]]:
    """Each turn as a question of its own: all that was asked and answered before, and then the question."""
    answers: list[list[int]] = []
    read, limit = list(row.question_ids), row.max_new_tokens
    for turn in (*row.follow_ups, None):
        (answer,) = decode(backbone, [replace(row, question_ids=read, max_new_tokens=limit, follow_ups=())], PLENTY)
        answers.append(answer.token_ids)
        if turn is not None:
            said = [token for token in answer.token_ids if token not in backbone.eos_ids]
            read, limit = [*read, *said, *turn.question_ids], turn.max_new_tokens
    return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_turns_equal_questions_that_hold_what_was_said_before(family):
    backbone, plain = rows_of(family, limits=(8, 5))
    rows = [replace(row, follow_ups=FOLLOW_UPS[: number % 3]) for number, row in enumerate(plain)]
    for row, answer in zip(rows, decode(backbone, rows, PLENTY)):
        assert [answer.token_ids, *answer.later] == one_by_one(backbone, row)


def test_an_answer_that_ends_by_itself_gives_way_to_the_next_question(monkeypatch):
    """Its ending token is not read: the follow-up begins with what ends an answer."""
    backbone, plain = rows_of("llama", limits=(8, 8))
    rows = [replace(row, follow_ups=FOLLOW_UPS) for row in plain]
    first = decode(backbone, rows, PLENTY)
    ending = first[0].token_ids[2]
    monkeypatch.setattr(Backbone, "eos_ids", (ending,))
    answers = decode(backbone, rows, PLENTY)
    assert len(answers[0].token_ids) <= 3
    assert any(turn[-1] == ending for answer in answers for turn in answer.later) or len(answers[0].token_ids) < 8
    for row, answer in zip(rows, answers):
        assert [answer.token_ids, *answer.later] == one_by_one(backbone, row)
        assert answer.ended == (answer.later[-1][-1] == ending)


def test_a_row_says_how_many_tokens_its_conversation_may_take():
    _, (row, *_) = rows_of("llama")
    assert replace(row, follow_ups=FOLLOW_UPS).steps == row.max_new_tokens + 4 + 6 + 9 + 3
    assert replace(row, follow_ups=FOLLOW_UPS).bytes_at_end > row.bytes_at_end


def test_a_sample_with_turns_is_one_row_with_the_mean_score():
    spec = validate({"eviction": {"sinks": 2}, "grid": {"methods": ["full", "knorm"]}}, "test")
    methods = {config.label: config for config in spec.grid.methods}
    backbone = tiny_backbone()
    evaluator = CellEvaluator.load(spec, methods, None, {"git_commit": "", "versions": {}, "host": ""}, backbone)
    cells = tuple(
        GridCell(name, config, Budget.of_ratio(0.0 if name == "full" else 0.5), "niah_single_1", "b", "")
        for name, config in methods.items()
    )
    alone = Sample("s/0", "niah_single_1", " ".join(SENTENCES[:4]), "what?", "", ("x",), 6)
    (first, _), _ = evaluator.evaluate([Task(alone, cells)])
    said = first["prediction"].strip()
    turns = (Turn("and then?", "It", ("no such text",), 5), Turn("why?", "", ("nor this",), 4))
    sample = replace(alone, references=(said[:3],), turns=turns)
    rows, _ = evaluator.evaluate([Task(sample, cells)])
    full = rows[0]
    assert full["prediction"].splitlines()[0] == f"[1] {first['prediction']}"
    assert "[2] " in full["prediction"]
    assert "[3] " in full["prediction"]
    assert full["score"] == pytest.approx(1 / 3)
    assert full["other_scores"] == '{"turn 1": 1.0, "turn 2": 0.0, "turn 3": 0.0}'
    assert full["references"] == [said[:3], "no such text", "nor this"]
    assert full["new_tokens"] <= 6 + 5 + 4


def test_a_follow_up_begins_with_what_ends_an_answer():
    backbone = tiny_backbone()
    sample = Sample("s/0", "b", "text", "what?", "", ("x",), 6, turns=(Turn("and then?", "It", ("y",), 5),))
    (follow_up,) = Prompt.of(sample, backbone.tokenizer).follow_ups
    prompt = PromptFormat.of(backbone.tokenizer)
    expected = between_turns(backbone.tokenizer) + "and then?" + prompt.suffix + "It"
    assert follow_up == FollowUp(encode(backbone.tokenizer, expected), 5)
