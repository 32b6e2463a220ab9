"""What the figures show: the summary's own numbers, one look per method, every method told apart."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_rows import BUDGETS, METHODS, MIXED, make_history, make_rows

from indexmem.config.budget import NOTHING_EVICTED
from indexmem.report.costs import costs
from indexmem.report.figures import loss_curve, score_by_bytes, score_curve, spread
from indexmem.report.palette import COLORS, LEARNED, styles
from indexmem.report.summary import summarise


def test_lines_and_whiskers_are_the_summarys_numbers() -> None:
    summary = summarise(make_rows())
    lines = {trace.name: trace for trace in score_curve(summary, "niah_single_1").data}
    assert set(lines) == set(METHODS)
    for method, line in lines.items():
        for i, budget in enumerate(BUDGETS):
            cell = summary.cells[method, budget, "niah_single_1"]
            assert line.x[i] == pytest.approx(budget.ratio, abs=0.02)
            assert (
                line.y[i],
                line.y[i] + line.error_y.array[i],
                line.y[i] - line.error_y.arrayminus[i],
            ) == pytest.approx((100 * cell.mean, 100 * cell.high, 100 * cell.low))


def test_each_kind_of_budget_has_a_figure_with_smaller_ones_to_the_right() -> None:
    summary = summarise(make_rows(budgets=MIXED, samples=4, failures=0))
    axes = {kind: score_curve(summary, kind=kind).layout.xaxis for kind in summary.by_kind}
    assert {kind: axis.ticktext for kind, axis in axes.items()} == {
        "ratio": ("50%", "90%"), "tokens": ("1024 tokens", "256 tokens"), "bytes": ("16 MiB", "8 MiB", "4 MiB"),
    }  # fmt: skip
    assert axes["bytes"].tickvals == pytest.approx((0, 0.2, 0.4))
    assert "tokens kept per KV head" in axes["tokens"].title.text
    line = next(trace for trace in score_curve(summary, "niah_single_1", "bytes").data if trace.name == "knorm")
    assert [text.split("<br>")[1] for text in line.hovertext] == ["16 MiB in all", "8 MiB in all", "4 MiB in all"]
    cells = [summary.cells["knorm", budget, "niah_single_1"] for budget in MIXED[-3:]]
    assert list(line.y) == [100 * cell.mean for cell in cells]


def test_the_full_cache_is_a_dashed_level_line() -> None:
    summary = summarise(make_rows())
    level = 100 * summary.cells["full", NOTHING_EVICTED, "mean"].mean
    dashed = [shape for shape in score_curve(summary).layout.shapes if shape.line.dash == "dash"]
    assert [(shape.y0, shape.y1) for shape in dashed] == [(level, level)]


def test_bytes_put_the_indexers_keys_on_the_axis() -> None:
    rows = make_rows()
    lines = {trace.name: trace for trace in score_by_bytes(summarise(rows), costs(rows)).data}
    assert lines["indexer"].x[0] > lines["snapkv"].x[0] == pytest.approx(10.0, abs=0.1)


def test_a_method_looks_the_same_in_every_chart_and_unlike_the_others() -> None:
    summary = summarise(make_rows())
    mean, single = score_curve(summary), score_curve(summary, "niah_single_1")
    colour = {trace.name: trace.line.color for trace in mean.data if trace.mode != "text"}
    assert colour == {trace.name: trace.line.color for trace in single.data}
    assert len(set(colour.values())) == len(METHODS)
    assert colour["indexmem"] == LEARNED["indexmem"]


def test_learned_methods_stand_out_and_colours_suffice_for_twelve_others() -> None:
    look = styles([*LEARNED, *(f"m{i:02d}" for i in range(12))])
    assert len({style.color for style in look.values()}) == 14
    assert {name for name, style in look.items() if style.emphasised} == set(LEARNED)


@pytest.mark.parametrize("color", [*COLORS, *LEARNED.values()])
@pytest.mark.parametrize("page", ["#ffffff", "#181c23"])
def test_lines_contrast_with_both_pages(color: str, page: str) -> None:
    """At least 2.9:1 where WCAG asks 3:1 of graphics; markers tell methods apart as well."""
    light, dark = sorted((_luminance(color), _luminance(page)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 2.9


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).map(sorted))
def test_spread_labels_do_not_touch_and_stay_in_order(values: list[float]) -> None:
    placed = spread(values, 5.0)
    assert all(b - a >= 5.0 - 1e-9 for a, b in pairwise(placed))
    assert sum(placed) == pytest.approx(sum(values), abs=1e-6)


def test_the_loss_curve_has_the_rate_on_its_own_axis_and_takes_what_there_is() -> None:
    history = make_history()
    full = {trace.name: trace for trace in loss_curve(history).data}
    assert full["learning rate"].yaxis == "y2"
    assert list(full["loss"].y) == [record["loss"] for record in history]
    assert [trace.name for trace in loss_curve([{"step": 1, "loss": 2.0}]).data] == ["loss"]
