"""What the figures show: the summary's own numbers, one look per method, every method told apart."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_rows import BUDGETS, METHODS, MIXED, make_history, make_rows
from report_zoo import zoo_rows

from indexmem.config.budget import NOTHING_EVICTED
from indexmem.eviction.methods.registry import METHODS as METHOD_TABLE
from indexmem.report.facets import facets
from indexmem.report.figures.base import frame, label_ends, plain_line, spread
from indexmem.report.figures.by_budget import bytes_by_budget, kept_while_decoding, time_by_budget, truncation
from indexmem.report.figures.curves import score_curve
from indexmem.report.figures.labels import facet_chart
from indexmem.report.figures.tradeoffs import score_by_bytes, score_by_time
from indexmem.report.figures.training import loss_curve
from indexmem.report.images import standing_alone
from indexmem.report.palette import COLORS, KNOWN, LEARNED, Style, style
from indexmem.report.panels import all_panels, cost_groups
from indexmem.results.costs import costs
from indexmem.results.summary import summarise


def test_lines_and_whiskers_are_the_summarys_numbers() -> None:
    summary = summarise(make_rows())
    lines = {trace.name: trace for trace in score_curve(summary, "niah_single_1").data if trace.mode != "text"}
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


def test_time_is_that_of_a_methods_scoring() -> None:
    rows = make_rows()
    lines = {trace.name: trace for trace in score_by_time(summarise(rows), costs(rows)).data}
    assert lines["knorm"].x[0] == pytest.approx(180)


def test_best_trades_are_those_that_nothing_beats_in_score_and_bytes() -> None:
    rows = make_rows()
    summary, spent = summarise(rows), costs(rows)
    figure = score_by_bytes(summary, spent)
    front = next(trace for trace in figure.data if trace.name == "best trades")
    points = [(x, y) for trace in figure.data if trace.legendgroup for x, y in zip(trace.x, trace.y)]
    for x, y in zip(front.x, front.y):
        assert not any((a <= x and b >= y) and (a, b) != (x, y) for a, b in points)
    assert max(y for _, y in points) == pytest.approx(front.y[-1])


def test_costs_by_budget_have_their_units_and_the_full_caches_level() -> None:
    rows = make_rows(budgets=MIXED, samples=2, failures=0)
    spent = costs(rows)
    size = next(t for t in bytes_by_budget(spent, METHODS, "bytes").data if t.name == "knorm")
    assert list(size.y) == pytest.approx([16, 8, 4], abs=0.1)
    assert not any(trace.y for trace in time_by_budget(spent, METHODS, "ratio").data), "cells shared batches"
    alone = pa.Table.from_pylist([row | {"decode_batch": 1} for row in rows.to_pylist()], schema=rows.schema)
    figure = time_by_budget(costs(alone), METHODS, "ratio")
    assert next(t for t in figure.data if t.name == "knorm").y[0] == pytest.approx(9600)
    assert [shape.y0 for shape in figure.layout.shapes] == pytest.approx([9600])
    panels = {len(all_panels({"costs": cost_groups(summarise(found), costs(found))})) for found in (rows, alone)}
    assert panels == {2 + 3, 2 + 6}, "a chart of decode times for each kind of budget, where there are any"


def test_decoding_shows_cut_answers_and_tokens_held_with_the_most_above() -> None:
    rows = zoo_rows(models=["m"], samples=3)
    spent = costs(rows)
    cut = truncation(spent, ["random"], "ratio").data[0]
    assert list(cut.y) == [100 * c.truncated for c in spent if c.method == "random"]
    held = kept_while_decoding(spent, ["random"], "ratio").data[0]
    assert list(held.y) == pytest.approx([3300, 2200, 1100, 440])
    assert list(held.error_y.array) == pytest.approx([450, 300, 150, 59])


def test_a_method_looks_the_same_in_every_chart_and_unlike_the_others() -> None:
    summary = summarise(make_rows())
    mean, single = score_curve(summary), score_curve(summary, "niah_single_1")
    colour = {trace.name: trace.line.color for trace in mean.data if trace.mode != "text"}
    assert colour == {trace.name: trace.line.color for trace in single.data if trace.mode != "text"}
    assert len(set(colour.values())) == len(METHODS)
    assert colour["indexmem"] == LEARNED["indexmem"]


def test_a_look_belongs_to_a_name_whoever_else_is_shown() -> None:
    """Leaving methods out changes no colour; the report, its files and the board ask the same function."""
    summary = summarise(make_rows(samples=4))
    few = summarise(make_rows(methods=("knorm", "random"), samples=4))
    for chart in (score_curve, lambda s: score_by_bytes(s, costs(make_rows(samples=4)))):
        drawn = {
            trace.name: (trace.line.color, trace.marker.symbol) for trace in chart(summary).data if trace.legendgroup
        }
        for trace in chart(few).data:
            if trace.mode == "lines+markers" and trace.legendgroup:
                assert drawn[trace.name] == (trace.line.color, trace.marker.symbol)
                assert (style(trace.name).color, style(trace.name).marker) == drawn[trace.name]


def test_every_method_of_ours_has_a_look_of_its_own_and_the_first_a_colour() -> None:
    known = [*METHOD_TABLE, *LEARNED]
    assert set(known) <= set(KNOWN), "a new method's name belongs at the end of KNOWN"
    looks = {name: style(name) for name in known}
    assert len({(look.color, look.marker, look.dash) for look in looks.values()}) == len(looks)
    assert len({style(name).color for name in (*KNOWN[:12], *LEARNED)}) == 14
    assert {name for name, look in looks.items() if look.emphasised} == set(LEARNED)
    assert all(look.glyph for look in looks.values())


def test_a_family_shares_a_colour_and_its_variants_differ_from_the_plain_one() -> None:
    plain = style("snapkv")
    for variant in ("snapkv+memory", "snapkv(window_size=8)", "snapkv+memory(window_size=8)"):
        look = style(variant)
        assert look.color == plain.color
        assert look.marker != plain.marker
        assert look.dash != plain.dash
    assert style("mine.methods:Sum") == style("mine.methods:Sum")


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
    above = spread(values, 5.0, floor=0.0)
    assert above[0] >= 0.0
    assert all(b - a >= 5.0 - 1e-9 for a, b in pairwise(above))


def test_labels_with_room_stay_where_their_lines_end() -> None:
    assert spread([0.0, 1.0, 40.0], 5.0) == pytest.approx([-2.0, 3.0, 40.0])


def test_the_loss_curve_has_the_rate_on_its_own_axis_and_takes_what_there_is() -> None:
    history = make_history()
    full = {trace.name: trace for trace in loss_curve(history).data}
    assert full["learning rate"].yaxis == "y2"
    assert list(full["loss"].y) == [record["loss"] for record in history]
    assert [trace.name for trace in loss_curve([{"step": 1, "loss": 2.0}]).data] == ["loss"]


def test_a_figure_in_a_file_names_its_methods_once() -> None:
    """Beside the lines, or in a legend: the page has one for all its figures, a file has none."""
    figure = frame("Score for memory", "bytes", "score")
    for method in ("snapkv", "knorm"):
        figure.add_trace(plain_line(method, Style("#112233", "circle", emphasised=False), [0, 1], [50, 40], ["", ""]))
    alone = standing_alone(figure)
    assert alone.layout.showlegend and [trace.showlegend for trace in alone.data] == [True, True]
    assert not figure.layout.showlegend
    label_ends(figure, 1.0, 5.0, 0.0)
    assert standing_alone(figure) is figure
    rows = zoo_rows(samples=2)
    one = rows.filter(pc.equal(rows["model"], rows["model"][0]))
    summary = summarise(one)
    (dots,) = (facet_chart(f, summary.budgets[0], summary.methods) for f in facets(one, summary.ranked))
    assert [t.name for t in standing_alone(dots).data if t.showlegend] == list(summary.methods)
