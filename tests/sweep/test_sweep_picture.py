"""The page and the CSV of a sweep, for one objective and for several."""

import csv
from dataclasses import replace

import pytest

from indexmem.config.sweep import Objective
from indexmem.results.sweeps import COMPLETE, STOPPED, Sweep, Trial
from indexmem.sweep.picture import picture, write_sweep_report

OBJECTIVES = [Objective.model_validate(name) for name in ("score", "bytes", "ms")]
VALUES = [(0.5, 30.0, 1.0), (0.9, 90.0, 2.0), (0.4, 30.0, 9.0)]


def sweep(objectives=1):
    trials = [
        Trial(
            f"t{n}",
            n,
            COMPLETE,
            {"indexer.dim": n, "distill.texts": ["a", "b"]},
            dict(zip(("score", "bytes", "ms"), v)),
        )
        for n, v in enumerate(VALUES)
    ]
    stopped = Trial("t3", 3, STOPPED, {"indexer.dim": 3, "distill.texts": ["a"]}, {"loss": 1.0}, error="<b>'")
    axes = {"indexer.dim": [0, 1, 2, 3], "distill.texts": [["a", "b"], ["a"]]}
    return Sweep("id", "my-sweep", "m", axes, tuple(OBJECTIVES[:objectives]), 5, (*trials, stopped))


def test_one_objective_is_drawn_trial_by_trial_with_the_best_so_far():
    points, best, table = picture(sweep()).data
    assert (list(points.x), list(points.y)) == ([0, 1, 2], [0.5, 0.9, 0.4])
    assert list(best.y) == [0.5, 0.9, 0.9]
    assert len(table.cells.values[0]) == 4


@pytest.mark.parametrize("count", [2, 3])
def test_several_objectives_are_drawn_as_a_front(count):
    others, front, _ = picture(sweep(count)).data
    assert (list(front.x), list(front.y)) == ([90.0, 30.0], [0.9, 0.5])
    assert (list(others.x), list(others.y)) == ([30.0], [0.4])
    assert "trial 1: score 0.9, bytes 90" in front.text[0]


def test_a_sweep_without_a_finished_trial_has_a_page_too(tmp_path):
    for count in (1, 2, 3):
        assert write_sweep_report(replace(sweep(count), trials=()), tmp_path).is_file()


def test_the_page_needs_no_network_and_the_csv_is_complete(tmp_path):
    page = write_sweep_report(sweep(2), tmp_path / "reports")
    text = page.read_text()
    assert page.name == "my-sweep-sweep.html"
    assert "<script src=" not in text
    assert "my-sweep: 4 of 5 trials" in text
    rows = list(csv.DictReader((tmp_path / "reports" / "my-sweep-sweep.csv").open()))
    assert [row["status"] for row in rows] == ["complete"] * 3 + ["stopped"]
    assert rows[1]["score"] == "0.9"
    assert rows[1]["distill.texts"] == "['a', 'b']"
    assert rows[3]["error"] == "<b>'"
    assert sorted(p.name for p in page.parent.iterdir()) == ["my-sweep-sweep.csv", "my-sweep-sweep.html"]
