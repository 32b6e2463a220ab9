"""What a spec may say about an axis of a sweep, and what it is told when it may not."""

import pytest

from indexmem.config.load import load
from indexmem.config.sweep import Axis, by_dotted_name
from indexmem.errors import UserError


def test_lists_and_ranges():
    assert Axis.parse([4, 8]) == Axis(values=(4, 8))
    assert Axis.parse({"low": "1e-4", "high": 1, "log": True}) == Axis(low=1e-4, high=1, log=True)
    for axis in ([1, "a", None], {"low": 1, "high": 2, "log": False}):
        assert Axis.parse(axis).dump() == axis


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        (4, "no axis; expected [4, 8, 16]"),
        ([], "no axis"),
        ([4, 8, 4], "lists 4 twice"),
        ({"low": 1}, "two numbers, low and high"),
        ({"low": "a", "high": 2}, "two numbers, low and high"),
        ({"low": True, "high": 2}, "two numbers, low and high"),
        ({"low": 1, "high": 2, "step": 1}, "not step"),
        ({"low": 2, "high": 2}, "low=2 is not below high=2"),
        ({"low": 0, "high": 2, "log": True}, "starts above 0"),
        ({"low": 1, "high": 2, "log": "yes"}, "true or false"),
    ],
)
def test_what_is_no_axis_is_explained(setting, complaint):
    with pytest.raises(ValueError, match=complaint.replace("[", r"\[")):
        Axis.parse(setting)


def test_overrides_reach_axes_by_their_dotted_names(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("sweep: {axes: {indexer.dim: [4, 8], memory.decay: {low: 0.5, high: 1.0}}}")
    found = load(spec, ["sweep.axes.indexer.dim=[2]", "sweep.axes.distill.schedule.peak_lr={low: 1e-4, high: 1e-2}"])
    assert found.sweep.axes == {
        "indexer.dim": Axis(values=(2,)),
        "memory.decay": Axis(low=0.5, high=1.0),
        "distill.schedule.peak_lr": Axis(low=1e-4, high=1e-2),
    }
    assert load(spec, ["sweep.trials=3"]).sweep.axes["indexer.dim"] == Axis(values=(4, 8))
    assert by_dotted_name("no mapping") == "no mapping"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("sweep.scheduler=pbt", "population-based training changes settings within a trial"),
        ("sweep.axes.indexer.dim={lo: 1}", "'sweep.axes.indexer.dim.lo': no axis"),
        ("sweep.objectives=[score, score]", "lists a metric twice"),
        ("sweep.objectives=[]", "at least 1"),
        ("sweep={objectives: [score, bytes], scheduler: asha}", "cuts off a Pareto front"),
        (
            "sweep={search: grid, axes: {memory.decay: {low: 0.5, high: 1.0}}}",
            "needs a list of values for memory.decay",
        ),
        ("sweep.axs={}", "Did you mean 'axes'?"),
    ],
)
def test_mistakes_in_a_sweep_are_named(tmp_path, override, complaint):
    (tmp_path / "spec.yaml").write_text("name: x")
    with pytest.raises(UserError, match=complaint.replace("?", r"\?")):
        load(tmp_path / "spec.yaml", [override])


def test_scores_are_to_be_large_and_all_else_small(tmp_path):
    (tmp_path / "spec.yaml").write_text("name: x")
    spec = load(tmp_path / "spec.yaml", ["sweep.objectives=[score/indexer/r0.75, bytes, {metric: ms, mode: max}]"])
    assert [objective.mode for objective in spec.sweep.objectives] == ["max", "min", "max"]


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        (["sweep.axes={}"], set()),
        (["sweep.axes={}", "sweep.axes.indexer.heads=[1]"], {"indexer.heads"}),
        (["sweep.axes.indexer.dim=null"], {"memory.decay"}),
    ],
)
def test_inherited_axes_are_taken_away(tmp_path, overrides, left):
    (tmp_path / "base.yaml").write_text("sweep: {axes: {indexer.dim: [4, 8], memory.decay: {low: 0.5, high: 1.0}}}")
    (tmp_path / "spec.yaml").write_text("extends: base.yaml\n")
    assert set(load(tmp_path / "spec.yaml", overrides).sweep.axes) == left
    (tmp_path / "empty.yaml").write_text("extends: base.yaml\nsweep: {axes: {}, trials: 3}\n")
    assert load(tmp_path / "empty.yaml").sweep.axes == {}
