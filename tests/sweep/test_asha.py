"""Successive halving goes on after its driver was lost as if it had seen all reports itself."""

from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from ray.tune.schedulers import TrialScheduler

from indexmem.config.sweep import AshaConfig, SweepConfig
from indexmem.results.sweeps import COMPLETE, RUNNING, STOPPED, Trial
from indexmem.sweep.asha import make_scheduler

STEPS = 27
ASHA = SweepConfig(scheduler="asha", asha=AshaConfig(grace=3))


def run(scheduler, name, losses):
    """The trial as far as the scheduler lets it go; it reports every third step."""
    trial, curve = SimpleNamespace(trial_id=name), []
    scheduler.on_trial_add(None, trial)
    for number, loss in enumerate(losses):
        curve.append({"step": 3 * (number + 1), "loss": loss})
        if scheduler.on_trial_result(None, trial, curve[-1]) == TrialScheduler.STOP:
            return Trial(name, int(name), STOPPED, {}, curve=curve)
    return Trial(name, int(name), COMPLETE, {}, curve=curve)


@given(
    st.lists(st.lists(st.floats(0, 10), min_size=8, max_size=8), min_size=2, max_size=14),
    st.integers(0, 14),
)
def test_rungs_are_filled_again(curves, cut):
    whole = make_scheduler(ASHA, STEPS, [])
    undisturbed = [run(whole, str(number), losses) for number, losses in enumerate(curves)]
    before = undisturbed[:cut]
    resumed = make_scheduler(ASHA, STEPS, before)
    after = [run(resumed, str(number), losses) for number, losses in enumerate(curves) if number >= cut]
    assert before + after == undisturbed


def test_trials_that_are_behind_end_early_and_small_losses_survive():
    scheduler = make_scheduler(ASHA, STEPS, [])
    trials = [run(scheduler, str(number), [float(number)] * 8) for number in range(9)]
    assert trials[0].status == COMPLETE
    assert [trial.status for trial in trials[3:]] == [STOPPED] * 6
    assert {len(trial.curve) for trial in trials[3:]} == {1}, "at the first rung, step 3"


def test_trials_under_way_are_not_counted_until_they_report_again():
    good = Trial("0", 0, RUNNING, {}, curve=[{"step": 3, "loss": 0.0}])
    assert run(make_scheduler(ASHA, STEPS, [good]), "1", [9.0] * 8).status == COMPLETE
    assert run(make_scheduler(ASHA, STEPS, [replace(good, status=STOPPED)]), "1", [9.0] * 8).status == STOPPED


def test_a_row_without_a_step_is_not_judged_and_a_finished_training_not_ended():
    scheduler = make_scheduler(ASHA, STEPS, [run(make_scheduler(ASHA, STEPS, []), "0", [0.0] * 9)])
    trial = SimpleNamespace(trial_id="1")
    scheduler.on_trial_add(None, trial)
    assert scheduler.on_trial_result(None, trial, {"row": {"step": 27, "loss": 9.0}}) == TrialScheduler.CONTINUE
    assert scheduler.on_trial_result(None, trial, {"step": 3, "loss": 0.0}) == TrialScheduler.CONTINUE
    assert (
        make_scheduler(SweepConfig(), STEPS, []).on_trial_result(None, trial, {"step": 27}) == TrialScheduler.CONTINUE
    )


def test_the_first_rung_is_a_ninth_of_the_schedule_and_never_after_its_end():
    def first_rung(steps, grace=None):
        config = SweepConfig(scheduler="asha", asha=AshaConfig(grace=grace))
        scheduler = make_scheduler(config, steps, [])
        for name in ("0", "1"):
            scheduler.on_trial_add(None, SimpleNamespace(trial_id=name))
        for step in range(1, steps + 1):
            scheduler.on_trial_result(None, SimpleNamespace(trial_id="0"), {"step": step, "loss": 0.0})
            if scheduler.on_trial_result(None, SimpleNamespace(trial_id="1"), {"step": step, "loss": 1.0}) == "STOP":
                return step
        return None

    assert first_rung(90) == 10
    assert first_rung(5) == 1
    assert first_rung(90, grace=30) == 30
    assert first_rung(5, grace=30) == 5
