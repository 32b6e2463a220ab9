"""The job scripts as a user runs them, killed with SIGKILL in the middle: nothing lost, nothing repeated."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import mlflow
import pyarrow.parquet as pq
import pytest
from grids import remaining
from waiting import wait_until

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.distill.history import History
from indexmem.distill.runs import DistillRun
from indexmem.evaluate.grid import plan

REPOSITORY = Path(__file__).parents[2]
OVERRIDES = ["grid.methods=[full, indexer, knorm]"]


def start(job: str, spec_file: Path) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / "jobs" / job), str(spec_file), *OVERRIDES],
        env=environment,
        cwd=spec_file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_when(process: subprocess.Popen, ready) -> None:
    """SIGKILL the driver once `ready()`; its Ray processes end by themselves."""
    wait_until(lambda: ready() or process.poll() is not None, 300)
    assert process.poll() is None, process.stdout.read()
    process.send_signal(signal.SIGKILL)
    process.wait()


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    return output


@pytest.fixture
def without_ray(monkeypatch):
    for verb in ("distill", "evaluate"):
        monkeypatch.setattr(f"indexmem.commands.{verb}.ray_cluster", lambda *_, **__: pytest.fail("Ray was started"))


@pytest.mark.ray
def test_distill_then_eval_killed_and_started_again(spec_file, without_ray, capsys):
    spec = load(spec_file, OVERRIDES)
    run = DistillRun.of(spec)
    checkpoints = lambda: list((run.folder / "train").glob("checkpoint_*"))  # noqa: E731
    kill_when(start("distill.py", spec_file), checkpoints)
    assert not run.finished
    reached = History(run.history, span=5).read()[-1]["step"]
    output = finish(start("distill.py", spec_file))
    assert "trained 30 steps" in output
    steps = [row["step"] for row in History(run.history, span=5).read()]
    assert steps == list(range(30))
    assert reached >= 4
    assert main(["distill", str(spec_file), *OVERRIDES]) == 0
    assert "already trained" in capsys.readouterr().err

    grid = plan(spec)
    parts = lambda: list((Path(spec.run.root) / "results" / "rows").glob("*/part-*.parquet"))  # noqa: E731
    kill_when(start("eval_grid.py", spec_file), lambda: len(parts()) >= 2)
    assert 2 <= len(parts()) < 12, "killed in the middle"
    output = finish(start("eval_grid.py", spec_file))
    assert "full cache, nothing evicted" in output
    assert "Report: " in output
    assert remaining(grid) == []
    keys = [
        tuple(row.values())
        for part in parts()
        for row in pq.read_table(part, columns=["cell_id", "sample_id", "repeat"]).to_pylist()
    ]
    assert len(keys) == len(set(keys)) == grid.row_count, "every row once on disk: none lost, none repeated"

    client = mlflow.MlflowClient(f"sqlite:///{spec.run.root}/mlflow.db")
    (distilled,) = client.search_runs([client.get_experiment_by_name("indexmem/distill").experiment_id])
    assert [m.step for m in client.get_metric_history(distilled.info.run_id, "loss")] == list(range(30))
    runs = client.search_runs([client.get_experiment_by_name("indexmem/eval").experiment_id], max_results=1000)
    cells = [r.data.tags["indexmem.cell_id"] for r in runs if "indexmem.cell_id" in r.data.tags]
    assert sorted(cells) == sorted(grid.cell_ids)
    assert main(["eval", str(spec_file), *OVERRIDES]) == 0
    assert "to do: 0 of" in capsys.readouterr().err
