"""What answers are like besides right or wrong: how long, and whether one of k is right. Failed rows are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from indexmem.config.budget import NOTHING_EVICTED
from indexmem.results.comparison import Difference
from indexmem.results.intervals import Interval, macro_ci
from indexmem.results.samples import CellScores, Column, Key, cell_scores, matched
from indexmem.results.schema import FULL_LABEL, OK
from indexmem.results.summary import difference
from indexmem.results.units import Floats

LONG = 100  # tokens of a mean answer; of shorter ones the length is no cost that anybody asks for
FULL: Column = (FULL_LABEL, NOTHING_EVICTED)
CELL = ("method", "budget", "benchmark")

Some = TypeVar("Some", bound=Interval)


@dataclass(frozen=True)
class Answers:
    """Of (method, budget)s, means over benchmarks; {} where answers are short, or one for each sample."""

    tokens: Mapping[Column, Interval] = field(default_factory=dict)  # generated for an answer, thinking included
    over_full: Mapping[Column, Difference] = field(default_factory=dict)  # how many more than the full cache, paired
    passed: Mapping[int, Mapping[Column, Interval]] = field(default_factory=dict)  # k -> pass@k

    @property
    def measures(self) -> dict[str, Mapping[Column, Interval]]:
        """Those that there are, by name."""
        named = {"tokens": self.tokens, "tokens over the full cache's": self.over_full}
        named |= {f"pass@{k}": found for k, found in self.passed.items()}
        return {name: found for name, found in named.items() if found}


def answer_measures(rows: pa.Table) -> Answers:
    """Of rows (ROW_SCHEMA) of one experiment. Intervals cluster by group, as those of scores do."""
    finished = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.is_valid(rows["new_tokens"])))
    tokens, over_full = _lengths(finished)
    return Answers(tokens, over_full, {k: dict(_means(scores)) for k, scores in _passed(finished).items()})


def pass_at_k(answers: ArrayLike, right: ArrayLike, k: int) -> Floats:
    """Chance that one of k answers is right, estimated without bias from `answers` [n] of which `right` [n] are.

    1 - C(n - c, k) / C(n, k), as a product that no large number enters: Chen et al. 2021, "Evaluating Large Language
    Models Trained on Code", equation 1. Takes k answers at least of each sample.
    """
    answers_n = np.asarray(answers, np.float64)
    wrong_n = answers_n - np.asarray(right, np.float64)
    assert (answers_n >= k).all(), f"pass@{k} of fewer than {k} answers"
    draws_k = np.arange(k)[:, None]  # the i-th of k answers drawn is wrong, too
    return 1.0 - np.prod(np.maximum(wrong_n - draws_k, 0.0) / (answers_n - draws_k), axis=0)


def _lengths(finished: pa.Table) -> tuple[dict[Column, Interval], dict[Column, Difference]]:
    """Mean tokens, and paired differences from the full cache."""
    if not finished.num_rows or pc.mean(finished["new_tokens"]).as_py() < LONG:
        return {}, {}
    most = pc.max(finished["new_tokens"]).as_py()
    shares = pc.divide(pc.cast(finished["new_tokens"], pa.float64()), float(most))  # statistics are of [0, 1]
    scores = cell_scores(finished.set_column(finished.schema.get_field_index("score"), "score", shares))
    tokens = {column: _times(found, most) for column, found in _means(scores)}
    over: dict[Column, Difference] = {}
    benchmarks = _benchmarks(scores)
    for column in tokens:
        both = matched(scores, (column, FULL), benchmarks) if column != FULL else None
        if both and not both.lacking:
            over[column] = _times(difference(both, column, FULL), most)
    return tokens, over


def _passed(finished: pa.Table) -> dict[int, dict[Key, CellScores]]:
    """k -> pass@k of each sample; for powers of two and the most answers that there are."""
    right = pc.cast(pc.equal(finished["score"], 1.0), pa.int64())
    groups = pc.coalesce(finished["group"], finished["sample_id"])
    named = finished.select([*CELL, "sample_id"]).append_column("right", right).append_column("group", groups)
    counted = named.group_by([*CELL, "sample_id"]).aggregate([("right", "sum"), ("right", "count"), ("group", "min")])
    most = pc.max(counted["right_count"]).as_py() or 0
    powers = {2**power for power in range(most.bit_length())} | {most}
    found = {}
    for k in sorted(powers) if most > 1 else ():
        enough = counted.filter(pc.greater_equal(counted["right_count"], k))
        passed = pass_at_k(enough["right_count"], enough["right_sum"], k)
        columns = {name: enough[name] for name in (*CELL, "sample_id")} | {"group": enough["group_min"]}
        found[k] = cell_scores(pa.table(columns | {"score": passed, "status": [OK] * len(passed)}))
    return found


def _means(scores: Mapping[Key, CellScores]) -> Iterator[tuple[Column, Interval]]:
    """Mean over all benchmarks of each column that answered on all of them."""
    benchmarks = _benchmarks(scores)
    for column in sorted({key[:2] for key in scores}, key=lambda column: (column != FULL, column[1], column[0])):
        found = matched(scores, (column,), benchmarks)
        if found is not None:
            yield column, macro_ci(found.of(column), found.design)


def _benchmarks(scores: Mapping[Key, CellScores]) -> list[str]:
    return sorted({benchmark for _, _, benchmark in scores})


def _times(found: Some, factor: float) -> Some:
    return replace(found, mean=factor * found.mean, low=factor * found.low, high=factor * found.high)
