"""The stream of windows: the same for all readers and from any place on, documents kept apart, nothing read twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.distill import data
from indexmem.distill.data import MicroBatch, Position, WindowStream
from indexmem.errors import UserError

WORDS = TEXT.split()
TEXTS = [" ".join(WORDS[:count]) for count in range(10, 160, 3)]


def windows(micro_batch: MicroBatch) -> list[list[int]]:
    if micro_batch.packed:
        return [part.tolist() for part in micro_batch.ids_BL[0].split(micro_batch.lengths_D.tolist())]
    return [row[:length].tolist() for row, length in zip(micro_batch.ids_BL, micro_batch.lengths_D)]


def take(stream: WindowStream, count: int, size: int = 2, **where) -> list[list[list[list[int]]]]:
    return [[windows(batch) for batch in step.micro_batches] for step in islice(stream.steps(size, **where), count)]


def test_the_stream_is_what_it_has_always_been():
    """Trained modules are named after their texts: equal names must mean equal data, in every version."""
    digest = hashlib.sha256()
    for step in islice(WindowStream(TEXTS, tiny_tokenizer(), length=100, seed=5).steps(3, per_step=2), 100):
        for batch in step.micro_batches:
            digest.update(repr((batch.ids_BL.tolist(), batch.lengths_D.tolist())).encode())
    assert digest.hexdigest()[:16] == "3194465137376fbc"


@pytest.mark.parametrize("packing", [False, True])
def test_ranks_share_the_stream_without_overlap(packing):
    stream = WindowStream(TEXTS, tiny_tokenizer(), length=50, seed=3, packing=packing)
    whole = take(stream, 4, per_step=3)
    assert [len(step) for step in whole] == [3, 3, 3, 3]
    for world in (2, 3):
        for rank in range(world):
            assert take(stream, 4, per_step=3, rank=rank, world=world) == [step[rank::world] for step in whole]


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=12),
    packing=st.booleans(),
    done=st.integers(1, 12),
    world=st.integers(1, 3),
    block=st.integers(1, 5),
)
def test_a_position_leads_to_the_same_windows_on_any_number_of_workers(lengths, packing, done, world, block):
    texts = [" ".join(WORDS[:length]) for length in (*lengths, 100)]
    stream = WindowStream(texts, tiny_tokenizer("words"), 24, seed=len(lengths), packing=packing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "SHUFFLE_BUFFER", 7)
        patch.setattr(data, "MIN_WINDOW", 5)
        patch.setattr(data, "MOST_BLOCKS", block)
        whole = take(stream, done + 10, per_step=3)
        (*_, last) = islice(stream.steps(2, per_step=3), done)
        for rank in range(world):
            where = {"per_step": 3, "rank": rank, "world": world, "position": last.position}
            assert take(stream, 10, **where) == [step[rank::world] for step in whole[done:]]


def test_resuming_tokenises_documents_of_the_buffer_and_none_before(tmp_path):
    read: Counter[int] = Counter()

    class Counting(WindowStream):
        def tokens(self, document):
            read[document] += 1
            return super().tokens(document)

    texts = [" ".join(WORDS[n : n + 150]) for n in range(2000)]
    stream = Counting(texts, tiny_tokenizer("words"), length=100, seed=0)
    (*_, last) = islice(stream.steps(4), 300)
    assert sum(read.values()) > 1000
    torch.save(vars(last.position), tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 40_000
    position = Position(**torch.load(tmp_path / "state.pt", weights_only=True))
    read.clear()
    next(stream.steps(4, position=position))
    assert sum(read.values()) < 270


@pytest.mark.parametrize("packing", [False, True])
def test_every_window_comes_once_an_epoch_and_holds_one_document(packing, monkeypatch):
    monkeypatch.setattr(data, "SHUFFLE_BUFFER", 20)
    letters = "abcdefghij"
    texts = [f"{letter} " * (90 + 13 * number) for number, letter in enumerate(letters)]
    stream = WindowStream(texts, tiny_tokenizer("byte_level"), length=80, seed=0, packing=packing)
    counts: Counter[str] = Counter()
    for step in islice(stream.steps(4), 100):
        for ids in windows(step.micro_batches[0]):
            text = tiny_tokenizer().decode(ids)
            assert len(set(text) & set(letters)) == 1 and 64 <= len(ids) <= 80
            counts[text.strip()[0]] += 1
    cut = {letter: len(stream.tokens(n)) // 80 + (len(stream.tokens(n)) % 80 >= 64) for n, letter in enumerate(letters)}
    epochs = [counts[letter] / cut[letter] for letter in letters]
    assert max(epochs) - min(epochs) <= 3, "what is in the buffer has not come yet"
    assert min(epochs) > 10


def test_a_packed_row_is_nearly_full_and_its_windows_are_of_similar_length():
    stream = WindowStream(TEXTS, tiny_tokenizer(), length=128, seed=0, packing=True)
    batches = [step.micro_batches[0] for step in islice(stream.steps(8), 60)]
    assert all(batch.ids_BL.shape == (1, int(batch.lengths_D.sum())) for batch in batches)
    tokens = [batch.ids_BL.shape[1] for batch in batches]
    assert max(tokens) <= 8 * 128
    assert sum(tokens) > 0.9 * 8 * 128 * len(tokens)
    assert sum(batch.padding for batch in batches) / len(batches) < 0.1


def test_windows_of_a_padded_micro_batch_are_of_similar_length():
    stream = WindowStream(TEXTS, tiny_tokenizer(), length=128, seed=0)
    padding = {}
    for size in (1, 8):
        batches = [step.micro_batches[0] for step in islice(stream.steps(size), 320 // size)]
        padding[size] = sum(batch.padding for batch in batches) / len(batches)
        assert all(batch.ids_BL.shape == (size, batch.lengths_D.max()) for batch in batches)
    assert padding[1] == 0
    assert padding[8] < 0.05, "mixed at random, about a quarter would be padding"


def test_short_texts_are_refused():
    WindowStream(["short", TEXT], tiny_tokenizer(), length=80, seed=0).check()
    WindowStream(["é" * 40], tiny_tokenizer(), length=80, seed=0).check()
    with pytest.raises(UserError, match=r"No document of distill\.texts has 64 tokens"):
        WindowStream(["short", "long" * 20], tiny_tokenizer("words"), length=80, seed=0).check()
