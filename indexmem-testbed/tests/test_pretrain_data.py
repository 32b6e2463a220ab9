"""What is trained on: answers that the text gives, exact lengths, the same for the same step, nothing of evaluation."""

import random
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.ruler.suite import ruler
from indexmem.models.prompt import PromptFormat, encode
from indexmem.texts.documents import load_texts
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.dense import DENSE
from indexmem_testbed.documents import ANSWER, COPY, TASKS, UNKNOWABLE, DocumentMaker
from indexmem_testbed.exchanges import read
from indexmem_testbed.stream import PretrainStream
from indexmem_testbed.tokenizer import load_tokenizer

SEEDS = st.integers(0, 2**32)
LENGTH = 1024


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.fixture(scope="module")
def maker(tokenizer):
    return DocumentMaker(tokenizer, "\n\n".join(load_texts(["essays-train"])))


@pytest.fixture
def config():
    mixture = {"niah_multikey_1": 1.0, "niah_multivalue": 1.0, "vt": 0.5, "cwe": 0.5, "text": 0.5}
    stages = [{"length": 256, "share": 0.5, "dense": 0.3}, {"length": 1024, "share": 0.5}]
    return PretrainConfig(texts=("essays-train",), mixture=mixture, stages=stages, steps=8, step_tokens=2048)


def answers_of(document, tokenizer):
    """(text up to the answer, answer without its end mark) of every answered question."""
    marked = (document.weights == ANSWER).astype(int)
    starts, ends = (np.flatnonzero(np.diff(marked, prepend=0, append=0) == sign) for sign in (1, -1))
    ids = document.ids.tolist()
    assert all(ids[end - 1] == tokenizer.eos_token_id for end in ends)
    return [(tokenizer.decode(ids[:start]), tokenizer.decode(ids[start : end - 1])) for start, end in zip(starts, ends)]


@pytest.mark.parametrize("task", sorted(TASKS))
@settings(max_examples=5)
@given(seed=SEEDS)
def test_every_answer_follows_from_the_text_before_it(maker, tokenizer, task, seed):
    document = maker.make(task, LENGTH, random.Random(seed))
    assert document is not None and len(document) <= LENGTH
    answered = answers_of(document, tokenizer)
    assert answered
    for before, answer in answered:
        context = before.partition("</s>")[0]
        for word in re.findall(r"[\w-]{4,}", answer):
            assert word in context, f"{task}: {word}"


@settings(max_examples=10)
@given(seed=SEEDS)
def test_a_needle_answer_lists_the_values_of_its_keys(maker, tokenizer, seed):
    """Read independently of the code under test: by the lines that name the key."""
    document = maker.make("needles_values", LENGTH, random.Random(seed))
    for before, answer in answers_of(document, tokenizer):
        keys = before.rpartition("numbers for ")[2].removesuffix(" mentioned in the provided text are")
        context = before.partition("</s>")[0].partition("What are all")[0]
        expected = []
        for key in re.findall(r"[a-z]+-[a-z]+", keys):
            expected += [
                line.split(" is: ")[1][:7] for line in context.split("One of ")[1:] if f"for {key} is:" in line
            ]
        assert re.findall(r"\d{7}", answer) == expected


@settings(max_examples=8)
@given(seed=SEEDS)
def test_counted_words_are_the_most_frequent_ones(maker, tokenizer, seed):
    for task, top in (("cwe", 10), ("fwe", 3)):
        document = maker.make(task, LENGTH, random.Random(seed))
        ((before, answer),) = answers_of(document, tokenizer)
        text = before.rpartition("more often than others." if task == "cwe" else "appeared coded words. ")[2]
        listed = re.findall(r"[a-z-]{2,}", answer)
        body = text.partition("Question:")[0].split()
        counts = {word: body.count(word) for word in set(body) if re.fullmatch(r"[a-z-]{2,}", word)}
        least = min(counts[word] for word in listed)
        assert len(listed) == top
        assert sorted(counts.values(), reverse=True)[top - 1] == least


@pytest.mark.parametrize("task", [task.name for task in ruler()])
def test_the_first_question_of_a_document_is_worded_as_in_evaluation(maker, tokenizer, task):
    """Seen through the benchmark: replaying its draw gives the same question, prefix and accepted answers."""
    (benchmark,) = (benchmark for benchmark in ruler() if benchmark.name == task)
    build = BuildContext(tokenizer, LENGTH, 5, "\n\n".join(load_texts(["essays-train"])))
    (sample,) = benchmark.samples(1, build)
    exchanges = read(task, sample.context, sample.question, random.Random(0))
    assert (exchanges[0].question, exchanges[0].answer_prefix) == (sample.question, sample.answer_prefix)
    assert benchmark.score(exchanges[0].answer, sample) == 1.0
    prompt = PromptFormat.of(tokenizer)
    assert encode(tokenizer, prompt.context(sample.context))[0] == tokenizer.bos_token_id


def test_a_row_has_no_padding_and_weights_only_what_can_be_known(config, tokenizer):
    for step in (0, 7):
        ids_BL, weights_BL = PretrainStream(config)[step]
        length = config.stage(step).length
        assert ids_BL.shape == weights_BL.shape == (config.step_tokens // length, length)
        assert int(ids_BL.max()) < len(tokenizer)
        assert set(weights_BL.unique().tolist()) <= {np.float32(w / 10) for w in (UNKNOWABLE, 1, COPY, ANSWER)}
        assert (weights_BL == 1).any()


def test_batches_depend_on_the_step_alone_and_ranks_share_them(config):
    whole, again = PretrainStream(config), PretrainStream(config)
    resumed = dict(enumerate(again.batches(5), start=5))
    assert sorted(resumed) == [5, 6, 7]
    for step, (ids_BL, weights_BL) in resumed.items():
        assert torch.equal(ids_BL, whole[step][0]) and torch.equal(weights_BL, whole[step][1])
    for rank in range(2):
        part, _ = PretrainStream(config, rank, 2)[6]
        assert torch.equal(part, whole[6][0][rank::2])
    assert not torch.equal(whole[5][0], whole[6][0])


@pytest.mark.parametrize("kind", sorted(DENSE))
@settings(max_examples=30)
@given(seed=SEEDS, length=st.integers(2, 300), vocabulary=st.sampled_from([64, 4096]))
def test_what_counts_in_a_dense_sequence_came_before(kind, seed, length, vocabulary):
    document = DENSE[kind](length, vocabulary, np.random.default_rng(seed))
    assert len(document) == length
    ids = document.ids.tolist()
    assert ids[0] == 0 and 1 not in ids and max(ids) < vocabulary
    pairs = list(pairwise(ids))
    for place in np.flatnonzero(document.weights):
        assert pairs[place - 1] in pairs[: place - 1], "this token has followed the one before it earlier"
    assert set(document.weights.tolist()) <= {UNKNOWABLE, COPY}


def test_no_text_of_evaluation_is_in_training(config, tokenizer):
    """Runs of eight words: training texts and held-out essays share quotations at most, batches not even those."""
    heldout = " ".join(" ".join(load_texts(["essays-heldout"])).split())
    words = heldout.split(" ")
    shingles = {" ".join(words[start : start + 8]) for start in range(len(words) - 8)}
    trained = " ".join(" ".join(load_texts(config.texts)).split()).split(" ")
    seen = {" ".join(trained[start : start + 8]) for start in range(len(trained) - 8)}
    assert len(shingles & seen) < 3e-3 * len(shingles), "quotations that two essays share are all there is"
    text = tokenizer.decode(PretrainStream(config)[7][0].flatten().tolist())
    read_words = " ".join(text.split()).split(" ")
    read_shingles = {" ".join(read_words[start : start + 8]) for start in range(len(read_words) - 8)}
    assert not (read_shingles & (shingles - seen))
