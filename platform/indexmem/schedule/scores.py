"""Scores of a night by cell and sample, in a form in which nights can be laid side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from indexmem.results.schema import OK
from indexmem.results.store import RowStore

Floats = NDArray[np.float64]
COLUMNS = (
    *("method", "budget", "benchmark", "benchmark_build", "model_fingerprint", "sample_id", "repeat", "score"),
    *("group", "status", "git_commit", "device", "score_seconds", "decode_seconds", "new_tokens"),
)


class Cell(NamedTuple):
    """What is compared between nights. Unlike a cell's id it says nothing of weights and code, which nights renew."""

    method: str
    budget: str
    benchmark: str
    build: str  # model and build of the benchmark: equal ones have equal samples


Scores = Mapping[Cell, Mapping[str, float]]  # -> sample -> mean score of its repeats


def read_rows(suite: Path) -> pa.Table:
    """All rows of a suite's run root, COLUMNS alone; no rows where nothing is stored."""
    folder = suite / "results" / "rows"
    partitions = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return RowStore(suite / "results").read(partitions, columns=COLUMNS)


def scores_of(rows: pa.Table) -> Scores:
    """Finished rows alone: a failed sample has no score and is reported elsewhere."""
    names = ("method", "budget", "benchmark", "model_fingerprint", "benchmark_build", "sample_id")
    finished = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.is_valid(rows["score"])))
    means = finished.group_by(names).aggregate([("score", "mean")])
    scores: dict[Cell, dict[str, float]] = {}
    for method, budget, benchmark, model, build, sample, score in zip(
        *(means[name].to_pylist() for name in (*names, "score_mean"))
    ):
        scores.setdefault(Cell(method, budget, benchmark, f"{model}-{build}"), {})[sample] = score
    return scores


def groups_of(rows: pa.Table) -> dict[str, str]:
    """Sample -> its group, of samples that have one. Rows from before there were groups have none."""
    known = rows.filter(pc.is_valid(rows["group"]))
    return dict(zip(known["sample_id"].to_pylist(), known["group"].to_pylist()))


def common_samples(tonight: Mapping[str, float], earlier: Sequence[Mapping[str, float]]) -> list[str]:
    """The samples that tonight and some earlier night have, sorted."""
    return sorted(sample for sample in tonight if any(sample in night for night in earlier))


def side_by_side(tonight: Mapping[str, float], earlier: Sequence[Mapping[str, float]]) -> Floats:
    """[S, 1 + nights]: scores of the common samples; NaN where a night has none."""
    return columns(common_samples(tonight, earlier), (tonight, *earlier))


def columns(samples: Sequence[str], nights: Sequence[Mapping[str, float]]) -> Floats:
    """[S, nights]: scores of these samples; NaN where a night has none."""
    found = [[night.get(sample, np.nan) for sample in samples] for night in nights]
    return np.array(found, dtype=np.float64).reshape(len(nights), len(samples)).T


def over_cells(scores: Scores, cells: Sequence[Cell]) -> dict[str, float]:
    """Sample -> its mean over those of `cells` that ask it, for samples that have a score in all of these. A benchmark
    of a suite has one build, so a sample's name is enough.

    Samples are the unit of noise: a method's budgets answer the same questions and are wrong together.
    """
    by_build: dict[str, list[Cell]] = {}
    for cell in cells:
        by_build.setdefault(cell.build, []).append(cell)
    means: dict[str, float] = {}
    for group in by_build.values():
        found = [scores.get(cell, {}) for cell in group]
        for sample in set.intersection(*(set(each) for each in found)):
            means[sample] = sum(each[sample] for each in found) / len(found)
    return means
