"""Scores by what samples are labelled with: depth and length of a needle, category of a task, bucket of a length."""

from __future__ import annotations

import json
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.results.intervals import Interval, macro_ci
from indexmem.results.samples import sample_scores
from indexmem.results.schema import FULL_LABEL
from indexmem.results.units import Design

DEPTH, LENGTH = "depth", "length"
TITLES = {
    "category": "Score by category",
    "bucket": "Score by length bucket",
    "offset": "Score by offset",
    "difficulty": "Score by difficulty",
    "needles": "Score by number of needles",
    "order": "Score by place of the order",
    "position": "Score by position in the prompt",
    "instruction": "Score by instruction",
    "turn": "Score by turn",
}
MANY = 24  # distinct numbers; more are rounded to two digits


@dataclass(frozen=True)
class Facet:
    """Scores by the values of one label: (method, budget, value) -> mean over the benchmarks that have the value."""

    name: str
    values: tuple[Any, ...]
    cells: Mapping[tuple[str, Budget, Any], Interval]

    @property
    def title(self) -> str:
        return TITLES.get(self.name, f"Score by {self.name}")


@dataclass(frozen=True)
class HeatMap:
    """Mean scores [depth, length] of each method at one budget on one benchmark; NaN where there is no sample."""

    benchmark: str
    budget: Budget
    depths: tuple[float, ...]  # percent of the context before the needle
    lengths: tuple[int, ...]  # tokens
    scores: Mapping[str, np.ndarray]


def facets(rows: pa.Table, ranked: Container[tuple[str, Budget]]) -> tuple[Facet, ...]:
    """A facet for every label in TITLES that has at least two values, of the columns that are ranked. A score beside
    the first counts as one of a sample with that label: "position 3" is in the facet "position"."""
    items = (*_scored(rows), *_subscored(rows))
    scored = [item for item in items if (item["method"], Budget.parse(item["budget"])) in ranked]
    found = (_facet(scored, name) for name in TITLES)
    return tuple(facet for facet in found if len(facet.values) > 1)


def heat_maps(rows: pa.Table) -> tuple[HeatMap, ...]:
    """Maps of the benchmarks whose samples have at least two depths and lengths, by budget; the full cache in each."""
    groups: dict[tuple[str, Budget], list[tuple[str, float, int, float]]] = {}
    for item in _scored(rows):
        depth, length = item["labels"].get(DEPTH), item["labels"].get(LENGTH, item["length"])
        if isinstance(depth, int | float) and length is not None:
            groups.setdefault((item["benchmark"], Budget.parse(item["budget"])), []).append(
                (item["method"], float(depth), int(length), item["score"])
            )
    for (benchmark, budget), points in groups.items():
        if budget != NOTHING_EVICTED:
            points += [point for point in groups.get((benchmark, NOTHING_EVICTED), ()) if point[0] == FULL_LABEL]
    maps = (_heat_map(benchmark, budget, points) for (benchmark, budget), points in sorted(groups.items()))
    return tuple(found for found in maps if len(found.depths) > 1 and len(found.lengths) > 1)


def _heat_map(benchmark: str, budget: Budget, points: list[tuple[str, float, int, float]]) -> HeatMap:
    methods, depths, lengths, scores = zip(*points)
    percent = np.asarray(depths) * (100 if max(depths) <= 1 else 1)
    if len(set(depths)) > MANY:
        percent = np.rint(percent / 10) * 10
    ys, y = np.unique(percent, return_inverse=True)
    xs, x = np.unique(np.asarray(lengths), return_inverse=True)
    grids = {}
    for method in dict.fromkeys(methods):
        mine = np.asarray([name == method for name in methods])
        total, count = np.zeros((len(ys), len(xs))), np.zeros((len(ys), len(xs)))
        np.add.at(total, (y[mine], x[mine]), np.asarray(scores)[mine])
        np.add.at(count, (y[mine], x[mine]), 1)
        grids[method] = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return HeatMap(benchmark, budget, tuple(map(float, ys)), tuple(map(int, xs)), grids)


def _facet(scored: list[dict[str, Any]], name: str) -> Facet:
    groups: dict[tuple[str, Budget, Any], list[tuple[float, str, str]]] = {}
    for item in scored:
        value = item["labels"].get(name)
        if isinstance(value, Hashable) and value is not None:
            key = (item["method"], Budget.parse(item["budget"]), value)
            groups.setdefault(key, []).append((item["score"], item["benchmark"], item["group"]))
    values = sorted({value for _, _, value in groups}, key=lambda v: (isinstance(v, str), v))
    return Facet(name, tuple(values), {key: _mean(found) for key, found in groups.items()})


def _mean(found: Sequence[tuple[float, str, str]]) -> Interval:
    """Mean over benchmarks of (score, benchmark, group) triples."""
    scores, benchmarks, groups = zip(*found)
    return macro_ci(scores, Design.of(len(scores), benchmarks, groups))


def _scored(rows: pa.Table) -> list[dict[str, Any]]:
    """One item per labelled and answered sample of a cell: repeats averaged, labels parsed."""
    labelled = rows.filter(pc.is_valid(rows["labels"]))
    keys = ("method", "budget", "benchmark", "labels", "length")
    items: list[dict[str, Any]] = sample_scores(labelled, keys).to_pylist()
    parsed = {text: json.loads(text) for text in {item["labels"] for item in items}}
    return [item | {"labels": parsed[item["labels"]]} for item in items if parsed[item["labels"]]]


def _subscored(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """One item per answer and score whose name begins with a facet's."""
    columns = ("method", "budget", "benchmark", "sample_id", "group", "other_scores")
    for row in rows.filter(pc.is_valid(rows["other_scores"])).select(columns).to_pylist():
        for name, score in json.loads(row["other_scores"]).items():
            facet, _, value = name.partition(" ")
            if facet in TITLES:
                label = {facet: int(value) if value.isdigit() else value}
                yield row | {"score": score, "labels": label, "group": row["group"] or row["sample_id"]}
