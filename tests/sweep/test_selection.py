"""What chooses a winner does not report it: trials are compared on samples of their own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.config.load import load, with_settings
from indexmem.config.sweep import Objective
from indexmem.evaluate.grid import plan
from indexmem.results.sweeps import COMPLETE, FAILED, Sweep, SweepFolder, Trial
from indexmem.sweep.ledger import Ledger
from indexmem.sweep.plan import plan_sweep
from indexmem.sweep.trial import Outcome, perform

SCORE, BYTES = (Objective.model_validate(name) for name in ("score", "bytes"))


@pytest.fixture
def spec(tmp_path):
    """A sweep that trains nothing."""
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    row = {"context": "The lantern hangs.", "question": "Where?", "answer_prefix": "", "answers": ["x"], "metric": "f1"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))
    raw = {
        "model": {"id": str(tmp_path / "model")},
        "grid": {
            "methods": ["knorm"],
            "ratios": [0.5],
            "benchmarks": ["niah_single_1"],
            "length": 640,
            "samples": 2,
            "haystack": str(tmp_path / "text.txt"),
        },
        "sweep": {"axes": {"eviction.sinks": [2, 4]}, "objectives": ["score"]},
        "run": {"root": str(tmp_path / "runs")},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(raw))
    return load(tmp_path / "spec.yaml")


class Recorder:
    """A place that notes what it is asked to evaluate."""

    def __init__(self):
        self.asked = []

    def evaluate(self, spec, provenance):
        self.asked.append(spec)
        return Outcome({"score": 0.5})


def test_trials_are_evaluated_on_samples_that_the_grid_does_not_have(spec):
    place = Recorder()
    perform(spec, place, {}, lambda run, row: None)
    trial, report = plan(place.asked[0]), plan(spec)
    texts = [{s.context for samples in p.samples.values() for s in samples} for p in (trial, report)]
    assert not texts[0] & texts[1]
    assert not set(trial.cell_ids) & set(report.cell_ids), "pasting the winner reads other rows"


def test_the_seed_of_these_samples_can_be_chosen(spec):
    assert with_settings(spec, {"sweep.samples_seed": 7}, "test").selecting.grid.seed == 7
    assert spec.selecting.grid.seed > spec.grid.seed + 1000, "no seed that people count up to"
    assert spec.selecting.model_copy(update={"grid": spec.grid}) == spec


def test_benchmarks_without_fresh_samples_are_named(spec, tmp_path):
    assert plan_sweep(spec).sweep.repeated == ()
    own = {"name": "jsonl", "params": {"path": str(tmp_path / "mine.jsonl")}}
    both = with_settings(spec, {"grid.benchmarks": ["niah_single_1", own]}, "test")
    assert plan_sweep(both).sweep.repeated == ("jsonl",)
    same = with_settings(spec, {"sweep.samples_seed": spec.grid.seed}, "test")
    assert plan_sweep(same).sweep.repeated == ("niah_single_1",)


def trial(number, score, size=1.0, **changes):
    return Trial(f"t{number}", number, COMPLETE, {"eviction.sinks": number}, {"score": score, "bytes": size}, **changes)


def sweep(*trials, objectives=(SCORE,), **changes):
    return Sweep("id", "s", "m", {"eviction.sinks": [1, 2]}, objectives, 2, trials, **{"evaluates": True} | changes)


def test_the_winner_lacks_a_report_until_it_has_one():
    first, second = trial(0, 0.5), trial(1, 0.9)
    assert sweep(first, second).unreported == (second,)
    assert sweep(first, replace(second, fresh={"score": 0.6})).unreported == ()
    assert sweep(first, second, evaluates=False).unreported == (), "a loss is measured on no samples of the grid"
    front = sweep(first, trial(1, 0.9, 2.0), objectives=(SCORE, BYTES))
    assert {t.number for t in front.unreported} == {0, 1}, "all of a front"
    assert sweep(replace(first, status=FAILED)).unreported == ()


def test_what_a_winner_reaches_on_fresh_samples_is_stored_and_shown(tmp_path):
    folder = SweepFolder(tmp_path)
    made = sweep(trial(0, 0.5), trial(1, 0.9), repeated=("jsonl",))
    for each in made.trials:
        folder.write(each)
    Ledger(folder, made, None).report_fresh("t1", {"score": 0.6, "bytes": 2.0})
    read = folder.read()
    assert (read.evaluates, read.repeated, read.unreported) == (True, ("jsonl",), ())
    assert read.describe(read.trials[1]) == "trial 1: score 0.9 (eviction.sinks=1); on fresh samples score 0.6"
    assert read.describe(read.trials[0]) == "trial 0: score 0.5 (eviction.sinks=0)"
    assert read.table()["fresh/score"].to_pylist() == [None, 0.6]
