"""Several processes publish the same at the same time: every run once, every point once, nobody is left out."""

from __future__ import annotations

import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mlflow_reading import all_runs, points, rows, sink, spec

from indexmem.config.schema import Experiment
from indexmem.config.sweep import Objective
from indexmem.locks import leases
from indexmem.locks.leases import Leases
from indexmem.results.sweeps import COMPLETE, Sweep, Trial
from indexmem.tracking.grid_runs import CELL_TAG
from indexmem.tracking.mlflow_runs import Runs

HISTORY = [{"step": step, "loss": 1.0 / (step + 1)} for step in range(6)]
CURVE = tuple({"step": step, "loss": 0.5} for step in range(3))


@pytest.fixture(autouse=True)
def slow_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking for a run and having made it, whoever does not wait for its turn looks, too."""
    create = Runs.create

    def slow(self: Runs, *args: Any) -> Any:
        time.sleep(0.1)
        return create(self, *args)

    monkeypatch.setattr(Runs, "create", slow)
    monkeypatch.setattr(leases, "WAIT_SECONDS", 0.02)


def at_once(publish: Any) -> list[str | None]:
    with ThreadPoolExecutor(2) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # who waits is told so
        return list(pool.map(lambda _: publish(), range(2)))


def test_a_grid_that_two_publish_has_one_run_and_each_cell_once(root: Path) -> None:
    experiment = spec(root)
    first, second = at_once(lambda: sink(experiment).publish_grid(experiment, rows()))
    assert first == second is not None
    cells = [run.data.tags.get(CELL_TAG) for run in all_runs(root)]
    assert len(cells) == len(set(cells)) == 5


def test_a_training_that_two_publish_has_one_run_and_each_step_once(root: Path) -> None:
    experiment = spec(root)
    first, second = at_once(lambda: sink(experiment).publish_distill(experiment, "d1", HISTORY, finished=True))
    assert first == second is not None
    assert len(all_runs(root, "indexmem/distill")) == 1
    assert points(root, first, "loss") == [(row["step"], row["loss"]) for row in HISTORY]


def test_a_sweep_that_two_publish_has_each_trial_and_point_once(root: Path) -> None:
    experiment = spec(root)
    trial = Trial("t0", 0, COMPLETE, {"distill.seed": 1}, {"loss": 0.5}, CURVE)
    objective = Objective(metric="loss", mode="min")
    sweep = Sweep("s1", "grid-test", "tiny", {"distill.seed": [1]}, (objective,), 1, (trial,))

    def publish() -> str | None:
        return sink(experiment).publish_sweep(experiment, sweep)

    first, second = at_once(publish)
    assert first == second is not None
    (child,) = [run for run in all_runs(root, "indexmem/sweep") if run.info.run_id != first]
    assert points(root, child.info.run_id, "loss") == [(step, 0.5) for step in range(3)]


def test_steps_that_another_process_has_sent_meanwhile_are_not_sent_again(root: Path) -> None:
    experiment = spec(root)
    training = sink(experiment)
    run_id = training.publish_distill(experiment, "d1", HISTORY[:2])
    sink(experiment).publish_distill(experiment, "d1", HISTORY[:5], wait=True)  # `indexmem sync`
    assert training.publish_distill(experiment, "d1", HISTORY) == run_id
    assert points(root, run_id, "loss") == [(row["step"], row["loss"]) for row in HISTORY]


def hold(root: Path, experiment: Experiment, identity: str) -> Leases:
    other = Leases(root / "leases")
    assert other.claim({f"mlflow-{identity}"})[0]
    return other


def test_a_training_goes_on_while_another_process_publishes_it(root: Path) -> None:
    experiment = spec(root)
    with hold(root, experiment, "d1"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sink(experiment).publish_distill(experiment, "d1", HISTORY) is None
    assert all_runs(root, "indexmem/distill") == []


def test_who_waits_is_told_for_whom(root: Path) -> None:
    experiment = spec(root)
    other = hold(root, experiment, "d1")
    threading.Timer(0.3, other.release).start()
    with pytest.warns(RuntimeWarning, match=r", pid \d+, since .* publishes the same to MLflow; waiting"):
        assert sink(experiment).publish_distill(experiment, "d1", HISTORY, wait=True) is not None
