"""Publishing a sweep: a child run a trial, named as in the spec, each point once however often it is repeated."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow_reading import all_runs, client, points, sink, spec

from indexmem.config.schema import Experiment
from indexmem.results.sweeps import COMPLETE, FAILED, RUNNING, STOPPED, Sweep, Trial

AXES = {"indexer.dim": [4, 8, 16, 32], "distill.schedule.peak_lr": {"low": 0.001, "high": 0.1, "log": True}}
STATES = (COMPLETE, STOPPED, FAILED, RUNNING)


def experiment(root: Path) -> Experiment:
    return spec(root, indexer={"pair_term": True}, sweep={"axes": AXES, "objectives": ["score"]})


def sweep(place: Experiment, *states: str) -> Sweep:
    trials = tuple(trial(number, state) for number, state in enumerate(states))
    return Sweep("sweep-1", place.name, "tiny", AXES, place.sweep.objectives, 4, trials)


def trial(number: int, status: str) -> Trial:
    params = {"indexer.dim": 4 * 2**number, "distill.schedule.peak_lr": 0.01}
    curve = tuple({"step": step, "loss": 1.0 / step} for step in (5, 10, 15)[: 3 if status == COMPLETE else 1])
    metrics = {"loss": curve[-1]["loss"]} | ({"score": 0.5, "score/indexer/r0.75": 0.5} if status == COMPLETE else {})
    return Trial(
        f"t{number}",
        number,
        status,
        params,
        metrics,
        curve,
        "d1",
        seconds=2.5,
        error="" if status != FAILED else "E: x",
    )


def publish(root: Path, found: Sweep, **options: bool) -> str | None:
    return sink(experiment(root)).publish_sweep(experiment(root), found, **options)


def test_every_ended_trial_is_a_child_with_the_specs_own_names(root: Path) -> None:
    parent_id = publish(root, sweep(experiment(root), *STATES))
    runs = {run.data.tags.get("indexmem.trial_id"): run for run in all_runs(root, "indexmem/sweep")}
    assert set(runs) == {None, "t0", "t1", "t2"}, "one that is under way is not there yet"
    assert {run.data.tags["mlflow.parentRunId"] for name, run in runs.items() if name} == {parent_id}
    for number, (status, shown) in enumerate([(COMPLETE, "FINISHED"), (STOPPED, "FINISHED"), (FAILED, "FAILED")]):
        run = runs[f"t{number}"]
        assert (run.data.tags["indexmem.trial_status"], run.info.status) == (status, shown)
        assert run.data.params["indexer.dim"] == str(4 * 2**number)
        assert run.data.params["distill.schedule.peak_lr"] == "0.01"
        assert run.data.params["memory.decay"] == "1.0"
        assert not any(name.startswith(("sweep.", "run.", "tracking.")) for name in run.data.params)
    assert points(root, runs["t0"].info.run_id, "loss") == [(5, 0.2), (10, 0.1), (15, 1 / 15)]
    assert runs["t0"].data.metrics["score/indexer/r0.75"] == 0.5
    assert runs["t2"].data.tags["error"] == "E: x"
    parent = runs[None]
    assert parent.data.metrics["best/score"] == 0.5
    assert parent.data.params["sweep.axes.distill.schedule.peak_lr.low"] == "0.001"
    assert "| 0 | 0.5 | 4 | 0.01 |" in parent.data.tags["mlflow.note.content"]


def test_publishing_again_changes_nothing_and_sends_what_is_new(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = sweep(experiment(root), COMPLETE, STOPPED, RUNNING)
    parent_id = publish(root, under_way, last=False)
    assert parent_id is not None
    assert client(root).get_run(parent_id).info.status == "RUNNING"
    with monkeypatch.context() as patch:
        patch.setattr(SqlAlchemyStore, "log_batch", lambda *_: pytest.fail("sent once more"))
        publish(root, under_way, last=False)
    assert publish(root, sweep(experiment(root), COMPLETE, STOPPED, FAILED, COMPLETE)) == parent_id
    assert client(root).get_run(parent_id).info.status == "FINISHED"
    assert len(all_runs(root, "indexmem/sweep")) == 5


def test_a_trial_that_is_tried_again_keeps_its_run_and_its_points(root: Path) -> None:
    publish(root, sweep(experiment(root), FAILED))
    publish(root, sweep(experiment(root), COMPLETE))
    (run,) = [run for run in all_runs(root, "indexmem/sweep") if "indexmem.trial_id" in run.data.tags]
    assert run.data.tags["indexmem.trial_status"] == COMPLETE
    assert run.info.status == "FINISHED"
    assert points(root, run.info.run_id, "loss") == [(5, 0.2), (10, 0.1), (15, 1 / 15)]


def test_what_was_cut_off_is_completed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sweep(experiment(root), COMPLETE, COMPLETE)
    real, calls = SqlAlchemyStore.log_batch, []

    def fail_at_fourth(self, *arguments):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 4:
            raise OSError("connection reset")
        real(self, *arguments)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(SqlAlchemyStore, "log_batch", fail_at_fourth)
        assert publish(root, whole) is None
    publish(root, whole)
    children = [run for run in all_runs(root, "indexmem/sweep") if "indexmem.trial_id" in run.data.tags]
    assert sorted(run.data.tags["indexmem.trial_id"] for run in children) == ["t0", "t1"]
    for run in children:
        assert [step for step, _ in points(root, run.info.run_id, "loss")] == [5, 10, 15]
        assert run.data.metrics["score"] == 0.5


def test_the_note_on_several_objectives_is_their_front(root: Path) -> None:
    place = spec(root, indexer={"pair_term": True}, sweep={"axes": AXES, "objectives": ["score", "bytes"]})
    trials = [
        replace(trial(n, COMPLETE), metrics={"score": score, "bytes": size})
        for n, (score, size) in enumerate([(0.5, 3.0), (0.9, 9.0), (0.4, 4.0)])
    ]
    publish(root, replace(sweep(place), trials=tuple(trials)))
    (parent,) = [run for run in all_runs(root, "indexmem/sweep") if "indexmem.sweep_id" in run.data.tags]
    note = parent.data.tags["mlflow.note.content"]
    assert "Pareto front:" in note
    assert [line.split(" | ")[0] for line in note.splitlines()[5:]] == ["| 1", "| 0"]
