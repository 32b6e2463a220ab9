"""Your own JSON lines as a benchmark: every field, every metric, and what is said of a bad line."""

from __future__ import annotations

import json

import pytest
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, Sample, build_hash
from indexmem.benchmarks.own.metrics import METRICS
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.load import load
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError

ROW = {
    "context": "The lantern hangs in the harbour.",
    "question": "Where does it hang?",
    "answer_prefix": "It hangs",
    "answers": ["in the harbour"],
    "metric": "contains_any",
}
CHOICE = {
    "context": "The lantern is dark red.",
    "question": "Which colour is it?",
    "options": ["blue", "red", "dark red", "5"],
    "answers": ["C"],
}
BUILD = BuildContext(tokenizer=tiny_tokenizer(), length=256, seed=0, haystack=TEXT)


def write(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def make(path, **params):
    (benchmark,) = make_benchmarks([BenchmarkConfig(name="jsonl", params={"path": str(path), **params})])
    return benchmark


def test_rows_become_samples_in_their_order(tmp_path):
    rows = [ROW, "", ROW | {"question": "And now?", "max_new_tokens": 9, "labels": {"kind": "hard"}}]
    benchmark = make(write(tmp_path, *rows), name="mine", max_new_tokens=33)
    first, second = benchmark.samples(10, BUILD)
    assert (first.id, second.id) == ("mine/0", "mine/1")
    assert (first.context, first.question, first.answer_prefix) == (ROW["context"], ROW["question"], "It hangs")
    assert (first.max_new_tokens, second.max_new_tokens) == (33, 9)
    assert (first.labels, second.labels) == ({}, {"kind": "hard"})
    assert benchmark.protocol == "own"


def test_a_character_in_two_halves_is_one(tmp_path):
    line = json.dumps(ROW | {"context": "a \U0001f600"})
    assert "\\ud83d\\ude00" in line
    (sample,) = make(write(tmp_path, line)).samples(1, BUILD)
    assert sample.context == "a \U0001f600"


def test_two_files_can_stand_in_one_spec(tmp_path):
    path = str(write(tmp_path, ROW))
    configs = [BenchmarkConfig(name="jsonl", params={"path": path, "name": name}) for name in ("a", "b")]
    assert [benchmark.name for benchmark in make_benchmarks(configs)] == ["a", "b"]


def test_questions_on_one_text_are_a_group(tmp_path):
    """By default the text decides, in any benchmark; a row can say more."""
    lines = [ROW, ROW | {"question": "And now?"}, ROW | {"context": "Another."}, ROW | {"group": "case 7"}]
    path = write(tmp_path, *lines)
    here, there = ([s.own_group for s in make(path, name=name).samples(9, BUILD)] for name in ("a", "b"))
    assert here[0] == here[1] == there[0]
    assert len({*here, *there}) == 4  # the text, the other text, and 'case 7' of each file
    assert (here[3], there[3]) == ("a/case 7", "b/case 7")
    with pytest.raises(UserError, match="'group' must be text, got 7"):
        list(make(write(tmp_path, ROW | {"group": 7})).samples(1, BUILD))


def test_a_line_may_ask_several_questions_which_share_what_they_do_not_say(tmp_path):
    shared = {"context": ROW["context"], "labels": {"kind": "easy"}, "max_new_tokens": 7}
    asked = [
        {"question": "Where?", "answers": ["harbour"]},
        {"question": "What?", "answers": ["A"], "options": ["lantern", "boat"], "labels": {"kind": "choice"}},
    ]
    benchmark = make(write(tmp_path, shared | {"questions": asked}, CHOICE))
    samples = list(benchmark.samples(9, BUILD))
    alone = list(make(write(tmp_path, *[shared | row for row in asked], CHOICE)).samples(9, BUILD))
    assert samples == alone
    assert [sample.id for sample in samples] == ["jsonl/0", "jsonl/1", "jsonl/2"]
    assert [sample.labels for sample in samples[:2]] == [{"kind": "easy"}, {"kind": "choice"}]
    assert samples[0].own_group == samples[1].own_group != samples[2].own_group


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ([], "line 1: 'questions' must list one at least"),
        ("Where?", "line 1: 'questions' must be a list"),
        (["Where?"], "line 1: question 1 must be a mapping"),
        ([{"question": "Where?", "answers": ["x"]}, {"question": "?"}], "question 2: the field 'answers' is missing"),
        ([{"question": "Where?", "answers": ["x"], "hint": "no"}], "question 1: unknown field 'hint'"),
    ],
)
def test_a_bad_question_is_named(tmp_path, questions, said):
    benchmark = make(write(tmp_path, {"context": "x", "questions": questions}))
    with pytest.raises(UserError, match=said):
        list(benchmark.samples(1, BUILD))


def test_a_row_may_be_a_conversation(tmp_path):
    turns = [{"question": "And the boat?", "answers": ["at sea", "sea"], "answer_prefix": "It", "max_new_tokens": 5}]
    (sample,) = make(write(tmp_path, ROW | {"turns": turns})).samples(1, BUILD)
    (first, second) = sample.asked
    assert (first.question, first.references) == (ROW["question"], ("in the harbour",))
    assert (second.question, second.answer_prefix, second.max_new_tokens) == ("And the boat?", "It", 5)
    benchmark = make(write(tmp_path, ROW | {"turns": turns}))
    assert benchmark.score("by the sea", second) == 1.0
    with pytest.raises(UserError, match="prompt and answer take"):
        list(make(write(tmp_path, ROW | {"turns": turns * 9})).samples(1, BUILD))


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ("And?", "turn 2 must be a mapping"),
        ({"question": "And?"}, "turn 2: the field 'answers' is missing"),
        ({"question": "And?", "answers": []}, "turn 2: 'answers' must list one"),
        ({"question": "And?", "answers": ["x"], "metric": "f1"}, "turn 2: 'metric' is said once"),
    ],
)
def test_a_bad_turn_is_named(tmp_path, turn, said):
    with pytest.raises(UserError, match=said):
        list(make(write(tmp_path, ROW | {"turns": [turn]})).samples(1, BUILD))


def test_a_sample_without_a_context_is_a_group_of_its_own():
    """As maths problems are; where a context is read, an empty one is refused."""
    samples = [Sample(f"maths/{number}", "maths", "", "what?", "", ("x",), 9) for number in range(2)]
    assert [sample.own_group for sample in samples] == ["maths/0", "maths/1"]


def test_the_name_of_the_mean_is_taken(tmp_path):
    with pytest.raises(UserError, match=r"No benchmark can be called 'mean'.*name: averages"):
        make(write(tmp_path, ROW), name="mean")


def test_other_rows_are_another_build(tmp_path):
    hashes = {build_hash(make(write(tmp_path, row)), BUILD) for row in (ROW, ROW | {"metric": "exact"}, ROW)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("metric", "answers", "prediction", "score"),
    [
        ("contains", ["one", "two"], "two", 1.0),
        ("contains_all", ["one", "two"], "One, and no more", 0.5),
        ("contains_any", ["one", "two"], "two", 1.0),
        ("exact", ["One "], " one", 1.0),
        ("exact", ["one"], "one.", 0.0),
        ("f1", ["wrong", "the bridge"], "bridge", 1.0),
        ("f1_zh", ["北京"], "北京。", 1.0),
        ("rouge_l", ["a b"], "b a", 0.5),
        ("rouge_l_zh", ["北京"], "北京", 1.0),
        ("code_similarity", ["return x"], "return x\nreturn y", 1.0),
        ("boxed_integer", ["16"], r"so \boxed{016}", 1.0),
        ("boxed_integer", ["16"], "16", 0.0),
    ],
)
def test_metrics(tmp_path, metric, answers, prediction, score):
    benchmark = make(write(tmp_path, ROW | {"metric": metric, "answers": answers}))
    (sample,) = benchmark.samples(1, BUILD)
    assert benchmark.score(prediction, sample) == pytest.approx(score, abs=1e-6)


def test_every_metric_is_tested():
    (marks,) = test_metrics.pytestmark
    assert {case[0] for case in marks.args[1]} == set(METRICS)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 3: not valid JSON"),
        (ROW | {"answers": ["\ud83d"]}, "line 3: not valid JSON .half a character"),
        (ROW | {"context": "cut \ude00 off"}, "line 3: not valid JSON .half a character"),
        (ROW | {"labels": {"\ud83d": 1}}, "line 3: not valid JSON .half a character"),
        (ROW | {"labels": {"depth": float("nan")}}, "line 3: not valid JSON .NaN is no number"),
        ("[]", "line 3: expected an object with the fields context"),
        ({"context": "x"}, "line 3: the field 'question' is missing. Expected: context .text., .*answers .a list."),
        (ROW | {"question": 3}, "line 3: 'question' must be text, got 3"),
        (ROW | {"context": ""}, "line 3: 'context' is empty"),
        (ROW | {"context": " \n"}, "line 3: 'context' is empty"),
        (ROW | {"answers": []}, "line 3: 'answers' must list one text at least"),
        (ROW | {"answers": [1]}, "line 3: each of 'answers' must be text, got 1"),
        (ROW | {"metric": "bleu"}, "line 3: Unknown metric 'bleu'. Scorers: contains_all"),
        (ROW | {"max_new_tokens": True}, "line 3: 'max_new_tokens' must be a whole number, got True"),
        (ROW | {"max_new_tokens": 0}, "line 3: 'max_new_tokens' must be 1 or more, got 0"),
        (ROW | {"labels": "hard"}, "line 3: 'labels' must be a mapping, got 'hard'"),
        (ROW | {"match": "most"}, "line 3: 'match' must be any or all, got 'most'"),
        (ROW | {"match": "any"}, "line 3: 'contains_any' says by itself how answers count"),
        (CHOICE | {"metric": "exact"}, "line 3: 'metric' has no effect on a row with 'options'"),
        (CHOICE | {"options": ["red"]}, "line 3: 'options' must list 2 to 26 texts, got 1"),
        (CHOICE | {"options": []}, "line 3: 'options' must list 2 to 26 texts, got 0"),
        (CHOICE | {"options": ["red", "Red "]}, "line 3: each of 'options' must be a text of its own"),
        (CHOICE | {"options": ["red", 7]}, "line 3: each of 'options' must be text, got 7"),
        (CHOICE | {"answers": ["E"]}, "line 3: the answer 'E' is no option. Write one of A, B, C, D or its text"),
        (CHOICE | {"options": ["B", "A"], "answers": ["A"]}, "line 3: the answer 'A' is the letter of one option and"),
        (CHOICE | {"answers": [4]}, "line 3: the answer '4' is no option. .*or its place from 0"),
        (ROW | {"metric": "likelihood"}, "line 3: metric likelihood compares 'options', and there are none"),
        (ROW | {"lables": {}}, "line 3: unknown field 'lables'. Fields: context, question"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(tmp_path, line, complaint):
    benchmark = make(write(tmp_path, ROW, "", line))
    with pytest.raises(UserError, match=f"mine.jsonl, {complaint}"):
        list(benchmark.samples(1, BUILD))


def test_what_does_not_fit_or_is_not_there_is_said(tmp_path):
    benchmark = make(write(tmp_path, ROW | {"context": "long " * 300}))
    with pytest.raises(UserError, match=r"row 1: prompt and answer take \d+ tokens, and grid.length is 256"):
        list(benchmark.samples(1, BUILD))
    with pytest.raises(UserError, match=r"there is no file .*gone.jsonl"):
        list(make(tmp_path / "gone.jsonl").samples(1, BUILD))
    with pytest.raises(UserError, match=r"mine.jsonl holds no rows"):
        list(make(write(tmp_path, "")).samples(1, BUILD))
    with pytest.raises(UserError, match=r"path: .*issing"):
        make_benchmarks([BenchmarkConfig(name="jsonl")])


def test_a_row_needs_no_more_than_a_context_a_question_and_answers(tmp_path):
    benchmark = make(write(tmp_path, {name: ROW[name] for name in ("context", "question", "answers")}))
    (sample,) = benchmark.samples(1, BUILD)
    assert sample.answer_prefix == ""
    assert benchmark.score("It hangs in the Harbour!", sample) == 1.0


@pytest.mark.parametrize(
    ("changes", "params", "score"),
    [
        ({"metric": "exact", "match": "all"}, {}, 0.5),
        ({"metric": "exact", "match": "any"}, {"match": "all"}, 1.0),
        ({"metric": "exact"}, {"match": "all"}, 0.5),
        ({}, {"metric": "exact", "match": "all"}, 0.5),
        ({}, {"metric": "contains_all"}, 0.5),
        ({}, {}, 1.0),
    ],
)
def test_any_or_all_answers_by_row_or_for_the_file(tmp_path, changes, params, score):
    row = {name: ROW[name] for name in ("context", "question")} | {"answers": ["two", "one"]} | changes
    benchmark = make(write(tmp_path, row), **params)
    (sample,) = benchmark.samples(1, BUILD)
    assert benchmark.score("one", sample) == score


def test_files_from_before_keep_their_identity(tmp_path):
    """The hash is of the rows alone, as it was when each had to name its metric and its prefix."""
    assert make(write(tmp_path, ROW)).ingredients(BUILD).keys() == {"rows"}
    plain = write(tmp_path, {name: ROW[name] for name in ("context", "question", "answers")})
    hashes = {build_hash(make(plain, **params), BUILD) for params in ({}, {"metric": "exact"}, {"match": "all"})}
    assert len(hashes) == 3


def test_options_are_shown_and_the_right_one_named_by_letter_or_text(tmp_path):
    lines = [CHOICE, CHOICE | {"answers": ["Dark Red"]}, CHOICE | {"answers": ["c", "B"]}]
    by_letter, by_text, two = make(write(tmp_path, *lines)).samples(3, BUILD)
    assert by_letter.question == "Which colour is it?\nA. blue\nB. red\nC. dark red\nD. 5\n"
    assert by_letter.references == by_text.references == ("C. dark red",)
    assert two.references == ("B. red", "C. dark red")


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("C", "C"),
        (" (C) because it is", "C"),
        ("**C** is right", "C"),
        ("C.", "C"),
        ("B: red. The answer is C.", "C"),
        ("Answer: (b)", None),  # letters are capitals
        ("the correct answer is option C", "C"),
        ("A red lantern", "B"),  # an article, not a letter
        ("Blue", "A"),
        ("It is dark  red.", "C"),  # and not 'red'
        ("dark red, not red", None),
        ("blue or red", None),
        ("55", None),
        ("5", "D"),
        ("E", None),
        ("", None),
    ],
)
def test_which_option_an_answer_chooses(tmp_path, answer, letter):
    rows = [CHOICE | {"answers": [right]} for right in "ABCD"]
    benchmark = make(write(tmp_path, *rows))
    scores = [benchmark.score(answer, sample) for sample in benchmark.samples(4, BUILD)]
    assert scores == [float(letter == right) for right in "ABCD"]


def test_a_path_is_looked_for_beside_the_spec_and_then_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "specs").mkdir()
    (tmp_path / "here").mkdir()
    for folder in ("specs", "here"):
        (tmp_path / folder / "both.jsonl").write_text("")
    (tmp_path / "here" / "one.jsonl").write_text("")
    entries = [f"{{name: jsonl, params: {{path: {name}.jsonl, name: {name}}}}}" for name in ("both", "one", "none")]
    (tmp_path / "specs" / "base.yaml").write_text(f"grid: {{benchmarks: [{', '.join(entries)}]}}\n")
    (tmp_path / "child.yaml").write_text("extends: specs/base.yaml\n")
    monkeypatch.chdir(tmp_path / "here")
    for spec in ("../specs/base.yaml", "../child.yaml"):
        paths = [entry.params["path"] for entry in load(spec).grid.benchmarks]
        assert paths == [f"{tmp_path}/specs/both.jsonl", f"{tmp_path}/here/one.jsonl", "none.jsonl"]


@pytest.mark.parametrize(("chat", "blank"), [(True, ""), (False, "")])
def test_options_by_likelihood_are_continuations(tmp_path, chat, blank):
    build = BuildContext(tokenizer=tiny_tokenizer(chat=chat), length=256, seed=0, haystack="")
    rows = [CHOICE | {"metric": "likelihood", "answers": [2]}, CHOICE | {"answer_prefix": "It is"}]
    benchmark = make(write(tmp_path, *rows), metric="likelihood")
    first, second = benchmark.samples(2, build)
    assert first.options == tuple(blank + option for option in CHOICE["options"])
    assert first.references == (first.options[2],)
    assert second.options == tuple(f" {option}" for option in CHOICE["options"])
    assert first.question == CHOICE["question"], "options are not shown"
    assert [benchmark.score(option, first) for option in first.options] == [0.0, 0.0, 1.0, 0.0]
    chosen_by_text = make(write(tmp_path, *rows))
    assert build_hash(benchmark, build) != build_hash(chosen_by_text, build)
    plain = {name: ROW[name] for name in ("context", "question", "answers")}
    without = make(write(tmp_path, plain), metric="likelihood")
    with pytest.raises(UserError, match=r"row 1: metric likelihood compares 'options'\. Add them"):
        list(without.samples(1, build))
