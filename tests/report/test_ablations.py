"""Variants against their baselines."""

from __future__ import annotations

import pyarrow as pa
import pytest
from report_rows import make_row
from report_zoo import zoo_rows

from indexmem.errors import UserError
from indexmem.report.ablations import ablations, families, root
from indexmem.report.figures.differences import forest
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import MEAN, Summary, summarise

METHODS = (
    "snapkv(window_size=8)",
    "indexmem",
    "knorm",
    "snapkv",
    "snapkv+memory",
    "indexer",
    "tova(x=1)",
    "tova(x=22)",
)


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(zoo_rows(models=["m"], samples=12))


@pytest.mark.parametrize(
    ("label", "name"),
    [("snapkv", "snapkv"), ("snapkv+memory(a=1)", "snapkv"), ("indexmem", "indexer"), ("adakv(base=snapkv)", "adakv")],
)
def test_the_root_of_a_label(label: str, name: str) -> None:
    assert root(label) == name


def test_families_have_the_plainest_label_as_baseline() -> None:
    assert families(METHODS) == {
        "snapkv": ("snapkv(window_size=8)", "snapkv+memory"),
        "indexer": ("indexmem",),
        "tova(x=1)": ("tova(x=22)",),
    }


def test_differences_are_paired_and_adjusted_among_the_variants(summary: Summary) -> None:
    found = [ablation for ablation in ablations(summary) if ablation.baseline == "snapkv"]
    assert [ablation.budget for ablation in found] == list(summary.budgets)
    last = found[-1]
    plain = [summary.difference((v, last.budget), ("snapkv", last.budget), MEAN) for v in last.variants]
    assert [d.mean for d in last.variants.values()] == [d.mean for d in plain if d is not None]
    assert [d.low for d in last.variants.values()] == pytest.approx([d.low for d in plain if d is not None])
    assert all(d.p_value >= p.p_value - 0.03 for d, p in zip(last.variants.values(), plain) if p is not None)


def test_a_variant_among_hundreds_is_still_found() -> None:
    """The smallest p-value of a resampling test times the number of variants would be above 0.05."""
    cells = {"snapkv": 0.0} | {f"snapkv(window_size={i})": 1.0 for i in range(120)}
    rows = [make_row(m, 0.5, "b", i, score) for m, score in cells.items() for i in range(40)]
    (found,) = ablations(summarise(pa.Table.from_pylist(rows, schema=ROW_SCHEMA)))
    assert {d.p_value for d in found.variants.values()} == {1 / 2001}
    assert {d.mean for d in found.variants.values()} == {1.0}


def test_a_baseline_of_choice_is_compared_with_all_others(summary: Summary) -> None:
    found = ablations(summary, "knorm")
    assert {ablation.baseline for ablation in found} == {"knorm"}
    assert set(found[0].variants) == set(summary.methods) - {"knorm"}
    with pytest.raises(UserError, match=r"No method 'nothing'.*indexmem"):
        ablations(summary, "nothing")


def test_a_forest_fills_the_markers_of_decided_differences_only(summary: Summary) -> None:
    found = [ablation for ablation in ablations(summary) if ablation.baseline == "snapkv"]
    for trace in forest(found).data:
        differences = [ablation.variants[trace.name] for ablation in found]
        assert list(trace.x) == pytest.approx([100 * d.mean for d in differences])
        assert [symbol == "circle" for symbol in trace.marker.symbol] == [d.p_value < 0.05 for d in differences]
