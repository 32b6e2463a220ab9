"""The steps of a night: order, budget, failures, signals; and the process that a step runs in."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from night_rows import date, nightly_spec

from indexmem.commands.nightly import freeze
from indexmem.config.load import load
from indexmem.config.nightly import NightBudget, NightlySpec, SuiteConfig
from indexmem.config.schema import RunConfig
from indexmem.errors import UserError
from indexmem.extras import JOB_VARIABLE
from indexmem.locks.leases import Leases
from indexmem.nightly.drive import Drive, StepClock, step_ending, to_do
from indexmem.nightly.night import NightRecord, Nights, StepRecord
from indexmem.nightly.process import SOME_FAILED, Limits, StepProcess, last_lines
from indexmem.nightly.steps import freeze_specs, steps_of
from indexmem.signals import StopSignals

GPU_SUITE = {"overrides": ("distill.use_gpu=true", "grid.gpus_per_actor=0.5", "grid.actors=4")}


def two_suites(root: Path, budget: NightBudget | None = None, **settings: tuple[str, ...]) -> NightlySpec:
    spec = nightly_spec(root)
    suites = [SuiteConfig(name=name, spec=spec.suites[0].spec, **settings) for name in ("first", "second")]
    return spec.model_copy(update={"suites": tuple(suites), "budget": budget or NightBudget()})


class Driver:
    """Drives the night of `spec` with `codes` for the steps by name (default 0), and notes which were run."""

    def __init__(self, spec: NightlySpec, **codes: int) -> None:
        self.night = Nights.of(spec).night(date(0))
        self.steps = steps_of(spec, self.night)
        freeze_specs(self.night, self.steps, freeze)
        self.budget, self.codes, self.stop = spec.budget, codes, StopSignals()
        self.ran: list[str] = []
        self.said: list[str] = []

    def execute(self, step, limits):
        self.ran.append(step.name)
        limits.tick()
        return self.codes.get(step.name.replace("/", "_"), 0)

    def run(self) -> NightRecord:
        Drive(self.night, self.budget, self.execute, self.stop, lambda: None, self.said.append).run(self.steps)
        return self.night.record()


def test_what_is_done_is_not_done_again(tmp_path):
    spec = two_suites(tmp_path)
    driver = Driver(spec)
    record = driver.run()
    assert driver.ran == ["first/distill", "first/eval", "second/distill", "second/eval"]
    assert to_do(record, driver.steps) == []
    again = Driver(spec)
    again.run()
    assert again.ran == []


def test_a_failure_ends_its_suite_alone_and_is_tried_again(tmp_path):
    spec = two_suites(tmp_path)
    driver = Driver(spec, first_distill=-9, second_eval=SOME_FAILED)
    record = driver.run()
    assert driver.ran == ["first/distill", "second/distill", "second/eval"]
    assert [step_ending(record.of(step.name)) for step in driver.steps] == [
        "ended by SIGKILL",
        "not finished",
        "done",
        "done, some rows failed",
    ]
    again = Driver(spec)
    again.run()
    assert again.ran == ["first/distill", "first/eval"]


def test_python_giving_up_is_not_taken_for_failed_rows(tmp_path):
    driver = Driver(two_suites(tmp_path), first_distill=1)
    assert driver.run().of("first/distill").status == "failed"


def test_a_signal_ends_the_night_before_the_next_step(tmp_path):
    driver = Driver(two_suites(tmp_path), first_eval=128 + signal.SIGTERM)
    execute = driver.execute

    def interrupted(step, limits):
        if step.name == "first/eval":
            driver.stop.received = signal.SIGTERM
        return execute(step, limits)

    driver.execute = interrupted
    record = driver.run()
    assert driver.ran == ["first/distill", "first/eval"]
    assert record.of("first/eval").status == "unfinished"


@pytest.mark.parametrize(
    ("spent", "budget", "ran"),
    [
        (StepRecord(seconds=3700), NightBudget(wall_hours=1), []),
        (StepRecord(seconds=3700), NightBudget(wall_hours=2), ["first/distill", "first/eval"]),
        (StepRecord(gpu_seconds=3700), NightBudget(gpu_hours=1), []),
    ],
)
def test_a_spent_budget_starts_nothing_more(tmp_path, spent, budget, ran):
    spec = two_suites(tmp_path, budget, **GPU_SUITE)
    driver = Driver(spec)
    driver.night.save(NightRecord(steps={"second/distill": spent.model_copy(update={"status": "failed"})}))
    driver.run()
    assert driver.ran[:2] == ran
    assert any("budget is spent" in line for line in driver.said) == (not ran)


def test_a_night_that_goes_on_as_another_job_has_the_files_of_the_first(tmp_path, monkeypatch):
    job, shared, spec = tmp_path / "job", tmp_path / "shared.txt", nightly_spec(tmp_path / "job")
    (job / "files").mkdir()
    (job / "files" / "book.txt").write_text("a book")
    shared.write_text("for all nodes")
    (job / "tiny.yaml").write_text(f"name: tiny\ndistill: {{texts: [files/book.txt, {shared}]}}\n")
    spec = spec.model_copy(update={"run": RunConfig(root=str(tmp_path / "runs"))})
    monkeypatch.chdir(job)
    monkeypatch.setenv(JOB_VARIABLE, "{}")
    first = Driver(spec)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(job)
    (again,) = {step.suite: step for step in steps_of(spec, first.night)}.values()
    brought, stayed = map(str, load(again.spec).distill.texts)
    assert Path(brought).read_text() == "a book" and Path(brought).is_relative_to(again.folder)
    assert stayed == str(shared)


def test_time_counts_for_every_gpu_that_a_step_holds(tmp_path, monkeypatch):
    """Seven seconds on two GPUs are fourteen, on top of what an earlier attempt took."""
    spec = two_suites(tmp_path, NightBudget(gpu_hours=1), **GPU_SUITE)
    night = Nights.of(spec).night(date(0))
    step = next(step for step in steps_of(spec, night) if step.name == "first/eval")
    assert step.gpus == 2.0
    freeze_specs(night, [step], freeze)
    night.save(NightRecord().updated(step.name, StepRecord(seconds=10.0, gpu_seconds=20.0)))
    clock = iter([100.0, *[107.0] * 9])
    monkeypatch.setattr("indexmem.nightly.drive.time.monotonic", lambda: next(clock))
    record = StepClock(night, step).save("done", 0)
    assert (record.seconds, record.gpu_seconds) == (17.0, 34.0)
    assert night.record().gpu_seconds == 34.0


def test_gpu_time_is_that_of_all_gpus(tmp_path):
    spec = two_suites(tmp_path, NightBudget(gpu_hours=1), **GPU_SUITE)
    steps = {step.name: step.gpus for step in steps_of(spec, Nights.of(spec).night(date(0)))}
    assert steps["first/distill"] == 2.0
    assert steps["first/eval"] == 2.0
    uncounted = two_suites(tmp_path, NightBudget(gpu_hours=1), overrides=("grid.gpus_per_actor=1",))
    with pytest.raises(UserError, match=r"grid\.actors=4"):
        steps_of(uncounted, Nights.of(uncounted).night(date(0)))


def test_a_night_goes_on_with_the_spec_that_it_began_with(tmp_path):
    spec = two_suites(tmp_path)
    driver = Driver(spec)
    changed = two_suites(tmp_path, overrides=("grid.samples=3",))
    assert [step.experiment for step in steps_of(changed, driver.night)] == [step.experiment for step in driver.steps]
    other = steps_of(changed, Nights.of(changed).night(date(1)))
    assert other[0].experiment.grid.samples == 3
    assert other[0].experiment.run.root == str(other[0].folder)
    assert not other[0].experiment.tracking.enabled


def test_suites_wait_for_nodes_as_the_night_does(tmp_path):
    spec = two_suites(tmp_path)
    own = spec.suites[1].model_copy(update={"overrides": ("run.wait_for_nodes=5",)})
    run = spec.run.model_copy(update={"wait_for_nodes": 1800.0})
    spec = spec.model_copy(update={"suites": (spec.suites[0], own), "run": run})
    waits = {step.suite: step.experiment.run.wait_for_nodes for step in steps_of(spec, Nights.of(spec).night(date(0)))}
    assert waits == {"first": 1800.0, "second": 5.0}


SCRIPT = """
import os, signal, sys, threading, time
from indexmem.commands.nightly_step import end_with_parent
{body}
"""


@pytest.fixture
def step(tmp_path):
    spec = nightly_spec(tmp_path)
    night = Nights.of(spec).night(date(0))
    (only,) = steps_of(spec, night)
    freeze_specs(night, [only], freeze)
    return only


def program(tmp_path: Path, body: str) -> StepProcess:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT.format(body=body))
    return StepProcess("ray://head", (sys.executable, str(path)))


def limits(seconds: float | None = None, tick=lambda: None) -> Limits:
    return Limits(seconds, StopSignals(), tick)


def test_a_step_gets_its_spec_and_leaves_a_log(step, tmp_path):
    assert program(tmp_path, "print(sys.argv[1:]); sys.exit(7)")(step, limits()) == 7
    assert last_lines(step) == f"    {['eval', str(step.spec), '--address', 'ray://head']}\n"


def test_a_step_that_is_late_is_asked_to_end(step, tmp_path):
    assert program(tmp_path, "time.sleep(600)")(step, limits(seconds=0.1)) == -signal.SIGTERM


def test_a_night_that_is_lost_takes_its_step_along(step, tmp_path):
    def lost():
        raise UserError("taken over")

    with pytest.raises(UserError, match="taken over"):
        program(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")(
            step, limits(tick=lambda: (tmp_path / "pid").exists() and lost())
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_step_ends_when_its_night_is_killed(tmp_path):
    """The child watches its standard input, whose other end dies with the parent."""
    body = "threading.Thread(target=end_with_parent, daemon=True).start(); time.sleep(60)"
    path = tmp_path / "child.py"
    path.write_text(SCRIPT.format(body=body))
    child = subprocess.Popen([sys.executable, str(path)], stdin=subprocess.PIPE)
    time.sleep(0.2)
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(timeout=60) == -signal.SIGTERM


def test_a_step_waits_for_the_orphan_of_a_killed_night(step, tmp_path):
    body = "from indexmem.commands import nightly_step as step\nstep.main = lambda words: print(words) or 1\n"
    body += "sys.exit(step.run_alone(sys.argv[1:]))"
    started = time.monotonic()
    with Leases(step.folder / "leases") as orphan:
        orphan.claim({"step"})
        ended = lambda: time.monotonic() - started > 3 and orphan.release()  # noqa: E731
        assert program(tmp_path, body)(step, limits(tick=ended)) == SOME_FAILED
    assert time.monotonic() - started > 3
    assert "eval" in last_lines(step)
    assert list((step.folder / "leases").iterdir()) == []
