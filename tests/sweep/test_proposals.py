"""Searches: each point once, the same after an interruption, and TPE better than chance."""

import math
from dataclasses import replace

import pytest

from indexmem.results.sweeps import COMPLETE, FAILED, RUNNING, STOPPED, Trial
from indexmem.sweep.proposals import Proposer
from indexmem.sweep.space import Space, trial_id

AXES = {
    "distill.schedule.peak_lr": {"low": 1e-5, "high": 1.0, "log": True},
    "indexer.dim": {"low": 1, "high": 64},
    "target.heads": ["max", "mean"],
    "distill.texts": [["king-james"], ["essays-train", "king-james"]],
}


def search(space, count, judge=lambda params: {"loss": 1.0}, begun=()):
    """Trials that are proposed one after the other."""
    trials = list(begun)
    while len(trials) < count:
        params = Proposer(space).propose(trials)
        if params is None:
            break
        trials.append(Trial(trial_id(params), len(trials), COMPLETE, params, judge(params)))
    return trials


def test_a_grid_gives_every_point_once(sweep_spec):
    space = Space.of(sweep_spec({"axes": {"indexer.dim": [4, 8, 16], "indexer.share_every": [1, 2]}, "search": "grid"}))
    trials = search(space, 10)
    assert [trial.params for trial in trials] == list(space.corners())


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_a_finite_space_is_exhausted_without_repetition(sweep_spec, kind):
    space = Space.of(sweep_spec({"axes": {"indexer.dim": [4, 8, 16], "target.heads": ["max", "mean"]}, "search": kind}))
    trials = search(space, 10)
    assert sorted(map(str, (trial.params for trial in trials))) == sorted(map(str, space.corners()))


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_a_search_goes_on_as_if_it_had_not_been_interrupted(sweep_spec, kind):
    space = Space.of(sweep_spec({"axes": AXES, "search": kind, "seed": 3}))
    judge = lambda params: {"loss": params["distill.schedule.peak_lr"]}  # noqa: E731
    undisturbed = search(space, 14, judge)
    assert search(space, 14, judge, begun=undisturbed[:11]) == undisturbed
    other = search(Space.of(sweep_spec({"axes": AXES, "search": kind, "seed": 4})), 1)
    assert other[0].params != undisturbed[0].params


def test_proposals_lie_in_their_ranges_and_take_all_values(sweep_spec):
    trials = search(Space.of(sweep_spec({"axes": AXES, "search": "random"})), 40)
    rates = [trial.params["distill.schedule.peak_lr"] for trial in trials]
    assert 1e-5 <= min(rates) < 1e-3 < 0.1 < max(rates) <= 1.0
    assert all(type(trial.params["indexer.dim"]) is int and 1 <= trial.params["indexer.dim"] <= 64 for trial in trials)
    assert {trial.params["target.heads"] for trial in trials} == {"max", "mean"}
    assert {len(trial.params["distill.texts"]) for trial in trials} == {1, 2}


def test_tpe_learns_in_the_direction_of_the_objective(sweep_spec):
    def miss(params):
        return abs(math.log10(params["distill.schedule.peak_lr"]) + 3) + abs(params["indexer.dim"] - 32) / 32

    def late(space, judge):
        values = [miss(trial.params) for trial in search(space, 45, judge)]
        return sum(values[-15:]) / 15

    axes = {name: AXES[name] for name in ("distill.schedule.peak_lr", "indexer.dim")}
    spaces = {kind: Space.of(sweep_spec({"axes": axes, "search": kind})) for kind in ("random", "tpe")}
    chance = late(spaces["random"], lambda params: {"loss": miss(params)})
    assert late(spaces["tpe"], lambda params: {"loss": miss(params)}) < chance / 2
    large = Space.of(sweep_spec({"axes": axes, "objectives": ["score"]}))
    assert late(large, lambda params: {"score": -miss(params)}) < chance / 2


def test_trials_in_every_state_are_learned_from(sweep_spec):
    space = Space.of(sweep_spec({"axes": AXES, "objectives": ["score"]}))
    trials = search(space, 16, lambda params: {"score": 0.5})
    curve = [{"step": 3, "loss": 2.0}, {"step": 6, "loss": 1.0}]
    states = [RUNNING, COMPLETE, STOPPED, FAILED]
    mixed = [replace(trial, status=states[trial.number % 4], curve=curve) for trial in trials]
    params = Proposer(space).propose(mixed)
    assert params is not None
    assert trial_id(params) not in {trial.id for trial in trials}


def test_several_objectives_are_searched_together(sweep_spec):
    axes = {"distill.schedule.peak_lr": AXES["distill.schedule.peak_lr"]}
    space = Space.of(sweep_spec({"axes": axes, "objectives": ["score", "bytes"]}))
    judge = lambda params: {"score": params["distill.schedule.peak_lr"], "bytes": 1.0}  # noqa: E731
    late = [trial.params["distill.schedule.peak_lr"] for trial in search(space, 30, judge)[-10:]]
    assert sum(late) / len(late) > 0.2, "an even draw on this scale is 0.09 in the mean"
