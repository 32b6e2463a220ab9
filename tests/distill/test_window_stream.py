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

from indexmem.config.distill import DistillConfig
from indexmem.distill import data
from indexmem.distill.data import MicroBatch, Position, TextShare, WindowStream
from indexmem.errors import UserError

WORDS = TEXT.split()
TEXTS = [" ".join(WORDS[:count]) for count in range(10, 160, 3)]


def windows(micro_batch: MicroBatch) -> list[list[int]]:
    if micro_batch.packed:
        return [part.tolist() for part in micro_batch.ids_BL[0].split(micro_batch.lengths_D.tolist())]
    return [row[:length].tolist() for row, length in zip(micro_batch.ids_BL, micro_batch.lengths_D)]


def take(stream: WindowStream, count: int, size: int = 2, **where) -> list[list[list[list[int]]]]:
    return [[windows(batch) for batch in step.micro_batches] for step in islice(stream.steps(size, **where), count)]


def shared(documents: int, weights: list[float]) -> tuple[TextShare, ...]:
    """Shares of so many documents each."""
    return tuple(TextShare(range(n * documents, (n + 1) * documents), weight) for n, weight in enumerate(weights))


@pytest.mark.parametrize(
    ("shares", "expected"), [((), "3194465137376fbc"), (shared(25, [0.75, 0.25]), "8597f2e3f03d2b88")]
)
def test_the_stream_is_what_it_has_always_been(shares, expected):
    """Trained modules are named after their texts: equal names must mean equal data, in every version."""
    digest = hashlib.sha256()
    stream = WindowStream(TEXTS, tiny_tokenizer(), length=100, seed=5, shares=shares)
    for step in islice(stream.steps(3, per_step=2), 100):
        for batch in step.micro_batches:
            digest.update(repr((batch.ids_BL.tolist(), batch.lengths_D.tolist())).encode())
    assert digest.hexdigest()[:16] == expected


def test_a_checkpoint_from_before_there_were_shares_goes_on():
    stream = WindowStream(TEXTS, tiny_tokenizer(), length=100, seed=5)
    (*_, last) = islice(stream.steps(2), 30)
    ((epoch, document, begin, _),) = last.position.places
    old = {"epoch": epoch, "now": last.position.now, "document": document, "begin": begin}
    position = Position.load(old | {"buffer": last.position.buffer})
    assert take(stream, 10, position=position) == take(stream, 40)[30:]


@settings(max_examples=30)
@given(
    weights=st.lists(st.floats(0.05, 20), min_size=2, max_size=4),
    lengths=st.lists(st.integers(5, 150), min_size=1, max_size=6),
    packing=st.booleans(),
)
def test_tokens_are_shared_as_the_weights_say(weights, lengths, packing):
    """What was trained on and what waits in the buffer, together, are never more than a window off."""
    letters = "abcd"[: len(weights)]
    texts = [f"{letter} " * length for letter in letters for length in lengths]
    tokenizer = tiny_tokenizer("byte_level")
    shares = shared(len(lengths), weights)
    stream = WindowStream(texts, tokenizer, length=24, seed=1, packing=packing, shares=shares)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "SHUFFLE_BUFFER", 7)
        patch.setattr(data, "MIN_WINDOW", 5)
        seen: Counter[str] = Counter()
        for step in islice(stream.steps(3), 60):
            for ids in windows(step.micro_batches[0]):
                seen[tokenizer.decode(ids).strip()[0]] += len(ids)
            given = [place[-1] for place in step.position.places]
            waiting = Counter(letters[number // len(lengths)] for number, _ in step.position.buffer)
            for letter, tokens in zip(letters, given):
                assert seen[letter] <= tokens <= seen[letter] + 24 * waiting[letter]
            levels = [tokens / weight for tokens, weight in zip(given, weights)]
            assert max(levels) - min(levels) <= 24 / min(weights) * (1 + 1e-9)


def test_a_weighted_text_has_epochs_of_its_own(monkeypatch):
    """A short text with a large weight comes again and again, while none of the long one's windows comes twice."""
    monkeypatch.setattr(data, "SHUFFLE_BUFFER", 10)
    texts = [f"{letter} " * 75 for letter in "Zabcdefghijklmnopqrstuvwxy"]
    shares = (TextShare(range(1), 0.5), TextShare(range(1, len(texts)), 0.5))
    stream = WindowStream(texts, tiny_tokenizer("byte_level"), length=160, seed=0, shares=shares)
    seen = [tiny_tokenizer().decode(ids)[0] for step in take(stream, 20) for batch in step for ids in batch]
    long = [letter for letter in seen if letter != "Z"]
    assert len(seen) - len(long) > 15 and len(set(long)) == len(long) > 15


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
    weights=st.lists(st.floats(0.05, 20), max_size=3),
    packing=st.booleans(),
    done=st.integers(1, 12),
    world=st.integers(1, 3),
    block=st.integers(1, 5),
)
def test_a_position_leads_to_the_same_windows_on_any_number_of_workers(lengths, weights, packing, done, world, block):
    per_share = [*lengths, 100]
    shares = shared(len(per_share), weights)
    texts = [" ".join(WORDS[n : n + length]) for n, length in enumerate(per_share * max(1, len(shares)))]
    stream = WindowStream(texts, tiny_tokenizer(), 24, seed=len(lengths), packing=packing, shares=shares)
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


def test_a_short_text_with_a_weight_is_named(tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "long.txt").write_text(TEXT)
    texts = [{"name": str(tmp_path / name), "weight": 1} for name in ("long.txt", "short.txt")]
    with pytest.raises(UserError, match=r"No document of '.*short.txt' in distill.texts has 64 tokens"):
        WindowStream.of(DistillConfig(texts=texts), tiny_tokenizer()).check()
    WindowStream.of(DistillConfig(texts=[text["name"] for text in texts]), tiny_tokenizer()).check()
