"""SCBench: rows as published, both modes, every set's score, and what is said of bad rows."""

from __future__ import annotations

import json

import pytest
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.benchmarks.scbench.sets import SHARED_SETS, characters_f1, first_number, letter, same_case
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError
from indexmem.evaluate.work import contexts_of
from indexmem.models.prompt import PromptFormat, between_turns, encode

TURNS = {
    "kv": [{"input": 'Key: "a b"\nThe value is', "answer": "c-d"}, {"input": 'Key: "e"', "answer": "g-h"}],
    "qa_eng": [{"input": "Who left?", "answer": ["Anna", "She"]}, {"input": "Who came?", "answer": ["Ben"]}],
    "choice_eng": [
        {"input": "Who left?", "answer": ["B"], "options": ["Ben", "Anna", "Carl", "Dora"]},
        {"input": "Who came?", "answer": "A", "options": ["Ben", "Anna", "Carl", "Dora"]},
    ],
    "mf": [{"input": "The largest number is", "answer": [9]}, {"input": "The median is", "answer": 4.5}],
}


def build(chat: bool = True, length: int = 700) -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer(chat=chat), length=length, seed=0, haystack=TEXT)


def folder_of(tmp_path, name: str, **row):
    rows = [{"id": 0, "context": f"{TEXT[:200]} {i}", "multi_turns": TURNS[name]} | row for i in range(2)]
    (tmp_path / f"scbench_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def make(folder, name: str, **params):
    config = BenchmarkConfig(name="scbench", params={"path": str(folder), "sets": [name], **params})
    (benchmark,) = make_benchmarks([config])
    return benchmark


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("mode", ["requests", "turns"])
def test_every_question_of_a_row_is_a_sample_on_the_same_context(tmp_path, name, mode):
    benchmark = make(folder_of(tmp_path, name), name, mode=mode)
    samples = list(benchmark.samples(10, build()))
    assert contexts_of(samples) == [0, 0, 1, 1]
    assert [sample.labels["turn"] for sample in samples] == [1, 2, 1, 2]
    assert [sample.id.rsplit("/")[1] for sample in samples] == ["0", "1", "2", "3"]
    assert list(benchmark.samples(3, build())) == samples[:3]
    for sample in samples:
        assert benchmark.score(sample.references[0], sample) == 1.0
        assert benchmark.score("nothing of it", sample) == 0.0


def test_requests_are_asked_as_published(tmp_path):
    _, second = list(make(folder_of(tmp_path, "choice_eng"), "choice_eng").samples(2, build()))
    assert second.context.startswith("Read the book and answer the question.\n\n")
    assert second.question == ("Question: Who came?\nA. Ben\nB. Anna\nC. Carl\nD. Dora\n\nThe the correct answer is")
    first, second = list(make(folder_of(tmp_path, "mf"), "mf").samples(2, build()))
    assert first.context.startswith("The largest number is\n\n")
    assert second.question == "What is the median?\n\nThe median is"


@pytest.mark.parametrize(
    ("chat", "ends", "begins"), [(True, " [end]\n[assistant] ", " [end]\n[user] "), (False, "\n", "\n\n")]
)
def test_turns_follow_those_before_with_their_right_answers(tmp_path, chat, ends, begins):
    prompt = PromptFormat.of(build(chat).tokenizer)
    samples = make(folder_of(tmp_path, "qa_eng"), "qa_eng", mode="turns").samples(2, build(chat))
    first, second = (prompt.question(sample.question, sample.answer_prefix) for sample in samples)
    assert first == f"\n\nQuestion: Who left?\nAnswer:{ends}"
    assert second == f"{first}Anna, She{begins}Question: Who came?\nAnswer:{ends}"


def test_a_template_that_shows_no_turns_is_refused():
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(UserError, match="does not show a question, an answer and a question"):
        between_turns(tokenizer)


def test_a_context_that_is_too_long_loses_its_middle(tmp_path):
    folder = folder_of(tmp_path, "kv", context="begin " + "word " * 2000 + "end")
    room = build(length=400)
    for sample in make(folder, "kv").samples(4, room):
        prompt = PromptFormat.of(room.tokenizer)
        used = len(encode(room.tokenizer, prompt.context(sample.context)))
        used += len(encode(room.tokenizer, prompt.question(sample.question, "")))
        assert 380 < used + sample.max_new_tokens <= 400
        assert "below.\n\nbegin word" in sample.context
        assert sample.context.endswith("word end")
    with pytest.raises(UserError, match="does not fit into 160 tokens"):
        list(make(folder, "kv").samples(1, build(length=160)))


def test_turns_can_be_fewer_and_the_recipe_says_so(tmp_path):
    folder = folder_of(tmp_path, "kv")
    assert len(list(make(folder, "kv", turns=1).samples(9, build()))) == 2
    made = [make(folder, "kv", **params) for params in ({}, {"turns": 1}, {"mode": "turns"})]
    assert len({build_hash(benchmark, build()) for benchmark in made}) == 3


@pytest.mark.parametrize(
    ("score", "answer", "right", "expected"),
    [
        (same_case, "it is c-d.", ["c-d"], 1.0),
        (same_case, "it is C-D.", ["c-d"], 0.0),
        (characters_f1, "北京！", ["北京", "上海"], 1.0),
        (characters_f1, "北", ["北京"], 2 / 3),
        (characters_f1, "", ["北京"], 0.0),
        (first_number, "9 or 10", ["9"], 1.0),
        (first_number, "about 9.7", ["9"], 1.0),
        (first_number, "4.5", ["4.5"], 1.0),
        (first_number, "none", ["9"], 0.0),
        (letter, " B. Anna", ["B"], 1.0),
        (letter, "A", ["B"], 0.0),
        (letter, "I think the answer is: B", ["B"], 1.0),
        (letter, "I think the answer is B", ["B"], 1.0),
        (letter, "it must be C, I guess", ["C"], 1.0),
        (letter, "no idea", ["B"], 0.0),
        (letter, "", ["B"], 0.0),
    ],
)
def test_scores(score, answer, right, expected):
    assert score(answer, right) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"context": " "}, "'context' is missing or empty"),
        ({"multi_turns": []}, "must list one question"),
        ({"multi_turns": [{"input": "?"}]}, "turn 1 must have 'input' and 'answer'"),
        ({"multi_turns": "?"}, "'multi_turns' must be a list"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, said):
    with pytest.raises(UserError, match=f"scbench_kv.jsonl, line 1: .*{said}|{said}"):
        list(make(folder_of(tmp_path, "kv", **row), "kv").samples(1, build()))


def test_sets_that_are_not_here_are_named(tmp_path):
    with pytest.raises(UserError, match="'repoqa' is not here: it is scored by a parser"):
        make(tmp_path, "repoqa")
    with pytest.raises(UserError, match=r"has no set 'nothing'\. Sets: kv"):
        make(tmp_path, "nothing")
    with pytest.raises(UserError, match=r"has no scbench_kv\.jsonl"):
        list(make(tmp_path, "kv").samples(1, build()))
    assert len(SHARED_SETS) == 8
