"""The page, the charts and the CSV of a sweep, for one objective and for several."""

import csv
from dataclasses import replace

import pytest
from sweep_trials import made_sweep

from indexmem.config.sweep import Objective
from indexmem.results.sweeps import COMPLETE, STOPPED, Sweep, Trial
from indexmem.sweep.importance import importances
from indexmem.sweep.page import sweep_page, write_sweep_report
from indexmem.sweep.picture import course, front, learning_curves, parallel

OBJECTIVES = [Objective.model_validate(name) for name in ("score", "bytes", "ms")]
VALUES = [(0.5, 30.0, 1.0), (0.9, 90.0, 2.0), (0.4, 30.0, 9.0)]


def sweep(objectives=1):
    curve = ({"step": 5, "loss": 2.0}, {"step": 10, "loss": 1.0})
    trials = [
        Trial(
            f"t{n}",
            n,
            COMPLETE,
            {"indexer.dim": n, "distill.texts": ["a", "b"]},
            dict(zip(("score", "bytes", "ms"), v)),
            curve,
        )
        for n, v in enumerate(VALUES)
    ]
    params = {"indexer.dim": 3, "distill.texts": ["a"]}
    stopped = Trial("t3", 3, STOPPED, params, {"loss": 2.0}, curve[:1], error="<b>'")
    axes = {"indexer.dim": [0, 1, 2, 3], "distill.texts": [["a", "b"], ["a"]]}
    return Sweep("id", "my-sweep", "m", axes, tuple(OBJECTIVES[:objectives]), 5, (*trials, stopped))


def test_one_objective_is_drawn_trial_by_trial_with_the_best_so_far():
    points, best = course(sweep()).data
    assert (list(points.x), list(points.y)) == ([0, 1, 2], [50.0, 90.0, 40.0])
    assert list(best.y) == [50.0, 90.0, 90.0]


@pytest.mark.parametrize("count", [2, 3])
def test_several_objectives_are_drawn_as_a_front(count):
    others, best = front(sweep(count)).data
    assert (list(best.x), list(best.y)) == ([90.0 / 2**20, 30.0 / 2**20], [90.0, 50.0])
    assert list(others.y) == [40.0]
    assert "trial 1: score 0.9, bytes 90" in best.hovertext[0]


def test_parallel_coordinates_have_a_line_a_trial_through_all_axes_the_best_on_top():
    *others, best = parallel(sweep(2)).data
    assert len(others) == 3
    assert best.hovertext.startswith("trial 1: ")
    assert list(best.y) == pytest.approx([1 / 3, 0.0, 1.0, 1.0]), "dim, texts, score, bytes"
    assert list(others[0].y) == [1.0, 1.0, None, None], "ended early: it has settings and no result"


def test_learning_curves_are_of_all_trials():
    *others, best = learning_curves(sweep()).data
    assert [list(trace.y) for trace in others] == [[2.0], [2.0, 1.0], [2.0, 1.0]]
    assert others[0].line.dash == "dot"
    assert best.hovertext == "trial 1"
    assert learning_curves(replace(sweep(), trials=(Trial("t", 0, COMPLETE, {}, {"score": 1.0}),))) is None


def test_what_decides_is_found_and_what_does_not_is_not_taken_for_it():
    found = importances(made_sweep())
    assert (found[0].axis, found[0].p_value < 0.05) == ("indexer.dim", True)
    assert all(one.low <= one.share <= one.high and one.p_value >= 0.05 for one in found[1:])
    assert found[0].low > 0.4
    shuffled = [made_sweep(seed=seed, effect=0.0) for seed in range(20)]
    assert sum(any(one.p_value < 0.05 for one in importances(each)) for each in shuffled) <= 3
    assert importances(made_sweep(count=7)) == (), "too few trials to say"
    equal = [replace(trial, metrics={"score": 1.0}) for trial in made_sweep().trials]
    assert importances(replace(made_sweep(), trials=tuple(equal))) == ()


def test_a_sweep_without_a_finished_trial_has_a_page_too(tmp_path):
    for count in (1, 2, 3):
        for trials in ((), sweep(count).trials[-1:]):
            assert write_sweep_report(replace(sweep(count), trials=trials), tmp_path).is_file()


def test_the_page_tells_the_best_settings_first_and_hostile_texts_as_texts():
    found = sweep()
    page = sweep_page(replace(found, trials=tuple(replace(t, spread={}, fresh={"score": 0.3}) for t in found.trials)))
    best, table = page.index('<h2 id="best-title">'), page.index('<h2 id="trials-title">')
    told = page[best : page.index("</section>", best)]
    assert "<h3>score 90.0%</h3>" in told
    assert "score 30.0%" in told, "on fresh samples"
    assert "&#39;indexer.dim=1&#39; &#39;distill.texts=[&#34;a&#34;, &#34;b&#34;]&#39;" in told
    assert [page.index(f'<tr><th scope="row">{number}</th>', table) for number in (1, 0, 2, 3)] == sorted(
        page.index(f'<tr><th scope="row">{number}</th>', table) for number in range(4)
    ), "the best first, those without a result last"
    assert "<b>'" not in page[table:]


def test_the_page_needs_no_network_and_the_csv_is_complete(tmp_path):
    page = write_sweep_report(sweep(2), tmp_path / "reports")
    text = page.read_text()
    assert page.name == "my-sweep-sweep.html"
    assert "<script src=" not in text
    assert "default-src &#39;none&#39;" in text
    assert "4 of 5 trials" in text
    rows = list(csv.DictReader((tmp_path / "reports" / "my-sweep-sweep.csv").open()))
    assert [row["status"] for row in rows] == ["complete"] * 3 + ["stopped"]
    assert rows[1]["score"] == "0.9"
    assert rows[1]["distill.texts"] == "['a', 'b']"
    assert rows[3]["error"] == "<b>'"
    names = ["index.html", "my-sweep-sweep.csv", "my-sweep-sweep.html"]
    assert sorted(p.name for p in page.parent.iterdir()) == names
    other = write_sweep_report(replace(sweep(2), id="0123456789"), tmp_path / "reports")
    assert other.name == "my-sweep-sweep-012345.html", "the page of another sweep of that name stays"
