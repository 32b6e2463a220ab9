"""How many tokens a row's heads hold while it answers, measured in the batch's buffers.

The first step is the one that reads the question. From then on a lane grows by a token a step, until the cache is
repacked: so measuring then is enough. Shapes: R rows, N lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from indexmem.engine.cache import RaggedCache


class HeldTokens:
    """Sums over the steps of each row; rows are known by their number in the first batch."""

    def __init__(self, cache: RaggedCache, rows: int) -> None:
        self._cache = cache
        self._mean, self._most = [0.0] * rows, [0] * rows  # at the last measurement, over layers and heads
        self._since = 0  # steps since
        self._total, self._peak, self._steps = [0.0] * rows, [0] * rows, [0] * rows

    def measure(self, rows: Sequence[int]) -> None:
        """Count what the cache holds now of its `rows`, in their order."""
        lengths_LRH = self._cache.lengths().unflatten(1, (len(rows), self._cache.heads))
        means, peaks = lengths_LRH.double().mean((0, 2)).tolist(), lengths_LRH.amax((0, 2)).tolist()
        for row, mean, most in zip(rows, means, peaks):
            self._mean[row], self._most[row] = mean, most
        self._since = 0

    def grow(self) -> None:
        """A token more in every lane."""
        self._since += 1

    def count(self, rows: Iterable[int]) -> None:
        """A step of these rows."""
        for row in rows:
            self._total[row] += self._mean[row] + self._since
            self._peak[row] = max(self._peak[row], self._most[row] + self._since)
            self._steps[row] += 1

    def of(self, row: int) -> tuple[float, int]:
        """Mean over the row's steps, layers and heads, and the most that a head held."""
        return self._total[row] / self._steps[row], self._peak[row]
