"""Publishing a training run while it runs: each step once, whatever is repeated or cut off."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow_reading import all_runs, client, points, sink, spec

from indexmem.tracking.distill_runs import NON_FINITE_TAG


def history(steps: range, **values: float) -> list[dict[str, float]]:
    return [{"step": step, "loss": 1.0 / (step + 1), "lr": 0.1, **values} for step in steps]


def test_a_resumed_training_run_has_each_step_once(root: Path) -> None:
    experiment = spec(root)
    opened = sink(experiment)
    run_id = opened.publish_distill(experiment, "d1", history(range(10)), params={"world_size": 2})
    assert opened.publish_distill(experiment, "d1", history(range(8, 20))) == run_id
    assert client(root).get_run(run_id).info.status == "RUNNING"

    resumed = sink(experiment)  # another process, which repeats steps and has another world size
    again = resumed.publish_distill(experiment, "d1", history(range(15, 30), loss=9.0), params={"world_size": 4})
    assert again == run_id
    resumed.publish_distill(experiment, "d1", history(range(30)), finished=True)
    run = client(root).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["world_size"] == "2"
    assert run.data.params["distill.batch_size"] == "1"
    expected = [(step, 1.0 / (step + 1) if step < 20 else 9.0) for step in range(30)]
    assert points(root, run_id, "loss") == expected
    assert points(root, run_id, "lr") == [(step, 0.1) for step in range(30)]
    assert len(all_runs(root, "indexmem/distill")) == 1


def test_a_finished_training_run_that_goes_on_is_running_again(root: Path) -> None:
    experiment = spec(root)
    run_id = sink(experiment).publish_distill(experiment, "d1", history(range(2)), finished=True)
    sink(experiment).publish_distill(experiment, "d1", history(range(4)))
    assert client(root).get_run(run_id).info.status == "RUNNING"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("connection reset")])
def test_a_history_cut_off_between_two_requests_is_completed(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    experiment = spec(root)
    opened = sink(experiment)
    run_id = opened.publish_distill(experiment, "d1", history(range(1)))
    real, sizes = SqlAlchemyStore.log_batch, []

    def one_request_then_fail(self: Any, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        if sizes:
            raise error
        sizes.append(len(metrics))
        real(self, run_id, metrics, params, tags)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(SqlAlchemyStore, "log_batch", one_request_then_fail)
        try:
            assert opened.publish_distill(experiment, "d1", history(range(700))) is None
        except KeyboardInterrupt:
            assert isinstance(error, KeyboardInterrupt)
    assert 0 < sizes[0] < 2 * 699
    opened.publish_distill(experiment, "d1", history(range(700)), finished=True)
    for metric in ("loss", "lr"):
        assert [step for step, _ in points(root, run_id, metric)] == list(range(700))


def test_values_that_are_not_finite_are_named_and_not_plotted(root: Path) -> None:
    experiment = spec(root)
    bad = [{"step": 0, "loss": math.nan}, {"step": 1, "loss": math.inf, "recall@10%": 0.5}, {"step": 2, "loss": 1.0}]
    run_id = sink(experiment).publish_distill(experiment, "d1", bad)
    run = client(root).get_run(run_id)
    assert points(root, run_id, "loss") == [(2, 1.0)]
    assert run.data.tags[NON_FINITE_TAG] == "loss@0, loss@1"
    assert run.data.metrics["recall_10_"] == 0.5
