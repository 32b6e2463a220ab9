"""Two weeks of synthetic nights, each with something that happens to real ones, through the real verdict.

python tests/nightly/two_weeks.py      prints the table of docs/operations.md
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

from night_rows import SAMPLES, date, fill, judged, nightly_spec, right, steps

from indexmem.commands.nightly import freeze
from indexmem.config.nightly import NightlySpec
from indexmem.nightly.night import Nights
from indexmem.nightly.steps import freeze_specs
from indexmem.nightly.verdict import NightVerdict, Status

METHODS = ("full", "knorm", "snapkv")
SPEC = {"name": "tiny", "grid": {"seed": 42, "samples": SAMPLES, "methods": list(METHODS)}}


def wavering(method: str, sample: int) -> float:
    """snapkv's answer to one question is another one."""
    return 1 - right(method, sample) if (method, sample) == ("snapkv", 7) else right(method, sample)


def damaged(method: str, sample: int) -> float:
    return right(method, sample) * (method != "knorm" or sample % 2)


def mended(method: str, sample: int) -> float:
    return max(right(method, sample), float(method == "knorm"))


def three_fail(method: str, sample: int) -> float | None:
    return None if method == "snapkv" and sample < 3 else right(method, sample)


def slow_scoring(method: str) -> float:
    return {"full": 0.0, "knorm": 1.2}.get(method, 0.18)


def slow_machine(seconds: float) -> Callable[[str], float]:
    return lambda method: 0.0 if method == "full" and seconds < 1 else 2 * seconds


@dataclass(frozen=True)
class SyntheticNight:
    """What happens, and how it has to be judged: status, and what else the page says."""

    what: str
    status: Status
    score: Callable[[str, int], float | None] | None = right  # None: the evaluation dies before it stores a row
    grid: Mapping[str, Any] = field(default_factory=dict)  # settings that are changed
    indexer: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)  # of rows
    loss: float = 0.2
    slower: int = 0


NIGHTS = (
    SyntheticNight("the first", "fine"),
    SyntheticNight("one answer wavers", "fine", wavering),
    SyntheticNight("nothing changes", "fine"),
    SyntheticNight(
        "the machine is half as fast",
        "fine",
        columns={
            "prefill_seconds": 12.2,
            "decode_seconds": 19.2,
            "score_seconds": slow_machine(0.18),
        },
    ),
    SyntheticNight("a commit makes `knorm` score slowly", "fine", columns={"score_seconds": slow_scoring}, slower=1),
    SyntheticNight("a commit costs `knorm` a third of its answers", "regression", damaged),
    SyntheticNight(
        "the same code; another seed, and `knorm` is taken out",
        "coverage",
        damaged,
        grid={"seed": 7, "methods": ["full", "snapkv"]},
        columns={"benchmark_build": "seed-7"},
    ),
    SyntheticNight("the spec as it was, the same code", "regression", damaged),
    SyntheticNight("the commit is mended", "fine"),
    SyntheticNight("20 samples in place of 30", "coverage", grid={"samples": 20}),
    SyntheticNight("30 again; three rows fail", "failures", three_fail),
    SyntheticNight("the evaluation is killed", "coverage", None),
    SyntheticNight(
        "one head less: the loss doubles, no score moves",
        "regression",
        indexer={"pair_term": True, "heads": 1},
        loss=0.41,
    ),
    SyntheticNight("all heads; `knorm` becomes better", "fine", mended),
)


def verdicts(root: Path) -> list[NightVerdict]:
    """All nights, one after another, on one store."""
    spec, found = nightly_spec(root), []
    for number, each in enumerate(NIGHTS):
        found.append(_verdict(spec, number, each))
    return found


def table(found: list[NightVerdict]) -> str:
    """As Markdown."""
    lines = ["| night | what happens | exit code | headline |", "|---|---|---|---|"]
    for number, (each, verdict) in enumerate(zip(NIGHTS, found), start=1):
        lines.append(f"| {number} | {each.what} | {verdict.exit_code} | {verdict.headline} |")
    return "\n".join(lines) + "\n"


def _verdict(spec: NightlySpec, number: int, each: SyntheticNight) -> NightVerdict:
    night, grid = Nights.of(spec).night(date(number)), SPEC["grid"] | each.grid
    sections = {"grid": grid, "indexer": each.indexer} if each.indexer else {"grid": grid}
    Path(spec.suites[0].spec).write_text(json.dumps(SPEC | sections))
    freeze_specs(night, steps(spec, night), freeze)
    if each.score is not None:
        fill(night, each.score, grid["methods"], grid["samples"], **each.columns)
    return judged(spec, night, {"loss indexer": each.loss})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(table(verdicts(Path(folder))), end="")
