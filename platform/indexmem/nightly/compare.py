"""Tonight against the pooled nights before: what moved, with one error rate for the whole table.

Two families are tested, each at half of the level, with Holm's adjustment within: every cell, which finds a loss that
is concentrated, and every method over all its cells, which finds one that is spread thin. A regression is significant,
at least as large as `minimum_effect`, and lower than on *every* night of the reference. Significant is what neither the
luck of samples (`lower_tail`) nor the spread of earlier nights (`Wander`) explains: retraining moves a module, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from indexmem.config.nightly import CompareConfig
from indexmem.nightly.rows import NightScores, columns, common_samples, over_cells, scores_by_night
from indexmem.nightly.significance import Wander, lower_tail, upper_tail
from indexmem.nightly.verdict import Change
from indexmem.results.comparison import holm, paired_difference
from indexmem.results.units import Floats, Labels

FAMILIES = 2

Groups = Mapping[str, str]  # sample -> the group that it belongs to, where it is not one of its own
NO_GROUPS: Groups = MappingProxyType({})
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


def cell_pairs(
    suite: str,
    tonight: NightScores,
    earlier: Sequence[NightScores],
    groups: Groups = NO_GROUPS,
    older: Sequence[NightScores] = (),
) -> list[Pair]:
    """One pair for each cell that some earlier night has, too."""
    pairs = []
    for cell, scores in sorted(tonight.items()):
        before, long_ago = ([night.get(cell, {}) for night in nights] for nights in (earlier, older))
        pairs.append(_pair((suite, *cell[:3]), scores, before, groups, long_ago))
    return [pair for pair in pairs if len(pair.scores_SN)]


def method_pairs(
    suite: str,
    tonight: NightScores,
    earlier: Sequence[NightScores],
    groups: Groups = NO_GROUPS,
    older: Sequence[NightScores] = (),
) -> list[Pair]:
    """One pair for each method, over its cells that some earlier night has, too."""
    known = sorted(cell for cell in tonight if any(cell in night for night in earlier))
    pairs = []
    for method in dict.fromkeys(cell.method for cell in known):
        cells = [cell for cell in known if cell.method == method]
        before, long_ago = ([over_cells(night, cells) for night in nights] for nights in (earlier, older))
        pairs.append(_pair((suite, method, None, None), over_cells(tonight, cells), before, groups, long_ago))
    return [pair for pair in pairs if len(pair.scores_SN)]


def regressions(families: Sequence[Sequence[Pair]], config: CompareConfig) -> list[Change]:
    """What is worse than before, the largest loss first. At most `config.level` of nights without change have any."""
    return _moved(families, config, lower_tail, -1)


def improvements(families: Sequence[Sequence[Pair]], config: CompareConfig) -> list[Change]:
    """What is better than before, by the same rules."""
    return _moved(families, config, upper_tail, 1)


def families_of(
    tonight: Mapping[str, NightScores],
    earlier: Sequence[Mapping[str, NightScores]],
    groups: Mapping[str, Groups] = MappingProxyType({}),
    older: Sequence[Mapping[str, NightScores]] = (),
) -> list[list[Pair]]:
    """The two families over all suites: cells, methods. All arguments map suites, to scores or to samples' groups.

    Tonight is compared with `earlier` nights; how far nights are from each other, `older` ones tell, too.
    """
    cells, methods = [], []
    for suite, scores in tonight.items():
        before, long_ago = ([night.get(suite, {}) for night in nights] for nights in (earlier, older))
        owners = groups.get(suite, NO_GROUPS)
        over_all = method_pairs(suite, scores, before, owners, long_ago)
        spreads = {pair.method: pair.wander().spread for pair in over_all}
        methods += over_all
        cells += [
            replace(pair, least_spread=spreads.get(pair.method, 0.0))
            for pair in cell_pairs(suite, scores, before, owners, long_ago)
        ]
    return [cells, methods]


def _pair(
    names: tuple[str, str, str | None, str | None],
    tonight: Mapping[str, float],
    earlier: Sequence[Mapping[str, float]],
    groups: Groups,
    older: Sequence[Mapping[str, float]],
) -> Pair:
    samples = common_samples(tonight, earlier)
    owners = np.array([groups.get(sample, sample) for sample in samples])
    return Pair(*names, scores_by_night(tonight, earlier), owners, columns(samples, older))


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
