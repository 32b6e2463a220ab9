"""Which samples' kept tokens are stored, and what their rows say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indexmem.evaluate.examples import MOST_LOSSES, Losses, retention_rows, token_texts
from indexmem.eviction.context import RowCache
from indexmem.results.head_bits import kept_by_head
from indexmem.results.parts import validated
from indexmem.results.schema import RETENTION_SCHEMA, SCHEMA_VERSION


def rows_of(full: float | None, *scores: float | None, benchmark: str = "b") -> list[dict]:
    scored = [("full", "full", full), *((f"cell {i}", "knorm", score) for i, score in enumerate(scores))]
    return [{"cell_id": c, "method": m, "score": s, "benchmark": benchmark} for c, m, s in scored]


def test_a_sample_is_stored_where_a_cell_loses_more_than_ever() -> None:
    losses = Losses()
    assert losses.tells(rows_of(1.0, 1.0, 0.0), stored=True)
    assert not losses.tells(rows_of(1.0, 1.0, 0.0), stored=False), "cell 1 has lost all before"
    assert losses.tells(rows_of(1.0, 0.5, 1.0), stored=False)
    assert not losses.tells(rows_of(1.0, 0.45, 1.0), stored=False), "hardly more"
    assert losses.tells(rows_of(1.0, 0.0, 1.0), stored=False)
    assert not losses.tells(rows_of(0.0, 0.0, 0.0), stored=False), "the full cache has no answer, either"
    assert not losses.tells(rows_of(None, 0.0, 0.0), stored=False)
    assert not losses.tells(rows_of(1.0, None), stored=False), "failed"


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=30, max_size=30), max_size=40))
def test_few_samples_are_stored_whatever_is_lost_and_the_first_ones_always(scores: list[list[float]]) -> None:
    losses = Losses()
    told = [losses.tells(rows_of(1.0, *each), stored=place < 2) for place, each in enumerate(scores)]
    assert all(told[:2])
    assert sum(told[2:]) <= MOST_LOSSES
    if told and sum(told[2:]) < MOST_LOSSES:
        for cell in range(30):
            lost = [1 - each[cell] for each in scores]
            kept = [loss for loss, stored in zip(lost, told) if stored]
            assert max(kept) == max(lost), "the largest loss of every cell is among them"


class Bytes:
    """A token a byte, as byte-level tokenizers spell rare characters."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


@given(st.text())
def test_tokens_of_one_character_have_its_text_once(text: str) -> None:
    ids = list(text.encode("utf-8", "replace"))
    texts = token_texts(Bytes(), ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == Bytes().decode(ids)
    if "\ufffd" not in text:
        assert [one for one in texts if one] == list(Bytes().decode(ids))


@pytest.mark.parametrize("ids", [[0xE2, 0x80], [0xFF, 0x41, 0xFF], [0xE2] * 9])
def test_bytes_that_are_no_character_lose_no_token(ids: list[int]) -> None:
    assert len(token_texts(Bytes(), ids)) == len(ids)


def test_a_row_says_which_head_kept_which_token() -> None:
    kept = [torch.tensor([[0, 2], [1, 1]]), torch.tensor([[0, 1], [0, 2]])]
    counts = [torch.tensor([2, 1]), torch.tensor([2, 2])]
    cache = RowCache([], [], kept, counts)
    row = {"cell_id": "c", "sample_id": "b/0", "repeat": 0}
    (found,) = retention_rows([row], [cache], "why?", list(b"abc"), Bytes())
    validated([found], RETENTION_SCHEMA)
    kept_LHT = kept_by_head(found["kept_heads"], found["kv_heads"], SCHEMA_VERSION)
    assert kept_LHT.astype(int).tolist() == [[[1, 0, 1], [0, 1, 0]], [[1, 1, 0], [1, 0, 1]]]
    assert found["retention"] == pytest.approx([0.75, 0.5, 0.5])
    assert found["tokens"] == ["a", "b", "c"]
