"""A night's rows: scores by cell and sample, which can be laid side by side, and how long answers took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.nightly.verdict import Slowdown
from indexmem.results.schema import OK
from indexmem.results.store import RowStore
from indexmem.results.units import Floats

ROW_COLUMNS = (
    *("method", "budget", "benchmark", "benchmark_build", "model_fingerprint", "sample_id", "repeat", "score"),
    *("group", "status", "git_commit", "device", "score_seconds", "decode_seconds", "new_tokens"),
)


class NightCell(NamedTuple):
    """What is compared between nights. Weights and code, which every night renews, are no part of it."""

    method: str
    budget: str
    benchmark: str
    build: str  # model and build of the benchmark: equal ones have equal samples


NightScores = Mapping[NightCell, Mapping[str, float]]  # -> sample -> mean score of its repeats


def read_suite_rows(suite: Path) -> pa.Table:
    """All rows of a suite's run root, ROW_COLUMNS alone; no rows where nothing is stored."""
    folder = suite / "results" / "rows"
    partitions = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return RowStore(suite / "results").read(partitions, columns=ROW_COLUMNS)


def scores_of(rows: pa.Table) -> NightScores:
    """Finished rows alone: a failed sample has no score and is reported elsewhere."""
    names = ("method", "budget", "benchmark", "model_fingerprint", "benchmark_build", "sample_id")
    finished = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.is_valid(rows["score"])))
    means = finished.group_by(names).aggregate([("score", "mean")])
    scores: dict[NightCell, dict[str, float]] = {}
    for method, budget, benchmark, model, build, sample, score in zip(
        *(means[name].to_pylist() for name in (*names, "score_mean"))
    ):
        scores.setdefault(NightCell(method, budget, benchmark, f"{model}-{build}"), {})[sample] = score
    return scores


def groups_of(rows: pa.Table) -> dict[str, str]:
    """Sample -> its group, of samples that have one. Rows from before there were groups have none."""
    known = rows.filter(pc.is_valid(rows["group"]))
    return dict(zip(known["sample_id"].to_pylist(), known["group"].to_pylist()))


def common_samples(tonight: Mapping[str, float], earlier: Sequence[Mapping[str, float]]) -> list[str]:
    """The samples that tonight and some earlier night have, sorted."""
    return sorted(sample for sample in tonight if any(sample in night for night in earlier))


def scores_by_night(tonight: Mapping[str, float], earlier: Sequence[Mapping[str, float]]) -> Floats:
    """[S, 1 + nights]: scores of the common samples; NaN where a night has none."""
    return columns(common_samples(tonight, earlier), (tonight, *earlier))


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


class Speed(NamedTuple):
    """Median times of a method's rows on one kind of device, in seconds."""

    decode: float  # of the batch that a row was decoded in
    token: float  # decoding time of a row over its new tokens
    score: float


TIMES = ("decoding a batch", "decoding a token", "scoring a context")  # as in Speed
Speeds = Mapping[tuple[str, str], Speed]  # (method, device)


def speeds_of(rows: pa.Table) -> Speeds:
    """Medians over finished rows. Rows without times, such as those of other tools, are left out."""
    finished = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.greater(rows["new_tokens"], 0)))
    times: dict[tuple[str, str], list[Speed]] = {}
    names = ("method", "device", "decode_seconds", "new_tokens", "score_seconds")
    for method, device, decode, tokens, score in zip(*(finished[name].to_pylist() for name in names)):
        if decode is not None and score is not None:
            times.setdefault((method, device or ""), []).append(Speed(decode, decode / tokens, score))
    return {key: Speed(*map(median, zip(*found))) for key, found in times.items()}


def slowdowns(suite: str, tonight: Speeds, earlier: Sequence[Speeds], factor: float) -> list[Slowdown]:
    """Times that are more than `factor` of their median over earlier nights with the same device."""
    found = []
    for (method, device), speed in sorted(tonight.items()):
        known = [night[method, device] for night in earlier if (method, device) in night]
        for measure, now, before in zip(TIMES, speed, map(median, zip(*known))):
            if before > 0 and now > factor * before:
                found.append(Slowdown(suite=suite, method=method, measure=measure, before=before, now=now))
    return found
