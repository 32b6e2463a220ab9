"""Rows -> one score per sample of each cell, and the samples that several methods have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.results.schema import OK
from indexmem.results.units import Design, Floats

COMMON_AT_LEAST = 0.9  # of the samples that any compared method answered; with fewer, who fails decides who leads

ANY = ""  # no method's name

Column = tuple[str, Budget]  # a method at a budget
Key = tuple[str, Budget, str]  # on a benchmark


@dataclass(frozen=True)
class CellScores:
    """One cell's scores: samples [n] as sorted integer ids, their groups [n], values [n] in [0, 1]."""

    samples: NDArray[np.int64]
    groups: NDArray[np.int64]
    values: Floats


@dataclass(frozen=True)
class Matched:
    """Columns on the samples that all of them answered: N samples of all benchmarks, M columns."""

    columns: tuple[Column, ...]
    values_NM: Floats
    design: Design  # benchmarks as strata, groups as clusters
    lacking: Mapping[Column, int]  # columns left out -> samples that others answered and they did not
    asked: int  # samples that any column answered

    def of(self, column: Column) -> Floats:
        """Scores [N] of a column."""
        return self.values_NM[:, self.columns.index(column)]


def sample_scores(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """One row per sample that succeeded: columns `by`, `sample_id`, `group`, and `score`, the mean of its repeats.

    A sample without a group, as in rows older than the column, is one of its own.
    """
    groups = pc.coalesce(rows["group"], rows["sample_id"])
    named = rows.set_column(rows.schema.get_field_index("group"), "group", groups)
    answered = named.filter(pc.equal(named["status"], OK))
    means = answered.group_by([*by, "sample_id"]).aggregate([("score", "mean"), ("group", "min")])
    return means.rename_columns([*by, "sample_id", "score", "group"]).sort_by("sample_id")


def cell_scores(rows: pa.Table) -> dict[Key, CellScores]:
    """The scores of each (method, budget, benchmark) that has any."""
    means = sample_scores(rows, ("method", "budget", "benchmark"))
    for name in ("sample_id", "group"):
        _, numbers = np.unique(means[name].to_numpy(), return_inverse=True)
        means = means.set_column(means.schema.get_field_index(name), name, pa.array(numbers.astype(np.int64)))
    listed = means.group_by(["method", "budget", "benchmark"], use_threads=False).aggregate(
        [(name, "list") for name in ("sample_id", "group", "score")]
    )
    return {
        (cell["method"], Budget.parse(cell["budget"]), cell["benchmark"]): CellScores(
            *(np.array(cell[f"{name}_list"]) for name in ("sample_id", "group", "score"))
        )
        for cell in listed.to_pylist()
    }


def answered_by_any(scores: Mapping[Key, CellScores]) -> dict[Key, CellScores]:
    """For each benchmark the samples that any column answered, as if it were one more of them: without values."""
    found: dict[str, dict[int, int]] = {}
    for (_, _, benchmark), each in scores.items():
        found.setdefault(benchmark, {}).update(zip(each.samples.tolist(), each.groups.tolist()))
    return {
        (ANY, NOTHING_EVICTED, benchmark): CellScores(
            np.array(sorted(groups)), np.array([groups[s] for s in sorted(groups)]), np.zeros(len(groups))
        )
        for benchmark, groups in found.items()
    }


def matched(scores: Mapping[Key, CellScores], columns: Sequence[Column], benchmarks: Sequence[str]) -> Matched | None:
    """The columns on their common samples; None where no column has a score on every benchmark.

    Who lacks a benchmark is left out, and then whoever lacks most, until COMMON_AT_LEAST is met on average over
    benchmarks: otherwise a method could lead by failing where it would have been wrong.
    """
    laid = [_laid_out(scores, columns, benchmark) for benchmark in benchmarks]
    has = [np.isfinite(score_CS) for score_CS, _ in laid]
    if not has or any(not has_CS.any() for has_CS in has):
        return None
    lacking_C = sum(1.0 - has_CS.mean(axis=1) for has_CS in has)
    kept = [c for c in range(len(columns)) if all(has_CS[c].any() for has_CS in has)]
    kept.sort(key=lambda c: (lacking_C[c], columns[c][0]))
    while kept and not _suffices(_common(has, kept)):
        kept.pop()
    if not kept:
        return None
    kept.sort()
    common = _common(has, kept)
    return Matched(
        columns=tuple(columns[c] for c in kept),
        values_NM=np.concatenate([score_CS[kept][:, mask] for (score_CS, _), mask in zip(laid, common)], axis=1).T,
        design=Design(
            np.repeat(np.arange(len(laid)), [np.count_nonzero(mask) for mask in common]),
            np.concatenate([group_S[mask] for (_, group_S), mask in zip(laid, common)]),
        ),
        lacking={
            column: sum(int(np.count_nonzero(~has_CS[c])) for has_CS in has)
            for c, column in enumerate(columns)
            if c not in kept
        },
        asked=sum(has_CS.shape[1] for has_CS in has),
    )


def _laid_out(
    scores: Mapping[Key, CellScores], columns: Sequence[Column], benchmark: str
) -> tuple[Floats, NDArray[np.int64]]:
    """score_CS of the samples that any column answered, NaN where one did not, and group_S of these samples."""
    keys = enumerate((*column, benchmark) for column in columns)
    found = {index: scores[key] for index, key in keys if key in scores}
    group_of = {s: g for each in found.values() for s, g in zip(each.samples.tolist(), each.groups.tolist())}
    samples = np.array(sorted(group_of), dtype=np.int64)
    score_CS = np.full((len(columns), samples.size), np.nan)
    for index, each in found.items():
        score_CS[index, np.searchsorted(samples, each.samples)] = each.values
    return score_CS, np.array([group_of[sample] for sample in samples.tolist()], dtype=np.int64)


def _common(has: Sequence[NDArray[np.bool_]], columns: Sequence[int]) -> list[NDArray[np.bool_]]:
    """For each benchmark, which samples all of the columns answered; `has` [C, S] says who answered which."""
    return [np.logical_and.reduce(has_CS[columns]) for has_CS in has]


def _suffices(common: Sequence[NDArray[np.bool_]]) -> bool:
    """Whether the samples that all have, one mask a benchmark, are enough to compare by."""
    shares = [float(mask.mean()) for mask in common]
    return min(shares) > 0 and sum(shares) / len(shares) >= COMMON_AT_LEAST
