"""From the rows on disk to a verdict. Only reads: judging a night again gives an equal verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.nightly import NightlySpec
from indexmem.nightly.compare import Pair, SuiteNights, families_of, improvements, regressions
from indexmem.nightly.drive import step_ending
from indexmem.nightly.night import Night, NightRecord
from indexmem.nightly.rows import NightScores, Speeds, groups_of, read_suite_rows, scores_of, slowdowns, speeds_of
from indexmem.nightly.steps import NightStep
from indexmem.nightly.verdict import MethodScore, NightVerdict, Slowdown, StepOutcome, SuiteOutcome
from indexmem.results.schema import OK


@dataclass(frozen=True)
class NightRows:
    """What a night's suites have stored."""

    night: Night
    tables: Mapping[str, pa.Table]

    @classmethod
    def read(cls, night: Night, suites: Sequence[str]) -> NightRows:
        return cls(night, {suite: read_suite_rows(night.suite(suite)) for suite in suites})

    @cached_property
    def scores(self) -> Mapping[str, NightScores]:
        return {suite: scores_of(rows) for suite, rows in self.tables.items()}

    @cached_property
    def groups(self) -> Mapping[str, Mapping[str, str]]:
        return {suite: groups_of(rows) for suite, rows in self.tables.items()}

    @cached_property
    def speeds(self) -> Mapping[str, Speeds]:
        return {suite: speeds_of(rows) for suite, rows in self.tables.items()}


def judge(
    spec: NightlySpec, night: Night, steps: Sequence[NightStep], reference: Sequence[Night], older: Sequence[Night] = ()
) -> NightVerdict:
    """Compare a night with those of the reference, newest first; `older` nights tell how far nights are apart."""
    suites = list(dict.fromkeys(step.suite for step in steps))
    tonight = NightRows.read(night, suites)
    earlier = [NightRows.read(other, suites) for other in reference]
    long_ago = [NightRows.read(other, suites).scores for other in older]
    families = families_of(
        [
            SuiteNights(
                suite,
                scores,
                [rows.scores[suite] for rows in earlier],
                tonight.groups[suite],
                [night[suite] for night in long_ago],
            )
            for suite, scores in tonight.scores.items()
        ]
    )
    cells, methods = families
    record = night.record()
    slower: list[Slowdown] = []
    for suite in suites:
        slower += slowdowns(suite, tonight.speeds[suite], [n.speeds[suite] for n in earlier], spec.compare.slower)
    return NightVerdict(
        nightly=spec.name,
        date=night.date,
        reference=tuple(other.date for other in reference),
        suites=tuple(
            _suite(suite, tonight, methods, record, [step for step in steps if step.suite == suite]) for suite in suites
        ),
        compared=len(cells),
        level=spec.compare.level,
        minimum_effect=spec.compare.minimum_effect,
        regressions=tuple(regressions(families, spec.compare)),
        improvements=tuple(improvements(families, spec.compare)),
        slowdowns=tuple(slower),
        notes=tuple(_notes(tonight, earlier, cells)),
    )


def _suite(
    name: str, tonight: NightRows, pairs: Sequence[Pair], record: NightRecord, steps: Sequence[NightStep]
) -> SuiteOutcome:
    rows = tonight.tables[name]
    outcomes = [
        StepOutcome(name=step.name, ending=step_ending(found), complete=found.status == "done", seconds=found.seconds)
        for step, found in ((step, record.of(step.name)) for step in steps)
    ]
    return SuiteOutcome(
        name=name,
        rows=rows.num_rows,
        failed=pc.sum(pc.not_equal(rows["status"], OK)).as_py() or 0,
        commits=_commits(rows),
        scores=tuple(_method_scores(tonight.scores[name], [pair for pair in pairs if pair.suite == name])),
        steps=tuple(outcomes),
    )


def _method_scores(scores: NightScores, pairs: Sequence[Pair]) -> list[MethodScore]:
    compared = {
        pair.method: MethodScore(
            method=pair.method, now=float(pair.tonight_S.mean()), before=float(pair.before_S.mean())
        )
        for pair in pairs
    }
    found = []
    for method in sorted({cell.method for cell in scores}):
        means = [mean(by_sample.values()) for cell, by_sample in scores.items() if cell.method == method]
        found.append(compared.get(method) or MethodScore(method=method, now=mean(means)))
    return found


def _commits(rows: pa.Table) -> tuple[str, ...]:
    return tuple(sorted(filter(None, pc.unique(rows["git_commit"]).to_pylist())))


def _notes(tonight: NightRows, earlier: Sequence[NightRows], cells: Sequence[Pair]) -> list[str]:
    """What the comparison leaves out."""
    notes = []
    newest = earlier[0].scores if earlier else {suite: {} for suite in tonight.scores}
    for suite, scores in tonight.scores.items():
        compared = sum(pair.suite == suite for pair in cells)
        if earlier and compared < len(scores):
            notes.append(f"{suite}: {len(scores) - compared} cells are new and have no reference yet")
        lost = set(newest[suite]) - set(scores)
        if lost:
            methods = ", ".join(sorted({cell.method for cell in lost}))
            notes.append(f"{suite}: {len(lost)} cells of the night before have no score tonight ({methods})")
        fewer = sum(len(set(before) - set(scores.get(cell, before))) for cell, before in newest[suite].items())
        if fewer:
            notes.append(f"{suite}: {fewer} scores of the night before have none tonight and are not compared")
        commits = _commits(tonight.tables[suite])
        if len(commits) > 1:
            notes.append(f"{suite}: the code changed while the night ran ({', '.join(commits)})")
    return notes
