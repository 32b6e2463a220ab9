"""Sweeps on real Ray whose driver or node is killed on the way: every trial once, none lost, none repeated."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import mlflow
import pyarrow.parquet as pq
import pytest
import ray
from node_cluster import two_node_cluster
from waiting import wait_until

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.distill.history import History
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.results.sweeps import COMPLETE, ENDED, RUNNING, STOPPED, Sweep, read_sweeps
from indexmem.sweep.nested import OnWorkers

pytestmark = pytest.mark.ray

JOB = Path(__file__).parents[2] / "jobs" / "sweep.py"
COMMON = [
    "distill.workers=1",
    "distill.checkpoint_every=3",
    "grid.methods=[indexer]",
    "grid.benchmarks=[niah_single_1]",
    "grid.samples=2",
    "sweep.axes.distill.schedule.peak_lr={low: 1e-3, high: 0.3, log: true}",
    "indexer.pair_term=true",
    "sweep.axes.indexer.dim=[2, 4, 8]",
]


class Driver:
    """`jobs/sweep.py` as a process of its own."""

    def __init__(self, spec_file: Path, overrides: list[str], address: str | None = None) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
        environment.pop("RAY_ADDRESS", None)
        where = [f"--address={address}"] if address else []
        self.root, self._log = spec_file.parent / "runs", spec_file.with_name("driver.log")
        self.process = subprocess.Popen(
            [sys.executable, str(JOB), str(spec_file), *overrides, *where],
            env=environment,
            cwd=spec_file.parent,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def sweep(self) -> Sweep | None:
        return next(iter(read_sweeps(self.root)), None)

    def wait_for(self, condition) -> Sweep:
        """The sweep as soon as it meets the condition, while the driver lives."""
        found = []

        def met() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            sweep = self.sweep()
            found[:] = [sweep] if sweep and condition(sweep) else []
            return bool(found)

        wait_until(met, 240)
        return found[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self, seconds: float = 300) -> str:
        code = self.process.wait(seconds)
        said = self._log.read_text()
        assert code == 0, said
        return said


def settled(trial: dict) -> dict:
    """What is never changed of a trial that has ended: all but what a winner is later told by."""
    return {name: value for name, value in trial.items() if not name.startswith("fresh")}


def ended(sweep: Sweep) -> int:
    return sum(trial.status in ENDED for trial in sweep.trials)


@pytest.fixture
def connected(local_ray, monkeypatch):
    """Commands of this process run on the Ray that it is connected to."""
    monkeypatch.setattr("indexmem.commands.sweep.ray_cluster", lambda address: nullcontext())


@pytest.mark.usefixtures("connected")
def test_the_winner_is_told_by_samples_that_chose_none(spec_file, capsys):
    """Pasted into an evaluation, its settings find the rows that it was reported on."""
    overrides = ["grid.methods=[knorm]", "grid.ratios=[0.5]", "distill.workers=1", "sweep.axes.eviction.sinks=[2, 8]"]
    command = [str(spec_file), *overrides, "sweep.objectives=[score]"]
    assert main(["sweep", *command]) == 0
    said = capsys.readouterr().out
    (sweep,) = read_sweeps(spec_file.parent / "runs")
    assert sweep.best.fresh["score"] is not None
    assert "; on fresh samples score " in said
    assert [trial.number for trial in sweep.trials if trial.fresh] == [sweep.best.number]
    pasted = [f"{name}={value}" for name, value in sweep.best.params.items()]
    assert main(["eval", str(spec_file), *overrides[:2], *pasted, "--dry-run"]) == 0
    assert "to do: 0 of 12 rows" in capsys.readouterr().err


@pytest.mark.usefixtures("connected")
def test_a_driver_whose_sweep_was_taken_over_stops(spec_file, capsys, monkeypatch):
    def lost(leases):
        raise UserError("taken over")

    monkeypatch.setattr("indexmem.locks.leases.Leases.check", lost)
    overrides = ["grid.methods=[knorm]", "grid.ratios=[0.5]", "distill.workers=1", "sweep.axes.eviction.sinks=[2, 8]"]
    assert main(["sweep", str(spec_file), *overrides, "sweep.objectives=[score]"]) == 2
    assert "taken over" in capsys.readouterr().err


def test_asha_with_a_killed_driver_loses_and_repeats_no_trial(spec_file, capsys):
    overrides = [*COMMON, "sweep.scheduler=asha", "sweep.trials=9", "sweep.objectives=[score]"]
    first = Driver(spec_file, overrides)
    first.wait_for(lambda sweep: ended(sweep) >= 3 and any(t.status == RUNNING and t.curve for t in sweep.trials))
    first.kill()
    paths = (first.root / "sweeps").glob("*/trials/*.json")
    before = {path.name: json.loads(path.read_bytes()) for path in paths}
    assert len(before) < 9, "killed in the middle"
    assert RUNNING in {trial["status"] for trial in before.values()}

    Driver(spec_file, overrides).finish()
    (sweep,) = read_sweeps(first.root)
    assert sweep.finished
    assert [trial.number for trial in sweep.trials] == list(range(9))
    assert len({trial.id for trial in sweep.trials}) == 9
    assert {trial.status for trial in sweep.trials} == {COMPLETE, STOPPED}
    known = {trial.id: trial for trial in sweep.trials}
    for name in before:
        if before[name]["status"] in ENDED:
            after = json.loads(next((first.root / "sweeps").glob(f"*/trials/{name}")).read_bytes())
            assert settled(after) == settled(before[name]), "done once more"
        else:
            assert known[before[name]["id"]].params == before[name]["params"]
    assert any(trial.attempts == 2 for trial in sweep.trials), "the interrupted trials went on"

    spec = load(spec_file, overrides)
    for trial in sweep.trials:
        steps = [row["step"] for row in trial.curve]
        assert steps == list(range(3, trial.step + 1, 3)), "each report once, in order"
        history = History(first.root / "distill" / trial.distill_id / "history", spec.distill.checkpoint_every).read()
        assert [row["step"] for row in history][: trial.step] == list(range(trial.step))
        assert (trial.step == spec.distill.schedule.steps) or trial.status == STOPPED
        assert ("score" in trial.metrics) == (trial.status == COMPLETE)
    parts = (first.root / "results" / "rows").glob("*/part-*.parquet")
    rows = Counter(
        tuple(row.values()) for p in parts for row in pq.read_table(p, columns=["cell_id", "sample_id"]).to_pylist()
    )
    cells = {cell for trial in sweep.trials for cell in (*trial.cell_ids, *trial.fresh_cell_ids)}
    assert {cell for cell, _ in rows} == cells
    assert set(rows.values()) == {1}, "every row once"
    assert len(rows) == 2 * len(cells) == 4 * (1 + sum(trial.status == COMPLETE for trial in sweep.trials))

    client = mlflow.MlflowClient(f"sqlite:///{first.root}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("indexmem/sweep").experiment_id])
    children = {run.data.tags["indexmem.trial_id"]: run for run in runs if "indexmem.trial_id" in run.data.tags}
    assert len(runs) == 10
    for trial in sweep.trials:
        run = children[trial.id]
        assert float(run.data.params["distill.schedule.peak_lr"]) == trial.params["distill.schedule.peak_lr"]
        points = client.get_metric_history(run.info.run_id, "loss")
        assert [(point.step, point.value) for point in points] == [(row["step"], row["loss"]) for row in trial.curve]

    times = {path: path.stat().st_mtime_ns for path in (first.root / "sweeps").glob("*/trials/*.json")}
    assert main(["sweep", str(spec_file), *overrides]) == 0
    assert "\ntrial " in f"\n{capsys.readouterr().out}", "a finished sweep says its best once more"
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_workers_of_a_trial_that_is_ended_early_are_free_for_the_next(local_ray, spec):
    """Which they are not by themselves: Ray keeps what a killed actor has placed."""
    run, reports = DistillRun.of(spec), []

    def end_early(_, row):
        reports.append(row)
        raise SystemExit

    with pytest.raises(SystemExit):
        OnWorkers().train(spec, run, end_early)
    assert [row["step"] for row in reports] == [5]
    assert not run.finished
    wait_until(lambda: ray.available_resources().get("CPU") == 2)


@pytest.fixture
def two_nodes():
    with two_node_cluster(cpus=1) as cluster:
        yield cluster


@pytest.mark.slow  # that a trial whose process died is begun once more is tested in tests/sweep/test_ledger.py
def test_a_sweep_goes_on_when_a_node_is_lost(two_nodes, spec_file):
    overrides = [*COMMON, "sweep.trials=3", "distill.schedule.stable=200"]
    driver = Driver(spec_file, overrides, two_nodes.address)
    try:
        driver.wait_for(lambda sweep: sum(t.status == RUNNING and t.step > 0 for t in sweep.trials) == 2)
        two_nodes.remove_node(min(two_nodes.worker_nodes, key=lambda node: node.unique_id), allow_graceful=False)
        driver.finish()
    finally:
        driver.kill()
    (sweep,) = read_sweeps(driver.root)
    assert [trial.status for trial in sweep.trials] == [COMPLETE] * 3
    assert [trial.number for trial in sweep.trials] == list(range(3))
    assert sum(trial.attempts for trial in sweep.trials) == 4, "the trial of the lost node was begun once more"
    for trial in sweep.trials:
        assert [row["step"] for row in trial.curve] == list(range(3, 211, 3))
