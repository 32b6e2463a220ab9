"""AIME and MATH500: what counts as the answer, when two answers are equal, and how long that may take to tell."""

from __future__ import annotations

import json
import pickle
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.maths.boxed import as_integer, last_boxed
from indexmem.benchmarks.maths.verifier import Verifier
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError

BUILD = BuildContext(tokenizer=tiny_tokenizer(), length=600, seed=0, haystack=TEXT)

BOXES = [
    (r"\boxed{7}", "7"),
    (r"first \boxed{1}, no: \boxed{2}", "2"),  # kvpress's MATH500 takes the first
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),  # kvpress #254 cuts it at the first closing brace
    (r"\boxed{\sqrt{\frac{a}{b}}} is it", r"\sqrt{\frac{a}{b}}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces open nothing
    (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
    (r"\boxed {3}", "3"),
    (r"\fbox{4}", "4"),
    (r"\boxed{  5 }", "5"),
    (r"\boxed{1} and then \boxed{2", "1"),  # cut off in the last one
    (r"\boxed{", None),
    (r"\boxed{}", ""),
    ("42", None),  # kvpress's AIME accepts a bare number
    ("boxed{6}", None),
    ("", None),
    (r"\boxed{\boxed{8}}", "8"),
]


@pytest.mark.parametrize(("text", "content"), BOXES)
def test_the_last_complete_box_counts(text, content):
    assert last_boxed(text) == content


balanced = st.recursive(
    st.text("ab1 \\,", max_size=5).map(lambda s: s.replace("\\", "")),
    lambda inner: st.builds(lambda parts: "{" + "".join(parts) + "}", st.lists(inner, max_size=3)),
    max_leaves=6,
)


@given(before=st.text(max_size=20), content=balanced)
def test_any_balanced_content_comes_back(before, content):
    assert last_boxed(before + r" \boxed{" + content + "}") == content.strip()


@given(st.text("\\boxed{}1", max_size=40))
def test_extraction_never_fails(text):
    found = last_boxed(text)
    assert found is None or found in text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16", 16),
        ("016", 16),
        (" 16 ", 16),
        ("$16$", 16),
        ("1,024", 1024),
        (r"1{,}024", 1024),
        (r"1\,024", 1024),
        ("-3", -3),
        ("16.0", None),
        ("1 6", None),
        ("x", None),
        ("", None),
        ("١٦", 16),
        (None, None),
    ],
)
def test_integers(text, number):
    assert as_integer(text) == number


def write(tmp_path, rows):
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make(name, tmp_path, rows, **params):
    (benchmark,) = make_benchmarks([BenchmarkConfig(name=name, params={"path": write(tmp_path, rows), **params})])
    return benchmark


AIME_ROW = {"problem": "How many?", "answer": 16}
MATH_ROW = {"problem": "What is half?", "answer": r"\frac{1}{2}", "subject": "Algebra", "level": 3, "solution": "..."}


def test_the_whole_problem_is_the_question(tmp_path):
    benchmark = make("aime25", tmp_path, [AIME_ROW, {"question": r"Use \boxed{}.", "answer": "7"}], max_new_tokens=99)
    first, second = benchmark.samples(9, BUILD)
    assert (first.context, first.answer_prefix, first.max_new_tokens) == ("", "", 99)
    assert first.question.startswith("How many?\n")
    assert first.question.endswith(r"within \boxed{}.")
    assert second.question == r"Use \boxed{}.", "one that asks for a box itself is left alone"
    assert first.references == ("16",)
    assert (benchmark.size, benchmark.protocol) == (30, "kvpress")


def test_aime_compares_numbers(tmp_path):
    benchmark = make("aime25", tmp_path, [AIME_ROW], max_new_tokens=99)
    (sample,) = benchmark.samples(1, BUILD)
    assert benchmark.score(r"\boxed{016}", sample) == 1.0
    assert benchmark.other_scores(r"\boxed{016}", sample) == {"boxed": 1.0, "exact": 0.0}
    assert benchmark.score(r"\boxed{61}", sample) == 0.0
    assert benchmark.score("16", sample) == 0.0, "without a box there is no answer"
    assert benchmark.other_scores("16", sample) == {"boxed": 0.0, "exact": 0.0}


@pytest.fixture(scope="module")
def verifier():
    verifier = Verifier()
    yield verifier
    verifier.close()


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{1}{2}", r"\dfrac12", True),
        (r"\frac{1}{2}", r"\frac{2}{1}", False),
        (r"(x+1)^2", r"x^2+2x+1", True),
        (r"\{1, 2\}", r"\{2, 1\}", True),
        (r"(1, 2)", r"(2, 1)", False),
        (r"\text{Tuesday}", r"\text{Tuesday}", True),
        (r"\text{Tuesday}", r"\text{Monday}", False),
        (r"3\sqrt{2}", r"\sqrt{18}", True),
        (r"2", "", False),
        (r"2", r"\frac{", False),
    ],
)
def test_expressions(verifier, reference, answer, equal):
    assert verifier.equal(reference, answer) is equal


def test_it_works_off_the_main_thread(verifier):
    """math-verify's own timeouts need SIGALRM, which other threads cannot have."""
    found = []
    thread = threading.Thread(target=lambda: found.append(verifier.equal("1", "1.0")))
    thread.start()
    thread.join(60)
    assert found == [True]


def test_what_takes_too_long_is_ended_and_the_next_one_goes_on():
    verifier = Verifier(seconds=1.0)
    assert verifier.equal("2", "2.0"), "started"
    begun = time.monotonic()
    assert verifier.equal("1", "9^{9^{9^{9}}}") is False
    assert time.monotonic() - begun >= 1.0, "or it did not take long"
    verifier.seconds = 60.0
    assert verifier.equal("2", "2.0")
    verifier.close()


def test_a_process_that_dies_counts_as_no():
    verifier = Verifier()
    assert verifier.equal("2", "2.0")
    verifier._process.kill()
    verifier._process.join()
    assert verifier.equal("2", "2.0") is False
    assert verifier.equal("2", "2.0")
    verifier.close()


def test_copies_have_processes_of_their_own(verifier):
    verifier.equal("1", "1")
    copy = pickle.loads(pickle.dumps(verifier))
    assert copy == Verifier()


def test_math500_is_verified_and_exact_matches_are_kept(tmp_path, verifier):
    benchmark = make("math500", tmp_path, [MATH_ROW], max_new_tokens=99)
    object.__setattr__(benchmark, "verifier", verifier)
    (sample,) = benchmark.samples(1, BUILD)
    assert sample.labels == {"subject": "Algebra", "level": 3}
    assert benchmark.score(r"so \boxed{0.5}", sample) == 1.0
    assert benchmark.other_scores(r"so \boxed{0.5}", sample) == {"boxed": 1.0, "exact": 0.0}
    assert benchmark.other_scores(r"so \boxed{\frac{1} {2}}", sample)["exact"] == 1.0
    assert benchmark.score("0.5", sample) == 0.0


def test_bad_rows_and_too_long_answers_are_named(tmp_path):
    with pytest.raises(UserError, match=r"line 1: 'problem' .or 'question'. must be text, got None"):
        list(make("aime25", tmp_path, [{"answer": 1}]).samples(1, BUILD))
    with pytest.raises(UserError, match="the field 'answer' is missing"):
        list(make("math500", tmp_path, [{"problem": "?"}]).samples(1, BUILD))
    with pytest.raises(UserError, match=r"an answer of 32000 tokens take \d+. Set grid.length=\d+ or more"):
        list(make("aime25", tmp_path, [AIME_ROW]).samples(1, BUILD))


def test_a_model_that_begins_with_nothing_needs_a_context(tmp_path):
    tokenizer = tiny_tokenizer(chat=False)
    tokenizer.bos_token = None
    build = replace(BUILD, tokenizer=tokenizer)
    with pytest.raises(UserError, match="nothing stands before problem 0"):
        list(make("aime25", tmp_path, [AIME_ROW], max_new_tokens=9).samples(1, build))
    (sample,) = make("aime25", tmp_path, [AIME_ROW | {"context": "Solve this."}], max_new_tokens=9).samples(1, build)
    assert sample.context == "Solve this."


def test_a_data_set_that_cannot_be_had(tmp_path):
    (benchmark,) = make_benchmarks([BenchmarkConfig(name="aime25", params={"path": "nobody/nothing"})])
    with pytest.raises(UserError, match=r"'nobody/nothing' cannot be had: .*path=FILE of a local copy"):
        list(benchmark.samples(1, BUILD))


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 999))
def test_numbers_are_equal_when_they_are(right, answered):
    assert (as_integer(f"{right:03d}") == as_integer(str(answered))) is (right == answered)
