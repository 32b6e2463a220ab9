"""The book of a sweep, closed and opened again at any moment: every trial once, none lost, none repeated."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexmem.config.load import validate
from indexmem.config.sweep import Objective
from indexmem.results.sweeps import COMPLETE, FAILED, RUNNING, STOPPED, Sweep, SweepFolder
from indexmem.sweep.ledger import Ledger
from indexmem.sweep.proposals import Proposer
from indexmem.sweep.space import Space

AXES = {"indexer.dim": [1, 2, 3, 4], "target.heads": ["max", "mean"]}
SPACE = Space.of(validate({"indexer": {"pair_term": True}, "sweep": {"axes": AXES, "search": "random"}}, "spec"))


def book(folder: Path, planned: int = 8) -> Ledger:
    sweep = Sweep("s1", "s", "m", AXES, (Objective(metric="loss", mode="min"),), planned)
    return Ledger(SweepFolder(folder), sweep, Proposer(SPACE), "abc")


def stored(folder: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in (folder / "trials").glob("*.json")}


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["begin", "report", "complete", "stop", "fail", "crash"]), max_size=60))
def test_whatever_happens_each_trial_ends_once(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("sweep")
    ledger, under_way, done = book(folder), [], []
    for event in [*events, "crash", *["begin", "complete"] * 20, "crash", *["begin", "complete"] * 20]:
        if event == "begin" and ledger.left and (trial := ledger.next()):
            assert trial.id not in done, "a trial that has ended is begun again"
            assert stored(folder)[trial.id]["status"] == RUNNING, "on disk before anything depends on it"
            ledger.begin_work(trial.id)
            under_way.append(trial.id)
        elif event == "crash":
            ledger, under_way = book(folder), []
        elif under_way and event == "report":
            ledger.report(under_way[0], {"step": ledger.sweep.trials[0].step + 1, "loss": 1.0}, "d")
        elif under_way and event == "complete":
            done.append(under_way.pop(0))
            ledger.complete(done[-1], {"loss": 0.5})
        elif under_way and event == "stop":
            done.append(under_way.pop(0))
            ledger.stop(done[-1])
        elif under_way and event == "fail":
            ledger.fail(under_way.pop(0), "out of luck")
    trials = ledger.sweep.trials
    assert {trial.status for trial in trials} <= {COMPLETE, STOPPED}
    assert [trial.number for trial in trials] == list(range(8))
    assert sorted(done) == sorted(trial.id for trial in trials) == sorted(stored(folder)), "each ended once"
    assert ledger.left == 0
    assert ledger.next() is None
    assert ledger.sweep.finished


def test_what_was_interrupted_comes_first_and_is_reported_once_more(tmp_path):
    ledger = book(tmp_path)
    first, second, third = (ledger.next() for _ in range(3))
    for trial in (first, second, third):
        ledger.begin_work(trial.id)
        ledger.report(trial.id, {"step": 5, "loss": 2.0}, "d1")
    ledger.complete(first.id, {"score": 0.5}, cell_ids=("c",))
    ledger.fail(third.id, "no memory")

    ledger = book(tmp_path)
    assert ledger.left == 7
    again = [ledger.next() for _ in range(3)]
    assert [trial.id for trial in again[:2]] == [second.id, third.id]
    assert again[2].number == 3
    assert (again[1].status, again[1].error) == (RUNNING, "")
    ledger.begin_work(second.id)
    found = {trial.id: trial for trial in ledger.sweep.trials}
    assert (found[second.id].curve, found[second.id].attempts) == ((), 2)
    assert (found[first.id].metrics, found[first.id].distill_id) == ({"loss": 2.0, "score": 0.5}, "d1")
    assert found[first.id].cell_ids == ("c",)
    assert found[first.id].git_commit == "abc"


def test_a_trial_without_its_objective_has_failed(tmp_path):
    ledger = book(tmp_path)
    trial = ledger.next()
    ledger.complete(trial.id, {"score": 1.0})
    assert ledger.status(trial.id) == FAILED
    assert ledger.sweep.trials[0].error == "it has not measured loss"


def test_more_trials_may_be_asked_for_later(tmp_path):
    ledger = book(tmp_path, planned=2)
    while ledger.left and (trial := ledger.next()):
        ledger.complete(trial.id, {"loss": 1.0})
    assert book(tmp_path, planned=2).left == 0
    ledger = book(tmp_path, planned=3)
    assert ledger.left == 1
    assert ledger.next().number == 2


def test_a_trial_whose_file_is_damaged_is_tried_again_under_a_number_of_its_own(tmp_path):
    ledger = book(tmp_path, planned=3)
    for _ in range(3):
        trial = ledger.next()
        ledger.complete(trial.id, {"loss": 1.0})
    first = ledger.sweep.trials[0].id
    (tmp_path / "trials" / f"{first}.json").write_text("")
    with pytest.warns(RuntimeWarning, match=f"{first}.json: damaged"):
        again = book(tmp_path, planned=3)
    assert again.left == 1
    assert again.next().number == 3
    assert again.next() is None
