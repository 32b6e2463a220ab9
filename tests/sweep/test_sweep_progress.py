"""What a person is told of a sweep under way: counts, time left, the best so far."""

from dataclasses import replace

from indexmem.config.sweep import Objective
from indexmem.results.sweeps import COMPLETE, FAILED, RUNNING, STOPPED, Sweep, Trial
from indexmem.sweep.progress import SweepProgress

SCORE = Objective(metric="score", mode="max")


def trial(number, status, score=None, step=0):
    metrics = {} if score is None else {"score": score}
    curve = ({"step": step, "loss": 1.0},) if step else ()
    error = "ValueError: no" if status == FAILED else ""
    return Trial(
        f"t{number}", number, status, {"indexer.dim": number, "memory.decay": 0.123456}, metrics, curve, error=error
    )


def sweep(*trials):
    return Sweep("id", "s", "m", {}, (SCORE,), 8, trials)


def test_the_record_counts_and_names_the_best(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("indexmem.sweep.progress.time.monotonic", lambda: clock[0])
    progress = SweepProgress(steps=100)
    earlier = sweep(trial(0, COMPLETE, 0.5), trial(1, STOPPED), trial(2, FAILED))
    first = progress.status(earlier)
    assert (first.done, first.total, first.failed, first.rate, first.left_seconds) == (3, 8, 1, None, None)

    clock[0] = 120.0
    now = replace(
        earlier,
        trials=(*earlier.trials, trial(3, COMPLETE, 0.75), trial(4, COMPLETE, 0.25), trial(5, RUNNING, step=50)),
    )
    status = progress.status(now)
    assert (status.done, status.failed, status.actors) == (5, 1, 1)
    assert status.rate == 2.5 / 20, "two whole trials and a half since the start"
    assert status.left_seconds == (28, 35), "with and without the half trial"
    assert status.measured == {"best score": 0.75}
    assert status.note == "1 stopped early  best trial 3: score 0.75 (indexer.dim=3, memory.decay=0.1235)"
    assert [failure.where for failure in status.failures] == ["trial 2"]
    assert "best score 0.7500" in status.line()


def test_all_objectives_of_a_trial_are_named():
    several = replace(sweep(), objectives=(SCORE, Objective(metric="bytes", mode="min")))
    one = replace(trial(1, COMPLETE), metrics={"score": 1.0, "bytes": 12345678.0})
    assert several.describe(one) == "trial 1: score 1, bytes 1.235e+07 (indexer.dim=1, memory.decay=0.1235)"
