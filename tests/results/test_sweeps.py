"""Stored sweeps: what is written is read, at any moment, and ranked by the objectives."""

import json
import os
from dataclasses import replace

import pyarrow as pa
import pytest

from indexmem.config.sweep import Objective
from indexmem.errors import UserError
from indexmem.results.sweeps import COMPLETE, FAILED, RUNNING, STOPPED, Spread, Sweep, SweepFolder, Trial, read_sweeps
from indexmem.tracking.sweep_runs import sweep_note

SCORE, BYTES = Objective(metric="score", mode="max"), Objective(metric="bytes", mode="min")
AXES = {
    "indexer.dim": [4, 8],
    "distill.texts": [["a"], ["a", "b"]],
    "memory.decay": {"low": 0.5, "high": 1.0, "log": False},
}


def trial(number, status=COMPLETE, **metrics):
    params = {"indexer.dim": 4, "distill.texts": ["a"], "memory.decay": 0.5 + number / 100}
    curve = ({"step": 5, "loss": 2.0}, {"step": 10, "loss": 1.0})
    return Trial(f"t{number:02}", number, status, params, metrics, curve=curve, distill_id="d")


def sweep(*trials, objectives=(SCORE, BYTES), planned=4, name="s"):
    return Sweep(f"id-{name}", name, "m", AXES, objectives, planned, trials)


def test_what_is_written_is_read(tmp_path):
    written = sweep(scored(1, [0.5, 0.5], bytes=3.0), trial(0, FAILED))
    folder = SweepFolder(tmp_path / "sweeps" / written.id)
    folder.write_header(written)
    for item in written.trials:
        folder.write(item)
    (read,) = read_sweeps(tmp_path)
    assert read == sweep(trial(0, FAILED), scored(1, [0.5, 0.5], bytes=3.0))
    assert read.trials[0].step == 10
    assert read_sweeps(tmp_path / "nowhere") == []


def test_sweeps_are_found_by_name_the_last_one_first(tmp_path):
    for age, name in enumerate(("old", "new", "other")):
        written = sweep(name=name)
        SweepFolder(tmp_path / "sweeps" / written.id).write_header(written)
        os.utime(tmp_path / "sweeps" / written.id / "sweep.json", (age, age))
    assert [found.name for found in read_sweeps(tmp_path)] == ["other", "new", "old"]
    assert [found.name for found in read_sweeps(tmp_path, "new")] == ["new"]


def test_a_write_that_was_cut_off_changes_nothing_and_newer_fields_are_no_obstacle(tmp_path, monkeypatch):
    folder = SweepFolder(tmp_path)
    folder.write(trial(0, score=0.5))
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            folder.write(trial(0, score=0.9))
    assert folder.trials() == (trial(0, score=0.5),)
    path = tmp_path / "trials" / "t00.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"later": 1}))
    assert folder.trials() == (trial(0, score=0.5),)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": "t00"', "\ufffd", "null"])
def test_a_damaged_trial_is_named_and_missing(tmp_path, content):
    folder = SweepFolder(tmp_path)
    for number in range(2):
        folder.write(trial(number, score=0.5))
    (tmp_path / "trials" / "t00.json").write_text(content)
    with pytest.warns(RuntimeWarning, match=r"Left out .*t00\.json: damaged"):
        assert folder.trials() == (trial(1, score=0.5),)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"objectives": [{}]}'])
def test_a_damaged_header_is_named_and_hides_no_other_sweep(tmp_path, content):
    for name in ("good", "bad"):
        SweepFolder(tmp_path / "sweeps" / name).write_header(sweep(name=name))
    (tmp_path / "sweeps" / "bad" / "sweep.json").write_text(content)
    with pytest.raises(UserError, match=r"(?s)bad/sweep\.json is damaged .*`indexmem sweep` of its spec writes"):
        SweepFolder(tmp_path / "sweeps" / "bad").read()
    with pytest.warns(RuntimeWarning, match=r"bad/sweep\.json is damaged"):
        assert [found.name for found in read_sweeps(tmp_path)] == ["good"]


def test_only_complete_trials_with_all_objectives_are_ranked():
    found = sweep(
        trial(0, score=0.5, bytes=3.0),
        trial(1, score=0.9, bytes=9.0),
        trial(2, score=0.4, bytes=3.0),
        trial(3, STOPPED, score=1.0, bytes=1.0),
        trial(4, RUNNING, score=1.0, bytes=1.0),
        trial(5, score=1.0),
    )
    assert [t.number for t in found.valued] == [0, 1, 2]
    assert [t.number for t in found.front] == [1, 0]
    assert found.best.number == 1
    assert sweep(objectives=(BYTES,)).best is None
    assert sweep(*found.trials[:3], objectives=(BYTES,)).best.number == 0, "of equal ones the first"


def scored(number, scores, **costs):
    spread = {"score": Spread(0.1, 0.9, tuple(score / len(scores) for score in scores))}
    return replace(trial(number, score=sum(scores) / len(scores), **costs), spread=spread)


def test_of_equal_trials_the_cheapest_is_the_best_wherever_it_is_told():
    equal = [trial(0, score=1.0, bytes=9.0, ms=1.0), trial(1, score=1.0, bytes=3.0, ms=5.0)]
    found = sweep(*equal, trial(2, score=1.0, bytes=3.0, ms=4.0), trial(3, score=0.5), objectives=(SCORE,))
    assert [t.number for t in found.ranked] == [2, 1, 0, 3]
    assert [t.number for t in found.tied] == [1, 0]
    assert (found.best.number, found.winners[0].number, found.unreported) == (2, 2, ())
    text = "Not worse than trial 2 by more than noise: trials 1 and 0. None of them holds fewer bytes."
    assert found.tie_text == text
    assert text in sweep_note(found)


def test_trials_tie_by_a_paired_test_on_their_samples():
    easy = [1.0] * 30
    found = sweep(
        scored(0, easy, bytes=100.0),
        scored(1, [0.0, *easy[1:]], bytes=25.0),
        scored(2, [0.0] * 15 + easy[15:], bytes=10.0),
        trial(3, score=0.99),
        objectives=(SCORE,),
    )
    assert [t.number for t in found.tied] == [1], "two more have no samples to compare, or too few of them right"
    assert found.tie_text == ("Not worse than trial 0 by more than noise: trial 1. Trial 1 holds 25% of its bytes.")
    assert found.describe(found.best) == (
        "trial 0: score 1 [0.1, 0.9] (indexer.dim=4, distill.texts=['a'], memory.decay=0.5)"
    )
    assert sweep(*found.trials, objectives=(SCORE, BYTES)).tie_text == "", "a front has no one winner"


def test_a_sweep_is_finished_when_all_its_trials_have_ended():
    ended = [trial(0, score=0.5), trial(1, STOPPED)]
    assert sweep(*ended, planned=2).finished
    assert not sweep(*ended, trial(2, FAILED), planned=3).finished
    assert not sweep(*ended, planned=3).finished


def test_the_table_has_a_row_a_trial_and_a_column_for_everything():
    table = sweep(trial(0, score=0.5), trial(1, STOPPED, loss=2.0)).table()
    assert isinstance(table, pa.Table)
    assert table.column_names == [
        *("id", "number", "status", "step", "seconds", "distill_id", "error"),
        *("indexer.dim", "distill.texts", "memory.decay", "loss", "score"),
    ]
    assert table["score"].to_pylist() == [0.5, None]
    assert table["distill.texts"].to_pylist() == [["a"], ["a"]]
    assert sweep().table().num_rows == 0
