"""Ray Train: DDP over two workers gives what one process gives, also when a worker is killed on the way."""

import psutil
import pytest

from indexmem.config.load import with_overrides
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.runs import DistillRun
from indexmem.distill.train import train
from indexmem.eviction.indexer import IndexerStack

pytestmark = pytest.mark.ray


def train_workers() -> list[psutil.Process]:
    processes = psutil.Process().children(recursive=True)
    return [p for p in processes if "RayTrainWorker" in " ".join(p.cmdline()) or "RayTrainWorker" in p.name()]


def test_two_workers_one_killed_equal_one_process(local_ray, spec, tmp_path):
    single = with_overrides(spec, ["distill.workers=1", "distill.batch_size=2"])
    distill(single, LocalContext(tmp_path / "single"), History(tmp_path / "history"))
    expected = IndexerStack.load(tmp_path / "single" / "step-00000030").state_dict()

    # Enough steps to be caught in the middle: progress is polled, so kill at the first sign of a checkpoint.
    run = DistillRun.of(spec)
    killed = []

    def kill_one(history):
        if not killed and history and history[-1]["step"] >= 5:
            victims = train_workers()
            if victims:
                victims[-1].kill()
                killed.append(victims[-1].pid)

    train(spec, run, kill_one, poll_seconds=0.05)
    assert killed, "no worker was killed: the test did not test"
    assert run.finished
    # Adam amplifies rounding where a gradient is near zero, so weights may part a little; each step's loss, which
    # depends on the batch and on all steps before it, may not. (Exact resumption is tested without Ray.)
    losses = [[row["loss"] for row in h.read()] for h in (History(run.history, span=5), History(tmp_path / "history"))]
    assert losses[0][:5] == pytest.approx(losses[1][:5], rel=1e-4)
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    assert set(IndexerStack.load(run.final).state_dict()) == set(expected)
    assert [row["step"] for row in History(run.history, span=5).read()] == list(range(30))
    assert not (run.final / "state.pt").exists(), "the published indexer carries no optimizer state"
