"""Tonight against the pooled nights before: what moved, with one error rate for the whole table.

Two families are tested, each at half of the level, with Holm's adjustment within: every cell, which finds a loss that
is concentrated, and every method over all its cells, which finds one that is spread thin. A regression is significant,
at least as large as `minimum_effect`, and lower than on *every* night of the reference. Significant is what neither the
luck of samples (`lower_tail`) nor the spread of earlier nights (`Wander`) explains: retraining moves a module, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from indexmem.config.nightly import CompareConfig
from indexmem.nightly.rows import NightCell, NightScores, columns, over_cells
from indexmem.nightly.significance import Wander, lower_tail, upper_tail
from indexmem.nightly.verdict import Change, Flip
from indexmem.results.comparison import holm, paired_difference
from indexmem.results.units import Floats, Labels

FAMILIES = 2
FLIPPED = 0.5  # of a score, that an answer has to move
MOST_FLIPS = 200  # that a verdict lists

Groups = Mapping[str, str]  # sample -> the group that it belongs to, where it is not one of its own
Tail = Callable[[Floats, Labels | None], float]


@dataclass(frozen=True)
class Pair:
    """One thing that is compared: its scores tonight, in column 0, and on earlier nights. [S, 1 + nights]"""

    suite: str
    method: str
    budget: str | None
    benchmark: str | None
    scores_SN: Floats
    groups_S: Labels | None = None  # samples with one label depend on each other; by default none do
    older_SN: Floats | None = None  # the same samples on nights before those, which tell of the spread of nights
    least_spread: float = 0.0  # between nights; of a cell its method's, since one module moves all cells
    samples: Sequence[str] = ()  # names

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
    def saturated(self) -> bool:
        """Whether all answers are right, or none is: no gain, or no loss, can show."""
        return bool(self.tonight_S.min() == 1 or self.tonight_S.max() == 0)

    @property
    def beyond_every_night(self) -> bool:
        """Whether tonight differs from each single night, on their common samples, in the direction of the effect."""
        gaps_SN = self.scores_SN[:, :1] - self.scores_SN[:, 1:]
        seen_N = ~np.isnan(gaps_SN).all(axis=0)
        return bool((np.nanmean(gaps_SN[:, seen_N], axis=0) * np.sign(self.effect) > 0).all())

    def wander(self, sign: int = 1) -> Wander:
        """Of scores times `sign`."""
        older = [] if self.older_SN is None else [self.older_SN]
        return Wander.of(sign * np.hstack((self.scores_SN, *older)), self.scores_SN.shape[1] - 1)

    def change(self, p_value: float) -> Change:
        difference = paired_difference(self.tonight_S, self.before_S, clusters=self.groups_S)
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


@dataclass(frozen=True)
class SuiteNights:
    """A suite's scores tonight and on earlier nights, newest first.

    Each cell is compared with the newest `nights` that have it: one that failed for a week is held against the nights
    before. Those before these tell of the spread.
    """

    suite: str
    tonight: NightScores
    earlier: Sequence[NightScores]
    groups: Groups = field(default_factory=dict)
    nights: int = CompareConfig().nights

    def method_pairs(self) -> list[Pair]:
        """One pair for each method, over its cells that some earlier night has, too."""
        known = sorted(cell for cell in self.tonight if any(cell in night for night in self.earlier))
        pairs = []
        for method in dict.fromkeys(cell.method for cell in known):
            cells = [cell for cell in known if cell.method == method]
            pairs.append(self._pair(method, None, None, partial(over_cells, cells=cells)))
        return [pair for pair in pairs if len(pair.scores_SN)]

    def cell_pairs(self) -> list[Pair]:
        """One pair for each cell that some earlier night has, too."""
        pairs = [self._pair(*cell[:3], partial(_of_cell, cell=cell)) for cell in sorted(self.tonight)]
        return [pair for pair in pairs if len(pair.scores_SN)]

    def _pair(
        self,
        method: str,
        budget: str | None,
        benchmark: str | None,
        scores: Callable[[NightScores], Mapping[str, float]],
    ) -> Pair:
        """`scores`: a night -> its score of each sample."""
        tonight = scores(self.tonight)
        known = [night for night in map(scores, self.earlier) if not tonight.keys().isdisjoint(night)]
        earlier, older = known[: self.nights], known[self.nights :]
        samples = sorted(tonight.keys() & set().union(*earlier))
        owners = np.array([self.groups.get(sample, sample) for sample in samples])
        sides_SN, older_SN = columns(samples, [tonight, *earlier]), columns(samples, older)
        return Pair(self.suite, method, budget, benchmark, sides_SN, owners, older_SN, samples=samples)


def families_of(suites: Sequence[SuiteNights]) -> list[list[Pair]]:
    """The two families over all suites: cells, methods."""
    cells, methods = [], []
    for suite in suites:
        over_all = suite.method_pairs()
        spreads = {pair.method: pair.wander().spread for pair in over_all}
        methods += over_all
        cells += [replace(pair, least_spread=spreads.get(pair.method, 0.0)) for pair in suite.cell_pairs()]
    return [cells, methods]


def regressions(families: Sequence[Sequence[Pair]], config: CompareConfig) -> list[Change]:
    """What is worse than before, the largest loss first. At most `config.level` of nights without change have any."""
    return _moved(families, config, lower_tail, -1)


def improvements(families: Sequence[Sequence[Pair]], config: CompareConfig) -> list[Change]:
    """What is better than before: as `regressions`, with the signs turned."""
    return _moved(families, config, upper_tail, 1)


def flips(cells: Sequence[Pair]) -> list[Flip]:
    """Samples whose answers turned, those in most budgets first, MOST_FLIPS at most."""
    turned: dict[tuple[str, str, str], dict[bool, list[str]]] = {}
    for pair in cells:
        for sample, move in zip(pair.samples, (pair.tonight_S - pair.before_S).tolist()):
            if abs(move) > FLIPPED:
                sides = turned.setdefault((pair.suite, pair.method, sample), {True: [], False: []})
                sides[move < 0].append(pair.budget or "")
    found = [
        Flip(suite=suite, method=method, sample=sample, worse=tuple(sides[True]), better=tuple(sides[False]))
        for (suite, method, sample), sides in turned.items()
    ]
    return sorted(found, key=lambda flip: (-len(flip.worse), -len(flip.better)))[:MOST_FLIPS]


def _of_cell(night: NightScores, cell: NightCell) -> Mapping[str, float]:
    return night.get(cell, {})


def _moved(families: Sequence[Sequence[Pair]], config: CompareConfig, tail: Tail, sign: int) -> list[Change]:
    assert len(families) == FAMILIES, "the level is shared by all families"
    changes = []
    for pairs in families:
        found = [max(tail(p.scores_SN, p.groups_S), p.wander(-sign).tail(p.least_spread)) for p in pairs]
        adjusted = np.minimum(1.0, FAMILIES * holm(found)).tolist()
        for pair, p_value in zip(pairs, adjusted):
            large = sign * pair.effect >= config.minimum_effect
            if p_value <= config.level and large and pair.beyond_every_night:
                changes.append(pair.change(p_value))
    return sorted(changes, key=lambda change: -abs(change.effect))
