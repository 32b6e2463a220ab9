"""A night's rows: what was asked and how it was answered, by cell and sample, to lay nights side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.nightly import LAST_LOSSES
from indexmem.nightly.facts import FACT_COLUMNS, Facts
from indexmem.nightly.speeds import TIME_COLUMNS, Times, times_of
from indexmem.results.schema import OK
from indexmem.results.store import RowStore
from indexmem.results.units import Floats

CELL_COLUMNS = ("method", "budget", "benchmark", "model_fingerprint", "benchmark_build", "question_aware")
ROW_COLUMNS = tuple(
    dict.fromkeys((*CELL_COLUMNS, "sample_id", "repeat", "score", "group", "status", *FACT_COLUMNS, *TIME_COLUMNS))
)


class NightCell(NamedTuple):
    """What is compared between nights. Weights and code, which every night renews, are no part of it."""

    method: str
    budget: str
    benchmark: str
    build: str  # model, build of the benchmark and protocol: equal ones have equal samples


NightScores = Mapping[NightCell, Mapping[str, float]]  # -> sample -> mean score of its repeats


@dataclass(frozen=True)
class SuiteRows:
    """What a suite stored, reduced to what is compared."""

    rows: int
    failed: int
    asked: Mapping[NightCell, int]  # samples that have a row, be it a failed one
    scores: NightScores
    groups: Mapping[str, str]  # sample -> its group, of samples that have one
    times: Times
    facts: Facts
    commits: tuple[str, ...]  # of the code that computed them
    losses: Mapping[str, float]  # "loss indexer" -> of a training's last steps

    @classmethod
    def read(cls, suite: Path) -> SuiteRows:
        """All rows of a suite's run root; no rows where nothing is stored."""
        folder = suite / "results" / "rows"
        partitions = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        rows = RowStore(suite / "results").read(partitions, columns=ROW_COLUMNS)
        finished = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.is_valid(rows["score"])))
        losses = suite / LAST_LOSSES
        grouped = rows.filter(pc.is_valid(rows["group"]))  # rows from before there were groups have none
        return cls(
            rows=rows.num_rows,
            failed=pc.sum(pc.not_equal(rows["status"], OK)).as_py() or 0,
            asked=_asked(rows),
            scores=_scores(finished),
            groups=dict(zip(grouped["sample_id"].to_pylist(), grouped["group"].to_pylist())),
            times=times_of(finished),
            facts=Facts.of(suite, rows),
            commits=tuple(sorted(filter(None, pc.unique(rows["git_commit"]).to_pylist()))),
            losses=json.loads(losses.read_bytes()) if losses.is_file() else {},
        )


def columns(samples: Sequence[str], nights: Sequence[Mapping[str, float]]) -> Floats:
    """[S, nights]: scores of these samples; NaN where a night has none."""
    found = [[night.get(sample, np.nan) for sample in samples] for night in nights]
    return np.array(found, dtype=np.float64).reshape(len(nights), len(samples)).T


def over_cells(scores: NightScores, cells: Sequence[NightCell]) -> dict[str, float]:
    """Sample -> its mean over those of `cells` that ask it, for samples that have a score in all of these. A benchmark
    of a suite has one build, so a sample's name is enough.

    Samples are the unit of noise: a method's budgets answer the same questions and are wrong together.
    """
    by_build: dict[str, list[NightCell]] = {}
    for cell in cells:
        by_build.setdefault(cell.build, []).append(cell)
    means: dict[str, float] = {}
    for group in by_build.values():
        found = [scores.get(cell, {}) for cell in group]
        for sample in set.intersection(*(set(each) for each in found)):
            means[sample] = sum(each[sample] for each in found) / len(found)
    return means


def _cell(method: str, budget: str, benchmark: str, model: str, build: str, question_aware: bool) -> NightCell:
    return NightCell(method, budget, benchmark, f"{model}-{build}" + ("-question_aware" if question_aware else ""))


def _asked(rows: pa.Table) -> dict[NightCell, int]:
    counts = rows.group_by(CELL_COLUMNS).aggregate([("sample_id", "count_distinct")])
    cells = map(_cell, *(counts[name].to_pylist() for name in CELL_COLUMNS))
    return dict(zip(cells, counts["sample_id_count_distinct"].to_pylist()))


def _scores(finished: pa.Table) -> NightScores:
    """Finished rows alone: a failed sample has no score and is reported elsewhere."""
    means = finished.group_by([*CELL_COLUMNS, "sample_id"]).aggregate([("score", "mean")])
    cells = map(_cell, *(means[name].to_pylist() for name in CELL_COLUMNS))
    scores: dict[NightCell, dict[str, float]] = {}
    for cell, sample, score in zip(cells, means["sample_id"].to_pylist(), means["score_mean"].to_pylist()):
        scores.setdefault(cell, {})[sample] = score
    return scores
