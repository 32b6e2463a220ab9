"""A trial in one process: interrupted and begun again it ends the same, and nothing is done twice."""

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.config.load import load, with_settings
from indexmem.distill.history import History
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.eviction.indexer import IndexerStack
from indexmem.locks.leases import Leases
from indexmem.results.store import RowStore
from indexmem.sweep.trial import InProcess, Outcome, evaluates, perform, trains

PROVENANCE = {"git_commit": "abc", "versions": {}, "host": "here"}
STEPS = 12


@pytest.fixture
def spec(tmp_path):
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    raw = {
        "model": {"id": str(tmp_path / "model")},
        "distill": {
            "texts": [str(tmp_path / "text.txt")],
            "length": 96,
            "workers": 1,
            "schedule": {"warmup": 2, "stable": 6, "decay": 4},
            "checkpoint_every": 5,
        },
        "grid": {
            "methods": ["indexer", "knorm"],
            "ratios": [0.5],
            "benchmarks": ["niah_single_1"],
            "length": 640,
            "samples": 2,
            "haystack": str(tmp_path / "text.txt"),
            "max_new_tokens": 2,
        },
        "indexer": {"pair_term": True},
        "sweep": {"axes": {"indexer.dim": [2, 4]}, "objectives": ["score"]},
        "run": {"root": str(tmp_path / "runs")},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(raw))
    return load(tmp_path / "spec.yaml")


def record(spec):
    """Runs the trial; returns its reports and outcome."""
    reports = []
    outcome = perform(spec, InProcess(), PROVENANCE, lambda run, row: reports.append((run, row)))
    return reports, outcome


def test_a_trial_that_was_interrupted_ends_as_an_undisturbed_one(spec, tmp_path):
    other = with_settings(spec, {"run.root": str(tmp_path / "other")}, "test")
    expected, whole = record(other)
    run = DistillRun.of(spec)
    seen = []

    def killed(_, row):
        seen.append(row)
        if row["step"] == 10:
            raise SystemExit

    with pytest.raises(SystemExit):
        perform(spec, InProcess(), PROVENANCE, killed)
    assert [row["step"] for row in seen] == [5, 10]
    assert not run.finished
    (run.folder / "trial" / "writing-1").mkdir()  # a checkpoint that was cut off
    reports, outcome = record(spec)
    assert [row for _, row in reports] == [row for _, row in expected], "the first ones are reported once more"
    assert [row["step"] for _, row in reports] == [5, 10, STEPS], "a last span that is shorter counts, too"
    assert {name for name, _ in reports} == {run.id} == {outcome.distill_id}
    assert {n: v for n, v in outcome.metrics.items() if "ms" not in n} == {
        n: v for n, v in whole.metrics.items() if "ms" not in n
    }
    weights = [IndexerStack.load(DistillRun.of(s).final).state_dict() for s in (spec, other)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[1])
    assert sorted(p.name for p in (run.folder / "trial").iterdir()) == ["step-00000010", "step-00000012"]
    assert [row["step"] for row in History(run.history, 5).read()] == list(range(STEPS))


def test_a_trial_that_is_there_costs_nothing(spec, monkeypatch):
    reports, outcome = record(spec)
    files = {p: p.stat().st_mtime_ns for p in (DistillRun.of(spec).folder.parent.parent).rglob("*") if p.is_file()}
    monkeypatch.setattr("indexmem.sweep.trial.train_here", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr("indexmem.evaluate.worker.Worker.run", lambda *_: pytest.fail("evaluated again"))
    assert record(spec) == (reports, outcome)
    assert {p: p.stat().st_mtime_ns for p in files} == files
    assert len(outcome.cell_ids) == 2
    # The other trial shares the cell of the method that is not trained.
    monkeypatch.undo()
    _, other = record(with_settings(spec, {"indexer.dim": 4}, "test"))
    assert len(set(outcome.cell_ids) & set(other.cell_ids)) == 1


def test_failed_rows_fail_the_trial_and_are_tried_once(spec, monkeypatch):
    tried = []

    def broken(self, tasks):
        tried.append(tasks)
        raise ValueError("no such thing")

    monkeypatch.setattr("indexmem.evaluate.cell.CellEvaluator.evaluate", broken)
    with pytest.raises(RuntimeError, match="4 of 4 rows failed, the first with ValueError: no such thing"):
        record(spec)
    cells = [[cell.id for task in tasks for cell in task.cells] for tasks in tried]
    assert [len(ids) for ids in cells] == [2, 1, 1] * 2, "each sample once, then its cells alone"


def taken_over(monkeypatch, module):
    """Leases that somebody else has taken by the time that their holder looks."""
    made = []

    class Lost(Leases):
        def claim(self, work):
            mine = super().claim(work)
            made.append(sorted(mine[0]))
            self.lost = bool(mine[0]) and len(made) == 1
            return mine

    monkeypatch.setattr(module, Lost)
    return made


def test_cells_that_were_taken_over_are_left_alone_and_claimed_anew(spec, monkeypatch):
    """The other holder may die before it is done, so what is still missing is looked at again."""
    evaluated = with_settings(spec, {"grid.methods": ["knorm"]}, "test")
    claims = taken_over(monkeypatch, "indexmem.evaluate.driver.Leases")
    stored = []
    append = RowStore.append_encoded
    monkeypatch.setattr(RowStore, "append_encoded", lambda *given: stored.append(len(claims)) or append(*given))
    _, outcome = record(evaluated)
    assert claims[0] == claims[1]
    assert set(stored) == {2}, "nothing under the lease that was lost"
    assert "score" in outcome.metrics


def test_a_training_that_was_taken_over_ends_with_the_reason(spec, monkeypatch):
    taken_over(monkeypatch, "indexmem.locks.leases.Leases")
    with pytest.raises(UserError, match="was taken over while this run was working or stood still"):
        record(spec)
    assert not DistillRun.of(spec).finished


def test_what_a_trial_does_follows_from_what_is_wanted(spec):
    def wants(**settings):
        changed = with_settings(spec, {name.replace("__", "."): value for name, value in settings.items()}, "test")
        return trains(changed), evaluates(changed)

    assert wants() == (True, True)
    assert wants(sweep__objectives=["loss"]) == (True, False)
    assert wants(grid__methods=["knorm"]) == (False, True)
    assert wants(indexer__checkpoint="somewhere") == (False, True)
    assert wants(grid__methods=["knorm"], sweep__scheduler="asha") == (True, True)
    assert wants(sweep__objectives=["loss", "score"], grid__methods=["knorm"]) == (True, True)


def test_a_loss_alone_needs_no_grid(spec):
    reports, outcome = record(with_settings(spec, {"sweep.objectives": ["loss"]}, "test"))
    assert outcome == Outcome({}, DistillRun.of(spec).id, ())
    assert reports[-1][1]["loss"] > 0
