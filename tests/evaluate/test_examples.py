"""Which samples' kept tokens are stored, and what their rows say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from null_grid import null_assignment, null_samples, null_spec
from tiny_models import tiny_backbone
from tiny_tokenizers import SENTENCES

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.examples import MOST_LOSSES, Losses, retention_rows, token_texts
from indexmem.evaluate.work import GridCell, Task, Unit
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


def test_what_cells_kept_of_a_sample_that_they_lose_is_stored_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"methods": ["full", "knorm"], "ratios": [0.8]}
    spec = validate({"eviction": {"sinks": 2}, "grid": grid}, "test")
    methods = {config.label: config for config in spec.grid.methods}
    provenance = {"git_commit": "", "versions": {}, "host": ""}
    evaluator = CellEvaluator.load(spec, methods, None, provenance, tiny_backbone())
    found = [
        GridCell(label, config, Budget.of_ratio(ratio), "niah_single_1", "b", "")
        for (label, config), ratio in zip(methods.items(), (0.0, 0.8))
    ]
    scores = iter([1.0, 1.0, 1.0, 0.0, 1.0, 0.0])  # of full cache and knorm: equal, lost, lost again
    monkeypatch.setattr(
        type(evaluator.benchmarks["niah_single_1"]), "score", lambda benchmark, text, sample: next(scores)
    )
    stored = []
    for index in range(3):
        text = " ".join(SENTENCES[:4])
        sample = Sample(f"niah_single_1/{index}", "niah_single_1", text, "what?", "", ("x",), 4)
        rows, retention = evaluator.evaluate([Task(sample, tuple(found))])
        assert [row["status"] for row in rows] == ["ok", "ok"]
        stored.append([row["cell_id"] for row in retention])
    assert stored == [[], ["full", "knorm"], []]


def test_further_methods_keep_what_is_kept_of_a_sample_already(tmp_path: Path) -> None:
    spec = null_spec(tmp_path, "grid.samples=6", "grid.benchmarks=[null_a]")
    assignment = null_assignment(spec)
    unit = Unit.of("null_a", tuple(range(6)), np.ones((6, len(assignment.cells["null_a"])), bool))
    known = replace(assignment, examples=frozenset({null_samples(spec)["null_a"][4].id}))
    asked = [[task.keep_retention for task in one.tasks(unit)] for one in (assignment, known)]
    assert asked == [[True, True, False, False, False, False], [True, True, False, False, True, False]]
