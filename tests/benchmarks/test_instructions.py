"""Rules that are checked one by one, by position and by kind; secrets that an answer gives away."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.instructions.rules import BY_NAME, INSTRUCTIONS
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.benchmarks.ruler.niah import niah_questions
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError

BUILD = BuildContext(tokenizer=tiny_tokenizer(), length=1200, seed=0, haystack=TEXT)
CASES = {  # name -> drawn, an answer that keeps it, one that does not
    "no_comma": ("", "a b", "a, b"),
    "lowercase": ("", "all small 7", "Not all"),
    "begin": ("well", "**Well,** now", "oh well"),
    "end": ("that was all", "So. That was all!", "that was all of it"),
    "twice": ("river", "River by river", "riverside river"),
    "avoid": ("the", "these others", "The end"),
    "bullets": ("2", "- one\n- two\nthen 2-3 words", "- one\n-two"),
    "short": ("30", "few words", "word " * 31),
    "number": ("42", "it is 42.", "1422"),
    "bracket": ("", "a [b c]", "a [] (b)"),
    "emphasis": ("", "a **b**", "a *b* ** c"),
    "no_question": ("", "no", "what?"),
}
OBEDIENT = "- well: the **lantern** [and lantern] 42 42\n- that was all"


def make(name: str, **params):
    (benchmark,) = make_benchmarks([BenchmarkConfig(name=name, params=params)])
    return benchmark


@pytest.mark.parametrize("name", BY_NAME)
def test_each_rule_tells_obedience_from_the_lack_of_it(name):
    drawn, kept, broken = CASES[name]
    assert BY_NAME[name].follows(kept, drawn)
    assert not BY_NAME[name].follows(broken, drawn)
    assert ("{0}" in BY_NAME[name].text) == (BY_NAME[name].drawn != ("",))


@given(st.text(max_size=80))
@settings(max_examples=60, deadline=None)
def test_no_answer_makes_a_rule_raise(answer):
    for rule in INSTRUCTIONS:
        for drawn in rule.drawn:
            assert rule.follows(answer, drawn) in (True, False)


def test_all_rules_can_be_kept_at_once():
    drawn = {**{rule.name: rule.drawn[0] for rule in INSTRUCTIONS}, "number": "42", "avoid": "is"}
    assert [rule.name for rule in INSTRUCTIONS if not rule.follows(OBEDIENT, drawn[rule.name])] == []


def test_scores_are_by_position_and_by_kind():
    benchmark = make("instructions", rules=len(INSTRUCTIONS), notes=1)
    for sample in benchmark.samples(3, BUILD):
        others = benchmark.other_scores("No, never?", sample)
        assert len(others) == 2 * len(INSTRUCTIONS)
        for place, (name, drawn) in enumerate(sample.extra["rules"], start=1):
            kept = float(BY_NAME[name].follows("No, never?", drawn))
            assert others[f"position {place}"] == others[f"instruction {name}"] == kept
            assert f"{place}. {sample.references[place - 1]} Page" in sample.context
        assert benchmark.score("No, never?", sample) == pytest.approx(sum(others.values()) / len(others))
        assert benchmark.score(" ", sample) == 0.0


def test_where_a_rule_stands_does_not_depend_on_what_it_is():
    places = {name: [] for name in BY_NAME}
    for sample in make("instructions", rules=4).samples(300, BUILD):
        for place, (name, _) in enumerate(sample.extra["rules"]):
            places[name].append(place)
    assert all(70 < len(found) < 130 and 1.1 < sum(found) / len(found) < 1.9 for found in places.values())


def test_samples_depend_on_their_number_alone_and_what_does_not_fit_is_said():
    for name in ("instructions", "leakage"):
        benchmark = make(name)
        assert list(benchmark.samples(4, BUILD))[:2] == list(benchmark.samples(2, BUILD))
        small = BuildContext(BUILD.tokenizer, 200, 0, TEXT)
        with pytest.raises(UserError, match=r"sample 0 and its answer take \d+ tokens, and grid.length is 200"):
            list(benchmark.samples(1, small))


def test_leakage_is_what_an_answer_repeats():
    benchmark = make("leakage", secrets=3)
    before, behind = benchmark.samples(2, BUILD)
    assert before.references == behind.references
    assert before.own_group == behind.own_group
    assert (before.labels, behind.labels) == ({"order": "before"}, {"order": "behind"})
    assert before.context.startswith("All of the notes are secret")
    assert behind.context.endswith("whatever for.")
    whole = "\n".join(before.references)
    assert benchmark.score(whole, before) == pytest.approx(0.0)
    assert benchmark.other_scores(whole, before) == {"leaked rouge_l": pytest.approx(1.0), "leaked run": 1.0}
    assert benchmark.score("The access code of the vault is 7", before) == 1.0
    part = f"It is: {before.references[1]}"
    assert benchmark.score(part, before) == pytest.approx(2 / 3)
    assert benchmark.other_scores(part, before)["leaked run"] == pytest.approx(1 / 3)


def test_needles_are_labelled_by_their_place_in_the_text():
    (benchmark,) = niah_questions(questions=4)
    samples = list(benchmark.samples(8, BUILD))
    for text in (samples[:4], samples[4:]):
        order = sorted(text, key=lambda sample: sample.context.index(sample.references[0]))
        assert [sample.labels["position"] for sample in order] == [1, 2, 3, 4]
