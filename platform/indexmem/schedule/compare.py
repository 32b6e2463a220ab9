"""Tonight against the pooled nights before: what moved, with one error rate for the whole table.

Two families are tested, each at half of the level, with Holm's adjustment within: every cell, which finds a loss that
is concentrated, and every method over all its cells, which finds one that is spread thin. A regression is significant,
at least as large as `minimum_effect`, and lower than on *every* night of the reference, so that a method that wanders
from night to night is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from indexmem.config.nightly import CompareConfig
from indexmem.results.stats import holm, paired_difference
from indexmem.schedule.exchange import Floats, lower_tail, upper_tail
from indexmem.schedule.scores import Scores, over_cells, side_by_side
from indexmem.schedule.verdict import Change

FAMILIES = 2


@dataclass(frozen=True)
class Pair:
    """One thing that is compared: its scores tonight, in column 0, and on earlier nights. [S, 1 + nights]"""

    suite: str
    method: str
    budget: str | None
    benchmark: str | None
    scores_SN: Floats

    @property
    def tonight_S(self) -> Floats:
        return self.scores_SN[:, 0]

    @property
    def before_S(self) -> Floats:
        """Mean of each sample over the nights that have it."""
        return np.nanmean(self.scores_SN[:, 1:], axis=1)

    @property
    def effect(self) -> float:
        return float((self.tonight_S - self.before_S).mean())

    @property
    def beyond_every_night(self) -> bool:
        """Whether tonight differs from each single night, on their common samples, in the direction of the effect."""
        gaps_SN = self.scores_SN[:, :1] - self.scores_SN[:, 1:]
        seen_N = ~np.isnan(gaps_SN).all(axis=0)
        return bool((np.nanmean(gaps_SN[:, seen_N], axis=0) * np.sign(self.effect) > 0).all())

    def change(self, p_value: float) -> Change:
        difference = paired_difference(self.tonight_S, self.before_S)
        return Change(
            suite=self.suite,
            method=self.method,
            budget=self.budget,
            benchmark=self.benchmark,
            samples=len(self.scores_SN),
            before=float(self.before_S.mean()),
            now=float(self.tonight_S.mean()),
            low=difference.low,
            high=difference.high,
            p_value=p_value,
        )


def cell_pairs(suite: str, tonight: Scores, earlier: Sequence[Scores]) -> list[Pair]:
    """One pair for each cell that some earlier night has, too."""
    pairs = [
        Pair(suite, *cell[:3], side_by_side(scores, [night.get(cell, {}) for night in earlier]))
        for cell, scores in sorted(tonight.items())
    ]
    return [pair for pair in pairs if len(pair.scores_SN)]


def method_pairs(suite: str, tonight: Scores, earlier: Sequence[Scores]) -> list[Pair]:
    """One pair for each method, over its cells that some earlier night has, too."""
    known = sorted(cell for cell in tonight if any(cell in night for night in earlier))
    pairs = []
    for method in dict.fromkeys(cell.method for cell in known):
        cells = [cell for cell in known if cell.method == method]
        sides = side_by_side(over_cells(tonight, cells), [over_cells(night, cells) for night in earlier])
        pairs += [Pair(suite, method, None, None, sides)] if len(sides) else []
    return pairs


def regressions(families: Sequence[Sequence[Pair]], config: CompareConfig) -> list[Change]:
    """What is worse than before, the largest loss first. At most `config.level` of nights without change have any."""
    return _moved(families, config, lower_tail, -1)


def improvements(families: Sequence[Sequence[Pair]], config: CompareConfig) -> list[Change]:
    """What is better than before, by the same rules."""
    return _moved(families, config, upper_tail, 1)


def families_of(tonight: Mapping[str, Scores], earlier: Sequence[Mapping[str, Scores]]) -> list[list[Pair]]:
    """The two families over all suites: cells, methods. Both arguments map suites to scores."""
    cells, methods = [], []
    for suite, scores in tonight.items():
        before = [night.get(suite, {}) for night in earlier]
        cells += cell_pairs(suite, scores, before)
        methods += method_pairs(suite, scores, before)
    return [cells, methods]


def _moved(
    families: Sequence[Sequence[Pair]], config: CompareConfig, tail: Callable[[Floats], float], sign: int
) -> list[Change]:
    assert len(families) == FAMILIES, "the level is shared by all families"
    changes = []
    for pairs in families:
        adjusted = np.minimum(1.0, FAMILIES * holm([tail(pair.scores_SN) for pair in pairs])).tolist()
        for pair, p_value in zip(pairs, adjusted):
            large = sign * pair.effect >= config.minimum_effect
            if p_value <= config.level and large and pair.beyond_every_night:
                changes.append(pair.change(p_value))
    return sorted(changes, key=lambda change: -abs(change.effect))
