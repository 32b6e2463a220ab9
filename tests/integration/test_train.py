"""Ray Train: a group of workers gives what one process gives, whatever is killed, stopped or missing on the way."""

import os
import random
import signal

import psutil
import pytest

from indexmem.config.load import with_overrides
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.runs import DistillRun
from indexmem.distill.train import train
from indexmem.eviction.checkpoint import read_config
from indexmem.eviction.indexer import IndexerStack

pytestmark = pytest.mark.ray


def is_worker(process: psutil.Process) -> bool:
    try:
        return any("RayTrainWorker" in word for word in (process.name(), *process.cmdline()))
    except psutil.Error:  # it ended meanwhile
        return False


def train_workers() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if is_worker(process)]


def losses(history: History) -> list[float]:
    rows = history.read()
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss"] for row in rows]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses and weights of a spec's run in one process, each run made once."""
    runs = {}

    def get(spec):
        key = (spec.distill.sequences_per_step, spec.distill.schedule)
        if key not in runs:
            folder = tmp_path_factory.mktemp("single")
            single = with_overrides(
                spec, ["distill.workers=1", f"distill.accumulate={spec.distill.sequences_per_step}"]
            )
            distill(single, LocalContext(folder), history := History(folder / "history"))
            weights = IndexerStack.load(folder / f"step-{spec.distill.schedule.steps:08d}").state_dict()
            runs[key] = losses(history), weights
        return runs[key]

    return get


def assert_like(run: DistillRun, expected) -> None:
    """Adam amplifies rounding where a gradient is near zero, so weights may part a little; each step's loss, which
    depends on the batch and on all steps before it, may not. (Exact resumption is tested without Ray.)
    """
    expected_losses, weights = expected
    found = losses(History(run.history, span=5))
    assert found[:5] == pytest.approx(expected_losses[:5], rel=1e-4)
    assert found == pytest.approx(expected_losses, rel=2e-2)
    assert set(IndexerStack.load(run.final).state_dict()) == set(weights)


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_workers_killed_at_random_change_nothing(local_ray, spec, undisturbed, kills):
    spec = with_overrides(spec, [f"distill.max_failures={2 * kills}", f"distill.schedule.stable={20 + 7 * kills}"])
    run, rng, killed, seen = DistillRun.of(spec), random.Random(0), [], -1

    def kill(history):
        nonlocal seen
        last = history[-1]["step"] if history else -1
        workers = train_workers()
        if len(killed) < kills and last != seen and len(workers) == 2:
            seen = last
            killed.append(rng.choice(workers))
            killed[-1].kill()

    train(spec, run, kill, poll_seconds=0.05)
    assert len({process.pid for process in killed}) == kills, "too few workers were killed: the test did not test"
    assert run.finished
    assert_like(run, undisturbed(spec))
    assert not (run.final / "state.pt").exists(), "published modules carry no optimizer state"


def test_a_stopped_run_goes_on_from_the_step_it_was_stopped_at(local_ray, spec, undisturbed, tmp_path):
    """Its checkpoints may lie under a URI, and its history hold later steps of a start that was killed."""
    spec = with_overrides(
        spec, [f"distill.checkpoint_storage=file://{tmp_path}/elsewhere", "distill.checkpoint_every=1000"]
    )
    run, steps = DistillRun.of(spec), spec.distill.schedule.steps
    stale = {"lr": 0.01, "tokens_per_second": 1.0, "loss": 9.0, "grad_norm": 1.0}
    History(run.history, span=1000).write([{"step": step} | stale for step in range(steps)])
    told = []

    def stop(history):
        if not told and train_workers():
            told.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    stopped_by = train(spec, run, stop, poll_seconds=0.05)
    assert (stopped_by, run.finished) == (signal.SIGTERM, False)
    stored = list((tmp_path / "elsewhere" / run.id).rglob("indexer.safetensors"))
    done = max(read_config(path.parent)["trained"]["step"] for path in stored)
    assert 0 < done < steps
    assert not list(run.folder.rglob("indexer.safetensors"))

    kept = History(run.history, span=1000).read()[:done]
    train(spec, run, lambda history: None, poll_seconds=0.05)
    assert run.finished
    assert History(run.history, span=1000).read()[:done] == kept, "the second start did these steps again"
    assert losses(History(run.history, span=1000)) == pytest.approx(undisturbed(spec)[0], rel=2e-2)


def test_fewer_workers_than_wished_for_give_the_same_steps(local_ray, spec, undisturbed):
    elastic = with_overrides(spec, ["distill.workers=4", "distill.min_workers=1"])
    run, most = DistillRun.of(elastic), []
    train(elastic, run, lambda history: most.append(len(train_workers())), poll_seconds=0.2)
    assert max(most) <= 2, "the cluster has two CPUs"
    assert_like(run, undisturbed(elastic))
