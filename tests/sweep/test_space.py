"""Axes against the schema: what is refused and how, what a grid holds, when two settings are the same trial."""

import pytest

from indexmem.errors import UserError
from indexmem.sweep.space import Space, trial_id

MISTAKES = {
    "no axes": ({}, "sweep.axes is empty"),
    "unknown name": ({"indexer.dimm": [4]}, "unknown key 'indexer.dimm'. Did you mean 'dim'?"),
    "unknown section": ({"indxer.dim": [4]}, "unknown key 'indxer'. Did you mean 'indexer'?"),
    "a section": ({"distill.schedule": [1]}, "is a section. Name a setting: distill.schedule.kind"),
    "how trials are measured": ({"grid.samples": [1, 2]}, "'grid.samples' says how trials are run or measured"),
    "how trials are run": ({"distill.workers": [1, 2]}, "'distill.workers' says how trials are run"),
    "a wrong value": ({"indexer.dim": [4, -1]}, "'indexer.dim': input should be greater than 0, got -1"),
    "a wrong choice": (
        {"memory.fusion": ["joint", "jiont"]},
        "'memory.fusion': input should be 'joint', 'add' or 'mix'",
    ),
    "a wrong end": ({"memory.decay": {"low": 0.5, "high": 1.5}}, "less than or equal to 1, got 1.5"),
    "the same twice": ({"memory.decay": [0.5, "0.5"]}, "sweep.axes.memory.decay lists a value twice"),
    "no pair": (
        {"memory.fusion": ["add", "joint"], "memory.features": ["slots", "linear"]},
        "fusion 'joint' needs positive masses",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found_before_anything_starts(sweep_spec, name):
    axes, complaint = MISTAKES[name]
    with pytest.raises(UserError) as error:
        Space.of(sweep_spec({"axes": axes}))
    assert complaint in str(error.value)
    assert "sweep.axes" in str(error.value)


def test_combinations_of_lists_are_a_grid(sweep_spec):
    space = Space.of(sweep_spec({"axes": {"indexer.dim": [4, 8], "target.heads": ["max", "mean"]}}))
    assert space.points == 4
    assert list(space.corners()) == [{"indexer.dim": d, "target.heads": h} for d in (4, 8) for h in ("max", "mean")]
    assert len(list(space.probes())) == 3
    spec = space.spec({"indexer.dim": 8, "target.heads": "mean"})
    assert (spec.indexer.dim, spec.target.heads) == (8, "mean")


def test_ranges_are_of_whole_numbers_where_the_setting_is(sweep_spec):
    axes = {"indexer.dim": {"low": 2, "high": 5}, "distill.grad_clip": {"low": 1, "high": 2}}
    space = Space.of(sweep_spec({"axes": axes}))
    assert space.whole == {"indexer.dim"}
    assert space.points is None
    assert Space.of(sweep_spec({"axes": {"indexer.dim": axes["indexer.dim"]}})).points == 4


def test_equal_settings_are_one_trial_however_they_are_written(sweep_spec):
    space = Space.of(sweep_spec({"axes": {"distill.schedule.peak_lr": ["1e-3", 0.01], "indexer.dim": [4, 8]}}))
    one, other = ({"distill.schedule.peak_lr": v, "indexer.dim": 4} for v in ("1e-3", 0.001))
    assert trial_id(space.settled(one)) == trial_id(space.settled(dict(reversed(other.items()))))
    assert len({trial_id(params) for params in space.corners()}) == 4


def test_the_longest_trial_is_found_where_schedules_vary(sweep_spec):
    schedule = {"warmup": 1, "stable": 5, "decay": 4}
    fixed = Space.of(sweep_spec({"axes": {"indexer.dim": [4]}}, distill={"schedule": schedule}))
    varied = Space.of(sweep_spec({"axes": {"distill.schedule.stable": [5, 50]}}, distill={"schedule": schedule}))
    assert (fixed.longest, varied.longest) == (10, 55)
