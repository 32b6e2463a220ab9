"""A sweep in the report: which settings matter, and the lines of its trials."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_zoo import zoo_sweep

from indexmem.report.figures.search import importance_bars, parallel_coordinates
from indexmem.report.sweeps import importances, scaled, varied


def test_the_setting_that_decides_is_the_heaviest() -> None:
    found = importances(zoo_sweep())
    assert found[0].axis == "distill.schedule.peak_lr"
    assert found[0].mean > 5 * max(weight.mean for weight in found[1:])
    assert [weight.mean for weight in found] == sorted((weight.mean for weight in found), reverse=True)
    assert list(importance_bars(found).data[0].y)[-1] == "distill.schedule.peak_lr"


def test_few_trials_or_equal_results_say_nothing() -> None:
    assert importances(zoo_sweep(7)) == ()
    sweep = zoo_sweep(12)
    level = tuple(replace(trial, metrics={"loss": 1.0}) for trial in sweep.trials)
    assert importances(replace(sweep, trials=level)) == ()


def test_axes_are_to_scale_logarithmic_or_even() -> None:
    sweep = zoo_sweep()
    rates = sorted(trial.params["distill.schedule.peak_lr"] for trial in sweep.trials)
    middle = (rates[0] * rates[-1]) ** 0.5
    assert scaled(sweep, "distill.schedule.peak_lr", middle) == pytest.approx(0.5)
    assert [scaled(sweep, "indexer.dim", value) for value in (8, 16, 32)] == pytest.approx([0, 1 / 3, 1])
    assert [scaled(sweep, "indexer.activation", value) for value in ("relu", "softplus")] == [0, 1]


def test_every_trial_is_a_line_and_the_best_is_the_thick_last_one() -> None:
    sweep = zoo_sweep()
    figure = parallel_coordinates(sweep)
    assert len(figure.data) == len(sweep.trials)
    assert all(len(trace.x) == len(varied(sweep)) + 1 for trace in figure.data)
    assert sweep.best is not None
    assert f"trial {sweep.best.number}:" in figure.data[-1].hovertext
    assert figure.data[-1].line.width > max(trace.line.width for trace in figure.data[:-1])
    assert figure.data[-1].y[-1] == 0.0  # of a loss the lowest is the best
