"""Nights whose suites hold made-up rows, stored as a grid stores them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from report_rows import make_row

from indexmem.config.nightly import LAST_LOSSES, CompareConfig, NightlySpec, SuiteConfig
from indexmem.config.schema import RunConfig
from indexmem.files import write_whole
from indexmem.nightly.judge import Earlier, judge
from indexmem.nightly.night import Night, Nights, StepRecord
from indexmem.nightly.steps import NightStep, steps_of
from indexmem.nightly.verdict import NightVerdict
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.store import RowStore

FIRST = dt.date(2026, 11, 1)
METHODS = ("knorm", "snapkv")
SAMPLES = 30


def nightly_spec(root: Path, **sections: Any) -> NightlySpec:
    """One suite, `tiny`, of a spec under `root`."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "tiny.yaml").write_text("name: tiny\n")
    suite = SuiteConfig(name="tiny", spec=str(root / "tiny.yaml"), verbs=("eval",))
    compare = CompareConfig(nights=3)
    return NightlySpec(**{"suites": (suite,), "run": RunConfig(root=str(root / "runs")), "compare": compare} | sections)


def date(number: int) -> dt.date:
    return FIRST + dt.timedelta(days=number)


def right(method: str, sample: int) -> float:
    """Three of four answers are right, every night."""
    return float(sample % 4 != 0)


def fill(
    night: Night,
    score: Callable[[str, int], float | None] = right,
    methods: Sequence[str] = METHODS,
    samples: int = SAMPLES,
    **columns: Any,
) -> None:
    """Store the night's rows; a score of None is a failed row. `columns`: values, or functions of the method."""
    rows = []
    for method in methods:
        own = {name: value(method) if callable(value) else value for name, value in columns.items()}
        for index in range(samples):
            value = score(method, index)
            failed = {"status": "failed", "score": None} if value is None else {}
            row = dict.fromkeys(ROW_SCHEMA.names) | make_row(method, 0.5, "niah", index, value or 0.0)
            rows.append(row | failed | own)
    RowStore(night.make_suite("tiny") / "results").append(rows, "model-niah")
    night.save(night.record().updated("tiny/eval", StepRecord(status="done", exit_code=0, seconds=60.0)))


def judged(spec: NightlySpec, night: Night, losses: Mapping[str, float] | None = None) -> NightVerdict:
    """The night's verdict, stored; `losses`: of a training."""
    if losses:
        write_whole(night.make_suite("tiny") / LAST_LOSSES, json.dumps(losses))
    verdict = judge(spec, night, steps(spec, night), Earlier.of(Nights.of(spec), night, spec.compare))
    write_whole(night.verdict_file, verdict.model_dump_json())
    return verdict


def steps(spec: NightlySpec, night: Night) -> list[NightStep]:
    return steps_of(spec, night)
