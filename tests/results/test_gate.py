"""A full cache that falls short of what is known stops the ranking, and says why."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from report_rows import make_row, make_rows

from indexmem.commands.report import mirror_grid, print_scores
from indexmem.config.load import with_overrides
from indexmem.config.schema import Experiment, GridConfig
from indexmem.errors import UserError
from indexmem.report.content import gather
from indexmem.results.gate import check_floor, gated, shortfalls
from indexmem.results.schema import FAILED, RETENTION_SCHEMA, ROW_SCHEMA
from indexmem.results.tables import comparison_table


def rows_of(scores: dict[str, list[float]], method: str = "full") -> list[dict]:
    budget = 0.0 if method == "full" else 0.5
    return [
        make_row(method, budget, name, i, score) for name, values in scores.items() for i, score in enumerate(values)
    ]


def table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


GOOD_AND_BAD = table(
    rows_of({"good": [1.0] * 9 + [0.0], "bad": [1.0] * 3 + [0.0] * 7})
    + rows_of({"good": [1.0] * 10, "bad": [1.0] * 10}, "knorm")
)


@pytest.mark.parametrize(
    ("floor", "below"),
    [
        (None, []),
        (0.1, []),
        (0.3, []),
        (0.31, ["bad"]),
        (0.95, ["bad", "good"]),
        ({"good": 0.9}, []),
        ({"good": 0.91}, ["good"]),
        ({"mean": 0.6}, []),
        ({"mean": 0.61, "good": 0.2}, ["mean"]),
    ],
)
def test_scores_below_their_floor(floor, below):
    assert [fall.benchmark for fall in shortfalls(GOOD_AND_BAD, floor)] == below


def test_a_floor_that_is_met_changes_nothing():
    gate = gated(GOOD_AND_BAD, 0.3)
    assert gate.rows is GOOD_AND_BAD
    assert (gate.headline, gate.explanation) == ("", "")


def test_the_explanation_has_benchmark_score_interval_floor_and_advice():
    gate = gated(GOOD_AND_BAD, {"bad": 0.8})
    (fall,) = gate.shortfalls
    assert (fall.score.mean, fall.score.n) == (pytest.approx(0.3), 10)
    assert "bad: the full cache scores 30.0 (95% interval 10.8 to 60.3, 10 samples), below the floor of 80.0" in (
        gate.explanation
    )
    for advice in ("model.id", "chat template", "grid.length", "grid.full_cache_floor"):
        assert advice in gate.explanation


def test_only_the_full_cache_is_left_to_show():
    gate = gated(GOOD_AND_BAD, 0.8)
    assert pc.unique(gate.rows["method"]).to_pylist() == ["full"]
    text = comparison_table(gate.rows)
    assert "full cache, nothing evicted" in text and " 60 (" in text
    assert "knorm" not in text


def test_repeats_of_a_sample_count_once():
    rows = rows_of({"b": [1.0, 0.0]})
    rows += [row | {"repeat": repeat} for row in rows[:1] for repeat in range(1, 9)]
    (fall,) = shortfalls(table(rows), 0.9)
    assert (fall.score.mean, fall.score.n) == (0.5, 2)


def test_a_full_cache_without_answers_is_a_shortfall():
    rows = [row | {"status": FAILED, "score": None} for row in rows_of({"b": [1.0]})]
    gate = gated(table(rows), 0.1)
    assert "b: no scored answer of the full cache (floor 10.0)" in gate.explanation
    assert shortfalls(table(rows + rows_of({"c": [1.0]})), {"mean": 0.1})[0].score is None


def test_without_any_row_of_the_full_cache_nothing_is_shown():
    with pytest.raises(UserError, match="no scored answer of the full cache"):
        gated(table(rows_of({"b": [1.0]}, "knorm")), 0.1)


def test_the_terminal_gets_the_full_cache_and_the_reason(capsys):
    spec = with_overrides(Experiment(), ["grid.full_cache_floor=0.99"])
    gate = print_scores(spec, make_rows(failures=0))
    said = capsys.readouterr().out
    assert gate.shortfalls and gate.headline in said
    assert "full cache, nothing evicted" in said and "indexmem" not in said
    assert not print_scores(Experiment(), make_rows(failures=0)).shortfalls
    assert "indexmem" in capsys.readouterr().out


def test_the_report_says_so_in_place_of_a_verdict():
    spec = with_overrides(Experiment(), ["grid.full_cache_floor=0.99"])
    for experiment, ranked in ((spec, False), (Experiment(), True)):
        (view,) = gather(experiment, make_rows(failures=0), RETENTION_SCHEMA.empty_table()).views
        assert bool(view.summary.methods) == ranked
        assert ("not ranked" in view.verdict.headline) != ranked
        assert ("below the floor of 99.0" in view.verdict.basis) != ranked


def test_mlflow_gets_the_full_cache_and_the_reason(tmp_path):
    published = {}

    class Sink:
        def publish_grid(self, experiment, rows, *, artifacts, verdict):
            published.update(rows=rows, verdict=verdict)

    spec = with_overrides(Experiment(), ["grid.full_cache_floor=0.99"])
    mirror_grid(Sink(), spec, make_rows(failures=0), tmp_path / "no report")
    assert pc.unique(published["rows"]["method"]).to_pylist() == ["full"]
    assert published["verdict"].startswith("Methods are not ranked")


def grid(**settings) -> GridConfig:
    return GridConfig.model_validate({"methods": ["full", "knorm"], **settings})


def test_floors_are_checked_before_anything_runs():
    check_floor(grid(), ["a"])
    check_floor(grid(full_cache_floor=0.5), ["a"])
    check_floor(grid(full_cache_floor={"a": 0.5, "mean": 0.4}), ["a"])
    with pytest.raises(UserError, match=r"names b, which the grid does not evaluate\. Benchmarks: a"):
        check_floor(grid(full_cache_floor={"b": 0.5}), ["a"])
    with pytest.raises(UserError, match=r"Add `full` to grid\.methods"):
        check_floor(grid(methods=["knorm"], full_cache_floor=0.5), ["a"])


@pytest.mark.parametrize("wrong", [95, 0, -0.1, {"a": 95}])
def test_a_floor_is_a_share(wrong):
    with pytest.raises(ValueError, match="full_cache_floor"):
        grid(full_cache_floor=wrong)
