"""Every generated sample, checked by a reader that knows the published wording and not how samples are made."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import KINDS, SENTENCES, TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, Sample, build_hash
from indexmem.benchmarks.registry import get_benchmark
from indexmem.benchmarks.ruler.haystack import NOISE_LINE
from indexmem.benchmarks.ruler.niah import niah_questions
from indexmem.errors import UserError
from indexmem.evaluate.work import contexts_of
from indexmem.models.prompt import PromptFormat, encode

# name -> (needles, answers, pattern of a key, pattern of a value), from RULER's table; None: as many as there is room
WORDS, NUMBER, UUID = r"[a-z]+-[a-z]+", r"\d{7}", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
TABLE = {
    "niah_single_1": (1, 1, WORDS, NUMBER),
    "niah_single_2": (1, 1, WORDS, NUMBER),
    "niah_single_3": (1, 1, WORDS, UUID),
    "niah_multikey_1": (4, 1, WORDS, NUMBER),
    "niah_multikey_2": (None, 1, WORDS, NUMBER),
    "niah_multikey_3": (None, 1, UUID, UUID),
    "niah_multivalue": (4, 4, WORDS, NUMBER),
    "niah_multiquery": (4, 4, WORDS, NUMBER),
}


def build_for(kind: str = "byte_level", chat: bool = True, length: int = 1024, seed: int = 42) -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer(kind, chat), length=length, seed=seed, haystack=TEXT)


def tokens_of(sample, build: BuildContext) -> int:
    """Size of the sample as the engine sees it, generation allowance included."""
    prompt = PromptFormat.of(build.tokenizer)
    context = encode(build.tokenizer, prompt.context(sample.context))
    question = encode(build.tokenizer, prompt.question(sample.question, sample.answer_prefix))
    return len(context) + len(question) + sample.max_new_tokens


def reread(sample) -> str:
    """Check wording, needles and answers of a sample; returns the filler, that is the context without the needles."""
    needle_count, answer_count, key_pattern, value_pattern = TABLE[sample.benchmark]
    kind = "number" if value_pattern == NUMBER else "uuid"
    needle = re.compile(rf"One of the special magic {kind}s for (\S+) is: (\S+)\.")
    intro, body = sample.context.split("\n", 1)
    pairs = needle.findall(body)
    assert all(re.fullmatch(key_pattern, key) and re.fullmatch(value_pattern, value) for key, value in pairs)
    assert needle_count is None or len(pairs) == needle_count
    assert len(set(pairs)) == len(pairs) == len({value for _, value in pairs}), "every needle and value only once"
    assert len({key for key, _ in pairs}) == (1 if sample.benchmark == "niah_multivalue" else len(pairs))

    plural = answer_count > 1
    assert intro == (
        f"{f'Some special magic {kind}s are' if plural else f'A special magic {kind} is'} hidden within the following "
        f"text. Make sure to memorize it. I will quiz you about the {kind}{'s' if plural else ''} afterwards."
    )
    asked = re.fullmatch(
        rf"What {'are all' if plural else 'is'} the (special magic {kind}{'s' if plural else ''} for (.+) mentioned in "
        r"the provided text)\?",
        sample.question,
    )
    assert asked, sample.question
    assert sample.answer_prefix == f"The {asked[1]} {'are' if plural else 'is'}"
    queried = set(re.split(r", and |, ", asked[2]))
    answers = [value for key, value in pairs if key in queried]
    assert set(sample.references) == set(answers)
    assert len(sample.references) == answer_count

    filler = needle.sub("", body)
    outside = filler + sample.question + sample.answer_prefix
    assert not any(value in outside for _, value in pairs), "the answer is in the needle alone"
    assert not any(key in filler for key, _ in pairs)
    return filler


def page_numbers(filler: str) -> list[int]:
    return [int(number) for number in re.findall(r"Page (\d+) ", filler)]


def one_unit_more(sample, filler: str, build: BuildContext):
    """The sample with the unit that would come next."""
    if sample.benchmark == "niah_single_1":
        extra = "\n" + NOISE_LINE
    else:
        extra = " " + SENTENCES[(page_numbers(filler)[-1] + 1) % len(SENTENCES)]
    return replace(sample, context=sample.context.removesuffix("\n") + extra + "\n")


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLE)
def test_every_sample_reads_as_published_and_fits(name, kind, chat):
    build = build_for(kind, chat)
    for index, sample in enumerate(get_benchmark(name).samples(3, build)):
        filler = reread(sample)
        assert sample.id == f"{name}/{index}"
        assert sample.benchmark == name
        assert tokens_of(sample, build) <= build.length
        assert sample.context.endswith("\n")
        if name == "niah_single_1":
            assert set(filler.split("\n")) <= {NOISE_LINE, ""}


@pytest.mark.parametrize("kind", ["words", "byte_level"])
@pytest.mark.parametrize("name", ["niah_single_1", "niah_single_2", "niah_multikey_1"])
@settings(max_examples=12, deadline=None)
@given(length=st.integers(800, 3000), seed=st.integers(0, 2**32))
def test_one_more_unit_would_not_fit(name, kind, length, seed):
    build = build_for(kind, length=length, seed=seed)
    (sample,) = get_benchmark(name).samples(1, build)
    filler = reread(sample)
    assert tokens_of(sample, build) <= length < tokens_of(one_unit_more(sample, filler, build), build)


@pytest.mark.parametrize("name", ["niah_multikey_2", "niah_multikey_3"])
def test_a_haystack_of_needles_is_filled_to_within_a_needle(name):
    build = build_for(length=2000)
    for sample in get_benchmark(name).samples(3, build):
        line = max(sample.context.splitlines(), key=len)
        assert 0 <= build.length - tokens_of(sample, build) < 2 * len(encode(build.tokenizer, line))


def test_essay_filler_is_the_text_in_order_from_a_place_of_its_own():
    starts = set()
    for sample in get_benchmark("niah_single_2").samples(8, build_for(length=2048)):
        pages = page_numbers(reread(sample))
        assert len(pages) > 20
        assert all(after == (before + 1) % len(SENTENCES) for before, after in pairwise(pages))
        starts.add(pages[0])
    assert len(starts) > 4


def test_a_short_text_is_cycled():
    build = replace(build_for(length=1500), haystack="Just this. And that.")
    (sample,) = get_benchmark("niah_single_2").samples(1, build)
    assert reread(sample).count("And that.") > 10


def test_needles_reach_every_part_of_the_text():
    depths = []
    for sample in get_benchmark("niah_single_1").samples(80, build_for("words", length=1024)):
        lines = sample.context.splitlines()[1:]
        depths.append(next(i for i, line in enumerate(lines) if "magic" in line) / (len(lines) - 1))
    assert min(depths) < 0.1
    assert max(depths) > 0.9
    assert 0.4 < sum(depths) / len(depths) < 0.6


@pytest.mark.parametrize("name", TABLE)
def test_more_samples_extend_the_list(name):
    benchmark = get_benchmark(name)
    few, many = list(benchmark.samples(2, build_for())), list(benchmark.samples(5, build_for()))
    assert many[:2] == few
    assert len({sample.references for sample in many}) == 5


def test_seeds_and_benchmarks_draw_apart():
    drawn = [
        next(get_benchmark(name).samples(1, build_for(seed=seed))).references
        for name in ("niah_single_1", "niah_single_2")
        for seed in (0, 1)
    ]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("length", [1, 150, 250])
def test_a_length_without_room_says_what_is_needed(name, length):
    build = build_for(length=length)
    with pytest.raises(UserError, match=rf"'{name}' does not fit into {length} tokens") as error:
        next(get_benchmark(name).samples(1, build))
    needed = int(re.search(r"grid.length to at least (\d+)", str(error.value))[1])
    assert needed > length
    (sample,) = get_benchmark(name).samples(1, replace(build, length=needed))
    assert tokens_of(sample, build) <= needed


def test_empty_haystack_text_matters_only_where_it_is_read():
    build = replace(build_for(), haystack=" \n")
    assert list(get_benchmark("niah_single_1").samples(1, build))
    with pytest.raises(UserError, match=r"grid\.haystack"):
        next(get_benchmark("niah_single_2").samples(1, build))


def test_an_overridden_generation_limit_leaves_more_room_for_text():
    build = build_for()
    (usual,) = get_benchmark("niah_single_2").samples(1, build)
    (short,) = get_benchmark("niah_single_2").samples(1, replace(build, max_new_tokens=16))
    assert (usual.max_new_tokens, short.max_new_tokens) == (128, 16)
    assert len(short.context) > len(usual.context)


def test_score_is_the_share_of_values_found():
    benchmark = get_benchmark("niah_multivalue")
    four = ("1111111", "2222222", "3333333", "4444444")
    sample = Sample("niah_multivalue/0", "niah_multivalue", "", "", "", four, 8)
    assert benchmark.score(" 1111111, 2222222", sample) == 0.5


def test_build_hash_names_the_recipe():
    essay, build = get_benchmark("niah_single_2"), build_for()
    assert build_hash(essay, build) == build_hash(essay, build_for())
    variants = [
        replace(build, length=1025),
        replace(build, seed=43),
        replace(build, haystack=TEXT + " More."),
        replace(build, max_new_tokens=16),
        replace(build, tokenizer=tiny_tokenizer("byte_level", chat=False)),
        replace(build, tokenizer=tiny_tokenizer("words")),
    ]
    hashes = [build_hash(essay, variant) for variant in [build, *variants]]
    hashes += [build_hash(get_benchmark("niah_single_3"), build), build_hash(replace(essay, version=2), build)]
    assert len(set(hashes)) == len(hashes)


def test_build_hash_ignores_what_the_samples_do_not_use():
    noise, build = get_benchmark("niah_single_1"), build_for()
    assert build_hash(noise, build) == build_hash(noise, replace(build, haystack="Another text."))
    assert build_hash(noise, build) == build_hash(noise, replace(build, max_new_tokens=128))


CHINESE = "".join(
    f"\u7b2c{number}\u9875\u8bb2\u7684\u662f\u65e7\u77f3\u6865\u548c\u51ac\u5929\u3002" for number in range(400)
)


@pytest.mark.parametrize(
    "haystack", [CHINESE, CHINESE.replace("\u3002", ""), CHINESE[:7000].replace("\u3002", "\u3002\n")]
)
def test_a_haystack_without_spaces_fits_and_hides_the_needle(haystack):
    build = replace(build_for("byte_level"), haystack=haystack)
    (sample,) = get_benchmark("niah_single_2").samples(1, build)
    assert sample.references[0] in sample.context
    unit = 3 * 100  # bytes, and so tokens, of the longest unit
    assert build.length - 2 * unit < tokens_of(sample, build) <= build.length


def test_the_identity_of_texts_with_spaces_is_what_it_was_and_that_of_others_says_how_they_were_cut():
    task = get_benchmark("niah_single_2")
    assert set(task.ingredients(build_for())) == {"filler", "words"}
    assert task.ingredients(replace(build_for(), haystack=CHINESE))["unspaced"] == 1


@pytest.mark.parametrize("haystack", ["noise", "essay", "needle"])
def test_questions_about_one_text_ask_for_each_of_its_needles(haystack):
    (task,) = niah_questions(questions=5, haystack=haystack, value="uuid")
    build = build_for(length=1200)
    samples = list(task.samples(12, build))
    assert [sample.id for sample in samples] == [f"niah_questions/{number}" for number in range(12)]
    assert contexts_of(samples) == [0] * 5 + [1] * 5 + [2] * 2
    assert list(task.samples(7, build)) == samples[:7], "a longer list extends a shorter one"
    for sample in samples:
        (reference,) = sample.references
        (key,) = re.findall(r"special magic uuid for (\S+) mentioned", sample.question)
        assert f"One of the special magic uuids for {key} is: {reference}." in sample.context
        before = sample.context[: sample.context.index(reference)]
        assert len(before) / len(sample.context) == pytest.approx(sample.labels["depth"], abs=0.3)
    assert len({sample.references for sample in samples}) == 12
    assert max(tokens_of(sample, build) for sample in samples[:5]) <= 1200
    assert "Some special magic uuids are hidden" in samples[0].context


def test_the_recipe_tells_how_many_questions_and_of_what():
    build = build_for()
    hashes = {
        build_hash(task, build)
        for settings in ({}, {"questions": 4}, {"value": "uuid"}, {"haystack": "noise"}, {"key": "uuid"})
        for task in niah_questions(**settings)
    }
    assert len(hashes) == 5


def test_turns_ask_the_same_questions_in_one_sample():
    build = build_for(length=2400)
    (apart,), (together,) = (niah_questions(questions=3, turns=turns) for turns in (False, True))
    (sample, other) = together.samples(2, build)
    assert (sample.id, other.id) == ("niah_turns/0", "niah_turns/1")
    assert len(sample.turns) == 2
    for asked in sample.asked:
        (key,) = re.findall(r"special magic number for (\S+) mentioned", asked.question)
        assert f"One of the special magic numbers for {key} is: {asked.references[0]}." in sample.context
    assert len({asked.references for asked in sample.asked}) == 3
    assert len(list(apart.samples(3, build))) == 3
    read = sum(tokens_of(asked, build) for asked in sample.asked)
    context = len(encode(build.tokenizer, PromptFormat.of(build.tokenizer).context(sample.context)))
    assert read - 2 * context <= 2400, "context, all questions and all answers"
