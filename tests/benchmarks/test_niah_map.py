"""The heat map: where needles lie, how long prompts are, and what part of the map fewer samples give."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.niah_map import INSTRUCTION, NEEDLE, niah
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode

LENGTHS, DEPTHS = (400, 700, 1100), (0, 15, 50, 95, 100)


def build(length: int = 1100, haystack: str = TEXT, seed: int = 42, kind: str = "byte_level") -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer(kind), length=length, seed=seed, haystack=haystack)


def make(**params):
    (benchmark,) = niah(**{"lengths": LENGTHS, "depths": DEPTHS, "offsets": 2} | params)
    return benchmark


def tokens(sample, context: BuildContext) -> int:
    prompt = PromptFormat.of(context.tokenizer)
    after = prompt.question(sample.question, sample.answer_prefix)
    return len(encode(context.tokenizer, prompt.context(sample.context))) + len(encode(context.tokenizer, after))


def test_the_default_map_is_the_papers_with_offsets():
    (benchmark,) = niah()
    assert (benchmark.lengths[0], benchmark.lengths[-1], len(benchmark.lengths)) == (1000, 12500, 10)
    assert benchmark.depths == (15, 25, 35, 45, 55, 65, 75, 85, 95)
    assert benchmark.size == 10 * 9 * 3
    assert len(set(benchmark.places())) == benchmark.size


@pytest.fixture(scope="module")
def samples():
    return list(make().samples(10_000, build()))


def test_every_place_comes_once_per_offset(samples):
    places = Counter((s.labels["length"], s.labels["depth"]) for s in samples)
    assert len(places) == len(LENGTHS) * len(DEPTHS)
    assert set(places.values()) == {2}
    assert [s.id for s in samples] == [f"niah/{n}" for n in range(len(samples))]


def test_prompts_are_as_long_as_they_say(samples):
    """Whole, with the answer's tokens; a token or two may be lost at the needle's seams."""
    for sample in samples:
        used = tokens(sample, build()) + sample.max_new_tokens
        assert sample.labels["length"] - 4 <= used <= sample.labels["length"]


def test_the_needle_stands_between_sentences_at_its_depth(samples):
    tokenizer = build().tokenizer
    for sample in samples:
        before, needle, after = sample.context.removesuffix(INSTRUCTION).partition(NEEDLE)
        assert needle, "it is there"
        assert NEEDLE not in after, "once"
        depth = sample.labels["depth"]
        share = len(encode(tokenizer, before)) / len(encode(tokenizer, before + after))
        if depth == 100:
            assert not after
            continue
        assert not before or re.search(r"\.\s$", before), "behind a full stop"
        longest = 45 / (sample.labels["length"] - 150)  # no sentence is longer than 45 tokens
        assert depth / 100 - longest <= share <= depth / 100 + 0.01


def test_an_offset_has_one_text_for_all_places(samples):
    def start(sample):
        return sample.context.replace(NEEDLE + " ", "")[:60]

    by_offset = {offset: {start(s) for s in samples if s.labels["offset"] == offset} for offset in (0, 1)}
    assert [len(starts) for starts in by_offset.values()] == [1, 1]
    assert by_offset[0] != by_offset[1]


def test_fewer_samples_are_the_first_ones_and_spread_over_the_map(samples):
    assert list(make().samples(7, build())) == samples[:7]
    whole = samples[: len(LENGTHS) * len(DEPTHS)]
    assert {s.labels["offset"] for s in whole} == {0}, "the first offset's map comes first"
    (benchmark,) = niah()
    few = benchmark.places()[:30]  # a third of the places
    assert set(Counter(length for length, _, _ in few).values()) <= {2, 3, 4}
    assert set(Counter(depth for _, depth, _ in few).values()) <= {2, 3, 4, 5}


def test_a_text_that_is_too_short_is_repeated():
    short = "One sentence. Another one here. A third."
    (sample, *_) = make(lengths=(500,), depths=(50,)).samples(1, build(haystack=short))
    assert sample.context.count("Another one here.") > 5
    assert 496 <= tokens(sample, build()) + sample.max_new_tokens <= 500


@settings(max_examples=15)
@given(length=st.integers(330, 600), depth=st.integers(0, 100), kind=st.sampled_from(["byte_level", "words"]))
def test_any_length_and_depth_fits(length, depth, kind):
    context = build(length, kind=kind)
    (sample,) = make(lengths=(length,), depths=(depth,), offsets=1).samples(1, context)
    assert tokens(sample, context) + sample.max_new_tokens <= length
    assert NEEDLE in sample.context


def test_scores():
    benchmark = make()
    (sample,) = benchmark.samples(1, build())
    assert benchmark.score("Eat a SANDWICH in dolores park.", sample) == 1.0
    assert benchmark.score("Eat a sandwich.", sample) == 0.0, "both keywords, or nothing"
    assert benchmark.other_scores(NEEDLE, sample) == {"rouge1_recall": pytest.approx(1.0)}
    assert 0 < benchmark.other_scores("eat a sandwich", sample)["rouge1_recall"] < 0.3
    assert benchmark.other_scores("", sample) == {"rouge1_recall": 0.0}


def test_what_cannot_be_is_said_with_what_to_type():
    with pytest.raises(UserError, match=r"prompts of 1100 tokens, and grid.length=1000 is less. Set grid.length=1100"):
        list(make().samples(1, build(1000)))
    with pytest.raises(UserError, match="a length of 100 tokens has no room for the needle"):
        list(make(lengths=(100,)).samples(1, build()))
    with pytest.raises(UserError, match="haystack text is empty"):
        list(make().samples(1, build(haystack="  ")))
    with pytest.raises(UserError, match="0 to 100; got 101"):
        niah(depths=(101,))
    with pytest.raises(UserError, match="lengths must be different values"):
        niah(lengths=(500, 500))
    with pytest.raises(UserError, match="does not hold the keyword 'pizza'"):
        niah(keywords=("pizza",))


def test_another_map_is_another_build():
    hashes = {build_hash(make(**change), build()) for change in ({}, {"offsets": 3}, {"depths": (0,)}, {})}
    assert len(hashes) == 3


@pytest.mark.parametrize("stop", ["\u3002", ""])
def test_a_text_without_spaces_has_its_needle_at_its_depth(stop):
    text = "".join(f"\u7b2c{number}\u9875\u8bb2\u7684\u662f\u65e7\u77f3\u6865{stop}" for number in range(300))
    context = build(haystack=text)
    found = list(make().samples(10_000, context))
    assert len(found) == make().size
    for sample in found:
        before, needle, after = sample.context.removesuffix(INSTRUCTION).partition(NEEDLE)
        assert needle
        share = len(before) / len(before + after)
        depth = sample.labels["depth"]
        assert depth / 100 - 0.2 * bool(stop) - 0.05 <= share <= depth / 100 + 0.05
        assert before.rstrip().endswith(stop) or depth == 100 or not before
    starts = {sample.context[:40] for sample in found if sample.labels["depth"] == max(DEPTHS)}
    assert len(starts) == 2, "offsets begin at different places"
    assert make().ingredients(context)["unspaced"] == 1
    assert "unspaced" not in make().ingredients(build())


def test_answers_can_be_made_to_end_at_their_limit_alone():
    """For measurements of time; it is another benchmark then, and the plain one keeps its name."""
    plain, whole = make(), make(to_the_limit=True)
    (sample,) = whole.samples(1, build())
    assert sample.min_new_tokens == sample.max_new_tokens == 64
    assert next(iter(plain.samples(1, build()))).min_new_tokens == 0
    assert build_hash(whole, build()) != build_hash(plain, build())
    assert "to_the_limit" not in plain.ingredients(build())
