"""Mean scores while a grid still runs, kept as sums so that nothing is read twice.

Shapes: C cells of one benchmark, M methods, B budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from indexmem.evaluate.cells import Cell
from indexmem.evaluate.digest import Digest
from indexmem.progress.status import MethodScores, ScoresSoFar

MAX_METHODS, MAX_BUDGETS = 40, 16  # of the table: nobody reads a longer one


class PartialScores:
    """Sums of a grid's finished rows by cell."""

    def __init__(self, cells_of: Mapping[str, Sequence[Cell]], samples_of: Mapping[str, int]) -> None:
        """cells_of: benchmark -> its cells; samples_of: benchmark -> how many samples a finished cell has."""
        every = [cell for cells in cells_of.values() for cell in cells]
        self._methods = list(dict.fromkeys(cell.method.label for cell in every))
        self._budgets = [str(budget) for budget in sorted({cell.budget for cell in every})]
        self._place_C = {name: self._places(cells) for name, cells in cells_of.items()}
        self._samples_of = samples_of
        self._score_C = {name: np.zeros(len(cells)) for name, cells in cells_of.items()}
        self._finished_C = {name: np.zeros(len(cells), np.int64) for name, cells in cells_of.items()}
        self._failed_C = {name: np.zeros(len(cells), np.int64) for name, cells in cells_of.items()}

    def add(self, digest: Digest) -> None:
        """Count a unit's rows."""
        self._score_C[digest.benchmark] += digest.score_C
        self._finished_C[digest.benchmark] += digest.finished_C
        self._failed_C[digest.benchmark] += digest.failed_C

    def stored(self, benchmark: str, score_SC: NDArray[np.float32]) -> None:
        """What the store holds of a benchmark replaces what was counted of it; NaN where it lacks a row."""
        self._score_C[benchmark] = np.nansum(score_SC, axis=0, dtype=np.float64)
        self._finished_C[benchmark] = np.count_nonzero(~np.isnan(score_SC), axis=0)

    @property
    def cells(self) -> int:
        return sum(map(len, self._score_C.values()))

    @property
    def cells_done(self) -> int:
        """Cells with a finished row for every sample."""
        return sum(int((rows >= self._samples_of[name]).sum()) for name, rows in self._finished_C.items())

    @property
    def cells_failing(self) -> int:
        """Cells with a row that failed in this run."""
        return sum(int(np.count_nonzero(rows)) for rows in self._failed_C.values())

    def table(self) -> ScoresSoFar:
        """Means over benchmarks, the best method first."""
        size = len(self._methods) * len(self._budgets)
        sums, benchmarks = np.zeros(size), np.zeros(size)
        for name, place_C in self._place_C.items():
            score = np.bincount(place_C, self._score_C[name], size)
            finished = np.bincount(place_C, self._finished_C[name], size)
            seen = finished > 0
            sums[seen] += score[seen] / finished[seen]
            benchmarks += seen
        shape = (len(self._methods), len(self._budgets))
        with np.errstate(invalid="ignore"):
            mean_MB = (sums / benchmarks).reshape(shape)
        order = sorted(range(shape[0]), key=lambda number: -_mean(mean_MB[number]))[:MAX_METHODS]
        methods = tuple(
            MethodScores(
                self._methods[number],
                tuple(None if np.isnan(mean) else float(mean) for mean in mean_MB[number, :MAX_BUDGETS]),
            )
            for number in order
        )
        left_out = max(0, shape[0] - MAX_METHODS) + max(0, shape[1] - MAX_BUDGETS)
        return ScoresSoFar(tuple(self._budgets[:MAX_BUDGETS]), methods, left_out)

    def _places(self, cells: Sequence[Cell]) -> NDArray[np.int64]:
        """Each cell's place in the flattened table of methods and budgets."""
        methods = {label: number for number, label in enumerate(self._methods)}
        budgets = {text: number for number, text in enumerate(self._budgets)}
        pairs = [methods[cell.method.label] * len(budgets) + budgets[str(cell.budget)] for cell in cells]
        return np.array(pairs, np.int64)


def _mean(mean_B: NDArray[np.float64]) -> float:
    known = mean_B[~np.isnan(mean_B)]
    return float(known.mean()) if len(known) else -1.0
