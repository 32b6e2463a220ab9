"""All 13 RULER tasks: every sample is read again by a reader that knows the published wording alone."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruler_readers import fwe_counts, qa_documents, read
from tiny_tokenizers import KINDS, TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.registry import get_benchmark, make_benchmarks
from indexmem.benchmarks.ruler import common_words, qa
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode

TASKS = {task.name: task for task in make_benchmarks([BenchmarkConfig(name="ruler")])}
LENGTHS = st.integers(2600, 4000) | st.integers(7000, 8000)  # from 4,096 on cwe is repetitive: too much for letters
LIMITS = {"vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32}  # RULER's generation limits; niah has 128


@pytest.fixture(scope="module", autouse=True)
def _a_small_world():
    """Fewer invented people and words: tokenising thousands of them is what a build costs."""
    few = common_words._words()[::6]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qa, "INVENTED", 60)
        patch.setattr(common_words, "_words", lambda: list(few))
        yield


def build_for(kind: str = "byte_level", chat: bool = True, length: int = 3600, seed: int = 42) -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer(kind, chat), length=length, seed=seed, haystack=TEXT)


def tokens_of(sample, build: BuildContext) -> int:
    """Size of the sample as the engine sees it, generation allowance included."""
    prompt = PromptFormat.of(build.tokenizer)
    question = prompt.question(sample.question, sample.answer_prefix)
    texts = (prompt.context(sample.context), question)
    return sum(len(encode(build.tokenizer, text)) for text in texts) + sample.max_new_tokens


def with_one_unit_more(task, index: int, sample, build: BuildContext):
    """The sample with the next unit of filler; None when there is none."""
    draft = task.drawing(build)(index)
    sizes = range(10_000 if draft.most is None else draft.most + 1)
    units = bisect_left(sizes, len(sample.context), key=lambda n: len(draft.context(n)))
    assert draft.context(units) == sample.context
    return None if units == draft.most else replace(sample, context=draft.context(units + 1))


def test_the_suite_has_the_thirteen_tasks_and_their_limits():
    assert len(TASKS) == 13
    assert {name: task.max_new_tokens for name, task in TASKS.items()} == {
        name: LIMITS.get(name, 128) for name in TASKS
    }
    assert {task.protocol for name, task in TASKS.items() if name not in ("qa_1", "qa_2")} == {"ruler"}
    assert TASKS["qa_1"].protocol == TASKS["qa_2"].protocol == "ruler-generated-qa"


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
def test_the_answers_follow_from_the_text_and_the_budget_is_full(name, kind, chat):
    build = build_for(kind, chat)
    for index, sample in enumerate(TASKS[name].samples(2, build)):
        assert read(sample) == set(sample.references)
        assert len(sample.references) == len(set(sample.references))
        more = with_one_unit_more(TASKS[name], index, sample, build)
        assert tokens_of(sample, build) <= build.length
        assert more is None or tokens_of(more, build) > build.length


@pytest.mark.parametrize("name", ["vt", "cwe", "fwe", "qa_1", "qa_2"])
@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    length=st.integers(2600, 4000) | st.integers(7000, 8000),
    seed=st.integers(0, 2**32),
)
def test_whatever_length_seed_and_tokenizer(name, kind, length, seed):
    build = build_for(kind, length=length, seed=seed)
    (sample,) = TASKS[name].samples(1, build)
    assert read(sample) == set(sample.references)
    assert TASKS[name].score(" ".join(sample.references), sample) == 1.0
    assert TASKS[name].score("nothing of that", sample) == 0.0
    more = with_one_unit_more(TASKS[name], 0, sample, build)
    assert tokens_of(sample, build) <= length
    assert more is None or tokens_of(more, build) > length


@pytest.mark.parametrize("name", TASKS)
def test_the_answer_is_not_given_away_by_the_question(name):
    for sample in TASKS[name].samples(3, build_for()):
        asked = (sample.question + sample.answer_prefix).lower()
        assert not any(reference.lower() in asked for reference in sample.references)


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_depends_on_its_index_and_on_no_other_sample(name):
    """Harnesses that draw all samples from one generator change the tenth when the ninth changes."""
    random.seed(7)
    before = random.getstate()
    three = list(TASKS[name].samples(3, build_for()))
    draw = TASKS[name].drawing(build_for())
    (alone,) = draw(2).asked
    assert alone.references == three[2].references
    assert alone.question == three[2].question
    assert next(iter(TASKS[name].samples(1, build_for()))) == three[0]
    assert random.getstate() == before, "the global generator is nobody's"
    assert len({sample.context for sample in three}) == 3


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [1, 60, 260])
def test_a_budget_that_holds_nothing_is_an_error_and_no_endless_loop(name, length):
    build = build_for(length=length)
    with pytest.raises(UserError, match=rf"'{name}' does not fit into {length} tokens") as error:
        next(TASKS[name].samples(1, build))
    needed = int(re.search(r"grid.length to at least (\d+)", str(error.value))[1])
    (sample,) = TASKS[name].samples(1, replace(build, length=needed))
    assert read(sample) == set(sample.references)
    assert tokens_of(sample, build) <= needed


def test_no_two_needles_of_a_haystack_of_needles_share_a_key():
    for name in ("niah_multikey_2", "niah_multikey_3"):
        (sample,) = TASKS[name].samples(1, build_for("words", length=6000))
        keys = re.findall(r" for (\S+) is: ", sample.context)
        assert len(keys) == len(set(keys)) > 300


def test_a_single_needle_stands_where_its_label_says():
    for sample in TASKS["niah_single_1"].samples(30, build_for("words", length=2000)):
        lines = sample.context.split("\n")[1:-1]
        place = next(i for i, line in enumerate(lines) if "magic" in line)
        assert place == int((len(lines) - 1) * sample.labels["depth"] + 1e-3)


def test_the_solved_example_is_a_new_one_every_time():
    firsts = {re.search(r"VAR ([A-Z]{3}) =", s.context)[1] for s in TASKS["vt"].samples(8, build_for())}
    assert len(firsts) > 6


@pytest.mark.parametrize(("length", "common", "other"), [(2600, 6, 1), (4096, 30, 3)])
def test_common_words_come_as_often_as_published(length, common, other):
    (sample,) = TASKS["cwe"].samples(1, build_for("words", length=length))
    text = sample.context.split("most often.\n")[2]
    words = re.findall(r"\d+\. (\S+)", text)
    assert {words.count(word) for word in sample.references} == {common}
    assert {words.count(word) for word in set(words) - set(sample.references)} == {other}


def test_more_words_than_the_list_has_become_pairs():
    (sample,) = TASKS["cwe"].samples(1, build_for("words", length=70_000))
    words = set(re.findall(r"\d+\. (\S+)", sample.context))
    assert len(words) > 10_000
    assert any("-" in word for word in words)


def test_the_vocabulary_of_coded_words_grows_with_the_length():
    (sample,) = TASKS["fwe"].samples(1, build_for("words", length=20_000))
    counts, words = fwe_counts(sample)
    assert len(words) > 80
    assert counts[1] / counts[2] == pytest.approx((3 / 2) ** 2, rel=0.02)


def test_generated_documents_are_mixed_and_each_question_comes_once():
    samples = list(TASKS["qa_2"].samples(30, build_for("words")))
    assert len({sample.question for sample in samples}) == 30
    places = [
        next(i for i, text in enumerate(documents) if sample.references[0] in text) / len(documents)
        for sample in samples
        for documents in [qa_documents(sample)]
    ]
    assert min(places) < 0.2 and max(places) > 0.8


def test_more_samples_than_questions_are_refused():
    with pytest.raises(UserError, match=r"'qa_1' has \d+ questions\. Set grid\.samples="):
        list(TASKS["qa_1"].samples(10_000, build_for("words", length=300)))


def test_recipes_have_hashes_of_their_own():
    builds = [build_for(), build_for(length=3700), build_for(seed=1)]
    hashes = [build_hash(task, build) for task in TASKS.values() for build in builds]
    assert len(set(hashes)) == len(hashes)
    assert build_hash(TASKS["vt"], build_for()) == build_hash(get_benchmark("vt"), build_for())
