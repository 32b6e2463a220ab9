"""From the rows on disk to a verdict. Only reads: judging a night again gives an equal verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean

import numpy as np

from indexmem.config.nightly import CompareConfig, NightlySpec
from indexmem.nightly.compare import Pair, SuiteNights, families_of, flips, improvements, regressions
from indexmem.nightly.drive import step_ending
from indexmem.nightly.facts import changes
from indexmem.nightly.night import Night, Nights
from indexmem.nightly.rows import NightScores, SuiteRows
from indexmem.nightly.significance import Wander
from indexmem.nightly.speeds import slowdowns
from indexmem.nightly.steps import NightStep
from indexmem.nightly.verdict import Lost, MethodScore, ModuleLoss, NightVerdict, StepOutcome, SuiteOutcome

SPREAD_NIGHTS = 20  # newest nights that tell how far nights are apart; each costs the reading of its rows

NightRows = Mapping[str, SuiteRows]  # suite -> its rows


@dataclass(frozen=True)
class Earlier:
    """What a night is held against."""

    reference: Sequence[Night]  # whose scores it is compared with, newest first; each cell with the newest that have it
    whole: Night | None  # what it asked must be asked
    good: Night | None  # the last that was neither worse nor lacked anything: what is different since may be the cause

    @classmethod
    def of(cls, nights: Nights, night: Night, config: CompareConfig) -> Earlier:
        reference = nights.reference(night.date, config, max(SPREAD_NIGHTS, config.nights))
        good = (other for other in reference if (verdict := other.verdict()) and not verdict.lost)
        return cls(reference, nights.whole(night.date, config), next(good, next(iter(reference), None)))

    def kept(self, config: CompareConfig) -> list[Night]:
        """Nights whose rows later nights need."""
        return [*self.reference[: config.nights], *filter(None, [self.whole, self.good])]


def judge(spec: NightlySpec, night: Night, steps: Sequence[NightStep], earlier: Earlier) -> NightVerdict:
    """Compare a night with those before."""
    suites = list(dict.fromkeys(step.suite for step in steps))
    tonight, *known = [_read(other, suites) for other in (night, *earlier.reference)]
    counted = earlier.reference[: spec.compare.nights]
    cells, methods = families = families_of(
        [
            SuiteNights(suite, rows.scores, [each[suite].scores for each in known], rows.groups, spec.compare.nights)
            for suite, rows in tonight.items()
        ]
    )
    good = _read(earlier.good, suites) if earlier.good else tonight
    outcomes = [
        _outcome(
            night,
            [step for step in steps if step.suite == suite],
            rows,
            [pair for pair in methods if pair.suite == suite],
            _module_losses(rows.losses, [each[suite].losses for each in known], spec.compare),
        )
        for suite, rows in tonight.items()
    ]
    slower = [
        slowdowns(suite, rows.times, [each[suite].times for each in known], spec.compare)
        for suite, rows in tonight.items()
    ]
    return NightVerdict(
        nightly=spec.name,
        date=night.date,
        reference=tuple(other.date for other in counted),
        suites=tuple(outcomes),
        compared=len(cells),
        level=spec.compare.level,
        minimum_effect=spec.compare.minimum_effect,
        regressions=tuple(regressions(families, spec.compare)),
        improvements=tuple(improvements(families, spec.compare)),
        slowdowns=tuple(chain.from_iterable(slower)),
        lost=tuple(_lost(earlier.whole, tonight)),
        changed=tuple(chain.from_iterable(changes(suite, good[suite].facts, tonight[suite].facts) for suite in suites)),
        changed_since=earlier.good.date if earlier.good else None,
        flips=tuple(flips(cells)),
        saturated=sum(pair.saturated for pair in cells),
        notes=tuple(_notes(tonight, cells, bool(known))),
    )


def _read(night: Night, suites: Sequence[str]) -> NightRows:
    return {suite: SuiteRows.read(night.suite(suite)) for suite in suites}


def _outcome(
    night: Night, steps: Sequence[NightStep], rows: SuiteRows, pairs: Sequence[Pair], losses: Iterable[ModuleLoss]
) -> SuiteOutcome:
    record = night.record()
    outcomes = [
        StepOutcome(name=step.name, ending=step_ending(found), complete=found.status == "done", seconds=found.seconds)
        for step, found in ((step, record.of(step.name)) for step in steps)
    ]
    report = steps[0].folder / "reports" / f"{steps[0].experiment.name}.html"
    return SuiteOutcome(
        name=steps[0].suite,
        rows=rows.rows,
        failed=rows.failed,
        commits=rows.commits,
        scores=tuple(_method_scores(rows.scores, pairs)),
        steps=tuple(outcomes),
        losses=tuple(losses),
        report=str(report.relative_to(night.folder)) if report.is_file() else "",
    )


def _method_scores(scores: NightScores, pairs: Sequence[Pair]) -> Iterable[MethodScore]:
    compared = {pair.method: (float(pair.tonight_S.mean()), float(pair.before_S.mean())) for pair in pairs}
    for method in sorted({cell.method for cell in scores}):
        alone = mean(mean(by_sample.values()) for cell, by_sample in scores.items() if cell.method == method)
        now, before = compared.get(method, (alone, None))
        yield MethodScore(method=method, now=now, before=before)


def _module_losses(
    tonight: Mapping[str, float], nights: Sequence[Mapping[str, float]], config: CompareConfig
) -> Iterable[ModuleLoss]:
    """A loss is worse by the rules of scores: larger than on each night, by a factor, and beyond the nights' spread."""
    for module, now in tonight.items():
        before = [night[module] for night in nights if module in night][: config.nights]
        worse = bool(before) and now > config.loss * max(before)
        certain = worse and Wander.of(-np.array([[now, *before]])).tail() <= config.level
        yield ModuleLoss(module=module, now=now, before=mean(before) if before else None, worse=certain)


def _lost(whole: Night | None, tonight: NightRows) -> Iterable[Lost]:
    """What the whole night asked or trained and tonight did not, whatever the answers were."""
    verdict = whole.verdict() if whole else None
    if whole is None or verdict is None:
        return
    for suite, before in _read(whole, [suite.name for suite in verdict.suites]).items():
        now = tonight.get(suite)
        for cell, samples in sorted(before.asked.items()):
            missing = samples - (now.asked.get(cell, 0) if now else 0)
            if missing > 0:
                where = f"{cell.budget}, {cell.benchmark}"
                yield Lost(suite=suite, method=cell.method, where=where, samples=missing)
        for module in sorted(before.losses.keys() - (now.losses.keys() if now else ())):
            yield Lost(suite=suite, method=module, where="training", samples=0)


def _notes(tonight: NightRows, cells: Sequence[Pair], known: bool) -> Iterable[str]:
    """What the comparison cannot tell."""
    for suite, rows in tonight.items():
        compared = sum(pair.suite == suite for pair in cells)
        if known and compared < len(rows.scores):
            yield f"{suite}: {len(rows.scores) - compared} cells are new and have no reference yet"
        for score, said in ((1.0, "all samples right, no gain can show"), (0.0, "none right, no loss can show")):
            methods = {cell.method for cell, samples in rows.scores.items() if set(samples.values()) == {score}}
            if methods:
                yield f"{suite}: saturated cells ({said}): {', '.join(sorted(methods))}"
        if len(rows.commits) > 1:
            yield f"{suite}: the code changed while the night ran ({', '.join(rows.commits)})"
