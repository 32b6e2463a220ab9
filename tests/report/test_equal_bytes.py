"""Cost belongs to the verdict: what is held, who wins at equal bytes, which trades no other cell beats."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from report_rows import make_row

from indexmem.commands.report import verdict_text
from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.schema import Experiment
from indexmem.report.html import write_report
from indexmem.report.verdict import verdict
from indexmem.results.costs import costs
from indexmem.results.equal_bytes import at_equal_bytes, best_trades
from indexmem.results.intervals import macro_ci
from indexmem.results.schema import RETENTION_SCHEMA, ROW_SCHEMA
from indexmem.results.summary import MEAN, summarise
from indexmem.results.units import Design

NINETY, SEVENTY_FIVE = Budget.of_ratio(0.9), Budget.of_ratio(0.75)
MEMORY = 0.15  # of the full cache's bytes
SAMPLES = 40
QUALITY = {
    ("plain", 0.75): 1.0, ("plain", 0.9): 0.1, ("memory", 0.75): 0.75, ("memory", 0.9): 0.6,
    ("weak", 0.75): 0.2, ("weak", 0.9): 0.05,
}  # fmt: skip


def rows(quality: dict[tuple[str, float], float] = QUALITY, *, full: bool = True) -> pa.Table:
    """The first share of samples is right; `memory` holds a memory besides."""
    made = []
    for (method, ratio), share in [*quality.items(), *([(("full", 0.0), 1.0)] if full else [])]:
        for index in range(SAMPLES):
            row = make_row(method, ratio, "b", index, float(index < share * SAMPLES))
            row |= {"context_tokens": 4000, "full_kv_bytes": 4_000_000, "kv_bytes": round(4_000_000 * (1 - ratio))}
            row |= {"memory_bytes": round(MEMORY * 4_000_000) if method == "memory" else 0, "score_seconds": 0.012}
            made.append(row)
    return pa.Table.from_pylist(made, schema=ROW_SCHEMA)


def test_a_method_is_read_off_its_own_curve_with_the_samples_own_interval() -> None:
    table = rows()
    summary = summarise(table)
    found = at_equal_bytes(summary, costs(table), NINETY)
    assert found is not None
    assert found.share == pytest.approx(0.25), "where `memory` is, which is where `plain` was at 75%"
    assert found.cells["plain"].mean == pytest.approx(1.0)
    assert found.cells["memory"].mean == pytest.approx(0.6)
    assert (found.contest.best, found.contest.leading, found.beyond) == ("plain", ("plain",), ())

    found = at_equal_bytes(summary, costs(table), SEVENTY_FIVE)
    assert found is not None
    assert found.share == pytest.approx(0.4)
    right = lambda share: (np.arange(SAMPLES) < share * SAMPLES).astype(float)  # noqa: E731
    mixed = 0.8 * right(0.2) + 0.2 * right(1.0)  # a fifth of the way from 25% to the full cache
    wanted = macro_ci(mixed, Design.of(SAMPLES))
    cell = found.cells["weak"]
    assert cell.mean == pytest.approx(wanted.mean)
    assert (cell.low, cell.high) == pytest.approx((wanted.low, wanted.high), abs=0.03), "samples in another order"


def test_equal_bytes_need_no_second_verdict_and_what_was_not_measured_is_named() -> None:
    alike = rows({key: share for key, share in QUALITY.items() if key[0] != "memory"})
    assert at_equal_bytes(summarise(alike), costs(alike), NINETY) is None
    cut = rows({key: share for key, share in QUALITY.items() if key != ("weak", 0.75)}, full=False)
    found = at_equal_bytes(summarise(cut), costs(cut), NINETY)
    assert found is not None
    assert found.beyond == ("weak",)


def test_the_verdict_says_cost_equal_bytes_and_the_front() -> None:
    table = rows()
    said = verdict(summarise(table), costs(table))
    last = said.findings[-1]
    assert (last.best, last.title) == ("memory", "memory wins with 60.0%")
    assert last.cost == "Holds 25.0% of the full cache's bytes, 12 ms to score."
    assert last.equal.startswith("At 25.0% of the bytes for all, interpolated: plain wins with 100.0%")
    assert "At equal bytes memory does not lead at 90% eviction." in said.headline
    assert said.trades == ("No other cell has both a higher mean and fewer bytes than plain at 75% and 90% eviction.")
    assert "Methods hold unequal bytes: of the full cache's 25.0% to 40.0% at 75% (most: memory), " in said.basis
    text = verdict_text(said)
    assert all(part in text for part in (last.cost, last.equal, said.trades))


def test_of_methods_within_noise_the_one_that_holds_less_is_named() -> None:
    table = rows({("plain", 0.9): 0.55, ("memory", 0.9): 0.6})
    last = verdict(summarise(table), costs(table)).findings[-1]
    assert last.title == "No winner; highest is memory with 60.0%"
    assert last.cost == ("Holds 25.0% of the full cache's bytes, 12 ms to score; plain holds 10.0%, 12 ms to score.")


def test_the_front_is_of_scores_and_bytes() -> None:
    table = rows()
    front = best_trades(summarise(table), costs(table))
    assert [(cost.method, cost.budget) for cost in front] == [("plain", NINETY), ("plain", SEVENTY_FIVE)]
    assert (MEAN, NOTHING_EVICTED) not in front


def test_every_cell_of_the_table_says_what_it_holds(tmp_path) -> None:
    page = write_report(Experiment(), rows(), RETENTION_SCHEMA.empty_table(), tmp_path / "r.html").read_text()
    assert page.count("25.0% · 12 ms</small>") == 3
    assert page.count('title="holds more than others at this budget">25.0% · 12 ms') == 1
    assert page.count('title="holds more than others at this budget">40.0% · 12 ms') == 1
