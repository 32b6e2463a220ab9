"""The terminal table and the CSV."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest
from report_rows import METHODS, MIXED, make_row, make_rows

from indexmem.config.budget import Budget
from indexmem.report.files import scores_csv
from indexmem.results.costs import costs
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import summarise
from indexmem.results.tables import WIDTH, comparison_table


@pytest.mark.parametrize("shares", [(0.5,), (0.25, 0.5, 0.75, 0.9), tuple(i / 20 for i in range(1, 20))])
def test_the_table_fits_the_terminal_and_starts_with_the_full_cache(shares: tuple[float, ...]) -> None:
    budgets = tuple(map(Budget.of_ratio, shares))
    lines = comparison_table(
        make_rows(budgets=budgets, samples=5, methods=(*METHODS, "adakv(" + "x" * 60 + ")"))
    ).split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert lines[2].startswith("full cache, nothing evicted")
    headers = [line.split()[1:] for line in lines if line.startswith("evicted:")]
    assert [label for header in headers for label in header] == list(map(str, budgets))


def test_each_kind_of_budget_has_a_block_of_its_own() -> None:
    lines = comparison_table(make_rows(budgets=(*MIXED, Budget.of_ratio(1 / 3)), samples=5)).split("\n")
    headers = [
        " ".join(line.split()) for line in lines if line.split(":")[0] in ("evicted", "kept per head", "bytes in all")
    ]
    assert headers == [
        "evicted: 33.3333333333333… 50% 90%",
        "kept per head: 1024 tokens 256 tokens",
        "bytes in all: 16 MiB 8 MiB 4 MiB",
    ]
    assert max(map(len, lines)) <= WIDTH


def test_the_table_shows_means_intervals_and_marks() -> None:
    rows = make_rows()
    text = comparison_table(rows)
    cell = summarise(rows).cells["indexmem", Budget.of_ratio(0.9), "mean"]
    line = next(line for line in text.split("\n") if line.startswith("indexmem"))
    assert line.endswith(f"{100 * cell.mean:.1f} ({100 * cell.low:.0f} to {100 * cell.high:.0f})*")
    assert "±" not in text
    assert line.count("~") == 2
    assert "3 of 1740 rows failed" in text


def test_a_method_that_lacks_a_benchmark_has_a_dash() -> None:
    rows = make_rows(failures=20)  # every sample of the last method's last benchmark
    line = next(line for line in comparison_table(rows).split("\n") if line.startswith("random"))
    assert line.endswith(" -")


def test_csv_holds_every_cell_once_in_machine_units() -> None:
    rows = make_rows()
    records = list(csv.DictReader(io.StringIO(scores_csv({"tiny": summarise(rows)}))))
    summary = summarise(rows)
    (unranked,) = [r for r in records if r["standing"] == "unranked"]  # 3 of 20 samples failed
    assert (unranked["method"], unranked["benchmark"], unranked["mean"]) == ("random", "niah_single_2", "")
    records.remove(unranked)
    assert len(records) == len(summary.cells) == (7 * 4 + 1) * 4 - 1
    assert records[0]["method"] == "full"
    for record in records:
        budget = Budget.parse(record["budget"])
        assert budget == Budget.of_ratio(float(record["ratio"]))
        cell = summary.cells[record["method"], budget, record["benchmark"]]
        assert float(record["mean"]) == pytest.approx(cell.mean, abs=1e-6)
        assert float(record["low"]) <= float(record["mean"]) <= float(record["high"])
    assert {r["standing"] for r in records} == {"reference", "winner", "leading", "behind"}


def test_csv_leaves_the_ratio_empty_where_none_was_requested() -> None:
    records = list(
        csv.DictReader(io.StringIO(scores_csv({"tiny": summarise(make_rows(budgets=MIXED, samples=2, failures=0))})))
    )
    asked = list(dict.fromkeys((r["budget"], r["ratio"]) for r in records if r["method"] == "knorm"))
    assert asked[:3] == [("50%", "0.5"), ("90%", "0.9"), ("1024 tokens", "")]
    assert asked[-1] == ("4 MiB", "")


def test_costs_add_what_decoding_needs_besides_kv_and_the_time_of_those_decoded_alone() -> None:
    sizes = {"kv_bytes": 100, "indexer_bytes": 20, "memory_bytes": 30, "full_kv_bytes": 300}
    rows = [make_row("indexmem", 0.5, "b", i, 1.0, decode_seconds=12.0, decode_batch=6, **sizes) for i in range(2)]
    rows[1] |= {"kv_bytes": 200, "kept_min": 3, "kept_max": 9000}
    (cost,) = costs(pa.Table.from_pylist(rows, schema=ROW_SCHEMA))
    assert (cost.kv_bytes, cost.extra_bytes, cost.decode_seconds) == (150, 50, None), (
        "a batch that others share tells of none"
    )
    assert cost.cache_share == pytest.approx(200 / 300)
    assert (cost.kept_min, cost.kept_max) == (3, 9000)
    (alone,) = costs(pa.Table.from_pylist([row | {"decode_batch": 1} for row in rows], schema=ROW_SCHEMA))
    assert alone.decode_seconds == 12.0


def test_costs_start_with_the_full_cache_and_skip_failed_rows() -> None:
    found = costs(make_rows(failures=240))  # all of the last method
    assert found[0].method == "full"
    assert "random" not in {cost.method for cost in found}
