"""Scores by the labels of samples: categories, and needle heat maps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from report_rows import make_row, make_rows
from report_zoo import DEPTHS, LENGTHS, zoo_rows

from indexmem.config.budget import Budget
from indexmem.report.facets import Facet, facets, heat_maps
from indexmem.report.figures.labels import facet_chart, heat_map
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import summarise

HALF = Budget.of_ratio(0.5)


def faceted(rows: pa.Table) -> tuple[Facet, ...]:
    return facets(rows, summarise(rows).ranked)


def labelled(labels: list[dict[str, Any]], scores: list[float], **changes: Any) -> list[dict[str, Any]]:
    pairs = enumerate(zip(labels, scores))
    return [make_row("a", 0.5, "b", i, s, labels=json.dumps(label)) | changes for i, (label, s) in pairs]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def test_a_category_weighs_its_benchmarks_equally() -> None:
    qa, code = {"category": "qa"}, {"category": "code"}
    rows = labelled([qa] * 2 + [code], [1.0, 1.0, 0.0]) + labelled([qa] * 6, [0.0] * 6, benchmark="c", cell_id="c")
    (facet,) = faceted(table(rows))
    assert (facet.name, facet.values) == ("category", ("code", "qa"))
    assert facet.cells["a", HALF, "qa"].mean == 0.5
    assert facet.cells["a", HALF, "code"].mean == 0.0


def test_no_facet_without_labels_or_with_one_value() -> None:
    assert faceted(make_rows(samples=2)) == ()
    assert faceted(table(labelled([{"category": "qa"}] * 3, [1.0] * 3))) == ()
    assert heat_maps(make_rows(samples=2)) == ()


def test_a_heat_map_has_means_at_their_places_and_gaps_where_nothing_is() -> None:
    places = [(15, 1000), (15, 1000), (95, 1000), (15, 2000)]
    labels = [{"depth": depth, "length": length} for depth, length in places]
    (found,) = heat_maps(table(labelled(labels, [1.0, 0.0, 0.25, 0.75])))
    assert (found.depths, found.lengths) == ((15.0, 95.0), (1000, 2000))
    np.testing.assert_array_equal(found.scores["a"], [[0.5, 0.75], [0.25, np.nan]])


def test_depths_may_be_shares_and_many_of_them_are_rounded() -> None:
    labels = [{"depth": i / 100, "length": 1000 * (1 + i % 2)} for i in range(100)]
    (found,) = heat_maps(table(labelled(labels, [1.0] * 100)))
    assert found.depths == tuple(range(0, 101, 10))


def test_maps_have_one_colour_scale_and_a_panel_per_method_with_the_full_cache() -> None:
    maps = heat_maps(zoo_rows(models=["m"], samples=1))
    found = next(m for m in maps if m.budget == HALF)
    methods = tuple(name for name in found.scores if name != "full")
    figure = heat_map(found, methods)
    assert [trace.name for trace in figure.data] == ["full", *methods]
    assert {trace.coloraxis for trace in figure.data} == {"coloraxis"}
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 100)
    assert np.shape(figure.data[1].z) == (len(DEPTHS), len(LENGTHS))
    mean = 100 * np.nanmean(found.scores[methods[0]])
    titles = [note.text for note in figure.layout.annotations]
    assert f"{methods[0]}  {mean:.0f}%" in titles
    assert titles[0].startswith("full cache  ")


def test_a_facet_chart_has_the_facets_numbers() -> None:
    facet = next(f for f in faceted(zoo_rows(models=["m"], samples=4)) if f.name == "category")
    figure = facet_chart(facet, HALF, ("indexmem", "random"))
    assert [trace.name for trace in figure.data] == ["indexmem", "random"]
    cells = [facet.cells["random", HALF, value] for value in facet.values]
    assert list(figure.data[1].y) == pytest.approx([100 * cell.mean for cell in cells])


def test_scores_beside_the_first_are_facets_when_they_are_named_so() -> None:
    others = [{"position 10": 1.0, "position 9": 0.0, "acc_norm": 1.0}, {"position 10": 0.5, "position 9": 0.0}]
    rows = labelled([{}, {}], [0.5, 0.5], group="g")
    (facet,) = faceted(table([row | {"other_scores": json.dumps(o)} for row, o in zip(rows, others)]))
    assert (facet.name, facet.values, facet.title) == ("position", (9, 10), "Score by position in the prompt")
    ten = facet.cells["a", HALF, 10]
    assert (ten.mean, ten.n) == (0.75, 1), "answers of one group are one unit"
