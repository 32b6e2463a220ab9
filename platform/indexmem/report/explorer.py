"""Data of the sample explorer: every sample's score in every cell, and what the models said to the telling ones.

Answers take most of a report's bytes. Where not all fit, those of the samples on which cells disagree most are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.report.pack import percents
from indexmem.report.text import natural, references_text, visible
from indexmem.results.schema import OK

SHOWN_CHARACTERS = 6_000_000  # of answers in one report; gzip leaves a fifth
MAX_ANSWER = 1_000  # characters of one shown answer
MAX_TOLD = 60  # samples of one benchmark whose answers are in the page
COLUMNS = ("method", "budget", "sample_id", "repeat", "score", "status", "prediction", "error_class", "error_message")


def sample_groups(
    rows: pa.Table, benchmarks: Sequence[str], first: Collection[str] = (), characters: int = SHOWN_CHARACTERS
) -> list[dict[str, Any]]:
    """One JSON-ready group per benchmark, for the rows of one model; samples in `first` are told before others."""
    share = characters // max(1, len(benchmarks))
    return [_group(rows.filter(pc.equal(rows["benchmark"], name)), name, first, share) for name in benchmarks]


def _group(rows: pa.Table, benchmark: str, first: Collection[str], characters: int) -> dict[str, Any]:
    ids = sorted(pc.unique(rows["sample_id"]).to_pylist(), key=natural)
    s = pc.index_in(rows["sample_id"], pa.array(ids)).to_numpy()
    names = rows.select(["method", "budget"]).group_by(["method", "budget"]).aggregate([]).to_pylist()
    cells = {(item["method"], item["budget"]): index for index, item in enumerate(names)}
    c = np.array([cells[pair] for pair in zip(rows["method"].to_pylist(), rows["budget"].to_pylist())])
    scores_CS = _means(rows, c, s, (len(cells), len(ids)))
    told = _told(scores_CS, ids, first, _typical(rows) * len(cells), characters)
    table = _Texts()
    said = _answers(rows.filter(pa.array(np.isin(s, told))), ids, told, table)
    asked = zip(*(rows[name].to_pylist() for name in ("sample_id", "references", "labels")))
    references = {name: (found or (), labels) for name, found, labels in asked}
    return {
        "benchmark": benchmark,
        "ids": list(map(visible, ids)),
        "references": [references_text(*references[name], MAX_ANSWER) for name in ids],
        "told": told,
        "cells": [
            {"method": m, "budget": b, "scores": percents(scores_CS[index]), "said": said.get((m, b), {})}
            for (m, b), index in cells.items()
        ],
        "texts": table.texts,
    }


class _Texts:
    """Every different text once; answers are numbers into it, because failed cells repeat themselves."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def index(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


def _means(rows: pa.Table, c: np.ndarray, s: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """scores_CS: repeats averaged, NaN where a cell has no answer."""
    score = rows["score"].to_numpy()
    answered = np.array([status == OK for status in rows["status"].to_pylist()]) & ~np.isnan(score)
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (c[answered], s[answered]), score[answered])
    np.add.at(count, (c[answered], s[answered]), 1)
    return np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)


def _told(scores_CS: np.ndarray, ids: Sequence[str], first: Collection[str], cost: float, characters: int) -> list[int]:
    """Numbers of the samples whose answers are in the page, ascending; at least one."""
    spread = np.nanmax(np.nan_to_num(scores_CS, nan=0.0), axis=0) - np.nanmin(np.nan_to_num(scores_CS, nan=0.0), axis=0)
    middle = np.abs(np.nan_to_num(scores_CS, nan=0.0).mean(axis=0) - 0.5)
    order = sorted(range(len(ids)), key=lambda i: (ids[i] not in first, -spread[i], middle[i], i))
    return sorted(order[: int(max(1, min(MAX_TOLD, characters // max(1.0, cost))))])


def _typical(rows: pa.Table) -> float:
    """Mean characters of an answer as shown."""
    lengths = pc.min_element_wise(pc.utf8_length(pc.fill_null(rows["prediction"], "")), MAX_ANSWER)
    return float(pc.mean(lengths).as_py() or 0.0)


def _answers(
    rows: pa.Table, ids: Sequence[str], told: Sequence[int], table: _Texts
) -> dict[tuple[str, str], dict[int, int]]:
    """cell -> sample number -> number of the text of its first repeat, or of what failed."""
    numbers = {ids[number]: number for number in told}
    found: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows.select(list(COLUMNS)).sort_by("repeat").to_pylist():
        failed = f"failed: {row['error_class']}: {row['error_message']}"
        text = row["prediction"] if row["status"] == OK else failed
        index = table.index(visible(text or "", MAX_ANSWER))
        found.setdefault((row["method"], row["budget"]), {}).setdefault(numbers[row["sample_id"]], index)
    return found
