"""Whether a comparison may be read at all: the full cache must itself score what the model is known to score.

A full cache that falls short means that something outside eviction is wrong, such as the prompt template. Methods
ranked on top of that are ranked by the fault, so nothing is ranked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.schema import GridConfig
from indexmem.errors import UserError
from indexmem.results.intervals import Interval, mean_ci, mean_over
from indexmem.results.samples import sample_scores
from indexmem.results.schema import FULL_LABEL, OK
from indexmem.results.summary import MEAN

ADVICE = (
    "What lowers the full cache would rank the methods. Check that the model is the one meant (model.id, an instruct "
    "model with its chat template) and that grid.length is within what it was trained for, and read predictions of the "
    "full cache in the report. Rows are kept: a lower grid.full_cache_floor shows them."
)

Floors = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Shortfall:
    """A benchmark, or MEAN, on which the full cache scores below its floor; no score where no answer was scored."""

    benchmark: str
    floor: float
    score: Interval | None

    def __str__(self) -> str:
        if self.score is None:
            return f"{self.benchmark}: no scored answer of the full cache (floor {100 * self.floor:.1f})"
        mean, low, high = (100 * value for value in (self.score.mean, self.score.low, self.score.high))
        return (
            f"{self.benchmark}: the full cache scores {mean:.1f} (95% interval {low:.1f} to {high:.1f}, "
            f"{self.score.n} samples), below the floor of {100 * self.floor:.1f}"
        )


def check_floor(grid: GridConfig, benchmarks: Sequence[str]) -> None:
    """Raises UserError for a floor without the method `full`, or for a benchmark that the grid does not have."""
    if grid.full_cache_floor is None:
        return
    if FULL_LABEL not in {method.name for method in grid.methods}:
        raise UserError(
            f"grid.full_cache_floor={grid.full_cache_floor} needs the full cache's own score, and grid.methods does "
            "not have it. Add `full` to grid.methods, or set grid.full_cache_floor=null."
        )
    unknown = sorted(set(_floors(grid.full_cache_floor, benchmarks)) - {*benchmarks, MEAN})
    if unknown:
        raise UserError(
            f"grid.full_cache_floor names {', '.join(unknown)}, which the grid does not evaluate. "
            f"Benchmarks: {', '.join(benchmarks)}, or '{MEAN}' over all of them."
        )


def shortfalls(rows: pa.Table, floor: Floors) -> tuple[Shortfall, ...]:
    """Where the full cache's mean score in `rows` is below its floor, in the order of the names; none without a floor.

    A number is a floor for every benchmark in `rows`; a mapping names benchmarks, or MEAN.
    """
    benchmarks = sorted(pc.unique(rows["benchmark"]).to_pylist())
    answered = rows.filter(pc.and_(pc.equal(rows["method"], FULL_LABEL), pc.equal(rows["status"], OK)))
    scores = {benchmark: _score(answered, benchmark) for benchmark in benchmarks}
    known = [score for score in scores.values() if score is not None]
    mean = mean_over(known) if known and len(known) == len(scores) else None
    found = (
        Shortfall(name, least, scores.get(name, mean if name == MEAN else None))
        for name, least in sorted(_floors(floor, benchmarks).items())
    )
    return tuple(fall for fall in found if fall.score is None or fall.score.mean < fall.floor)


@dataclass(frozen=True)
class Gate:
    """What may be shown of a grid: all rows, or those of the full cache and the reason why not more."""

    rows: pa.Table
    shortfalls: tuple[Shortfall, ...] = ()

    @property
    def headline(self) -> str:
        """'' when methods may be ranked."""
        return "Methods are not ranked: the full cache is below grid.full_cache_floor." if self.shortfalls else ""

    @property
    def explanation(self) -> str:
        """What is wrong and what to check, in lines; '' when methods may be ranked."""
        if not self.shortfalls:
            return ""
        return "\n".join([self.headline, *(f"  {fall}" for fall in self.shortfalls), ADVICE])


def gated(rows: pa.Table, floor: Floors) -> Gate:
    """`rows` as they may be shown. Raises UserError when nothing may be, for want of rows of the full cache."""
    gate = Gate(rows, shortfalls(rows, floor))
    if not gate.shortfalls:
        return gate
    gate = replace(gate, rows=rows.filter(pc.equal(rows["method"], FULL_LABEL)))
    if not gate.rows.num_rows:
        raise UserError(gate.explanation)
    return gate


def _floors(floor: Floors, benchmarks: Sequence[str]) -> dict[str, float]:
    if floor is None:
        return {}
    return dict(floor) if isinstance(floor, Mapping) else dict.fromkeys(benchmarks, floor)


def _score(answered: pa.Table, benchmark: str) -> Interval | None:
    own = answered.filter(pc.equal(answered["benchmark"], benchmark))
    if not own.num_rows:
        return None
    by_sample = sample_scores(own, ())
    return mean_ci(by_sample["score"].to_numpy(), clusters=by_sample["group"].to_numpy())
