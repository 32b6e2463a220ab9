"""The training loop without Ray: it learns, it resumes exactly, it stops at nonsense."""

import shutil
from dataclasses import dataclass, field

import pytest
import torch
from tiny_models import tiny_backbone
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.config.learning_rate import LearningRateConfig
from indexmem.config.load import validate, with_overrides
from indexmem.distill.data import MicroBatch, StepBatches, WindowStream
from indexmem.distill.history import History
from indexmem.distill.loop import STATE, LocalContext, distill
from indexmem.errors import UserError
from indexmem.eviction.indexer import IndexerStack


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return validate(
        {
            "distill": {
                "texts": [str(tmp_path / "text.txt")],
                "length": 96,
                "batch_size": 2,
                "schedule": {"warmup": 2, "stable": 20, "decay": 8, "peak_lr": 0.01, "final_lr": 0.001},
                "checkpoint_every": 10,
            }
        },
        "test",
    )


@dataclass(frozen=True)
class KilledAt(LocalContext):
    """Dies right after publishing the checkpoint of this step."""

    step: int = 0

    def checkpoint(self, folder, metrics):
        super().checkpoint(folder, metrics)
        if metrics["step"] == self.step:
            raise KeyboardInterrupt


def test_loss_falls(spec, tmp_path):
    # Of the losses, kl alone goes to 0: bce also counts the entropy of its targets.
    settings = ["target.loss=kl", "distill.schedule.stable=110", "distill.schedule.peak_lr=0.02"]
    longer = with_overrides(spec, settings)
    history = History(tmp_path / "history", span=10)
    distill(longer, LocalContext(tmp_path / "run"), history, tiny_backbone())
    losses = [row["loss"] for row in history.read()]
    assert len(losses) == 120
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])


def test_a_run_that_starts_from_modules_goes_on_where_they_are(spec, tmp_path):
    first, second = History(tmp_path / "first", span=10), History(tmp_path / "second", span=10)
    spec = with_overrides(spec, ["target.loss=kl"])
    distill(spec, LocalContext(tmp_path / "run"), first, tiny_backbone())
    trained = LocalContext(tmp_path / "run").restore()
    further = with_overrides(spec, [f"distill.start_from={trained}"])
    distill(further, LocalContext(tmp_path / "further"), second, tiny_backbone())
    assert second.read()[0]["loss"] < 0.8 * first.read()[0]["loss"]
    other = with_overrides(further, ["indexer.token_term=16"])
    with pytest.raises(UserError, match=r"token_term is 128 there and 16 here.*Give the spec the same sizes"):
        distill(other, LocalContext(tmp_path / "other"), second, tiny_backbone())
    memories = with_overrides(further, ["distill.modules=[locret]"])
    with pytest.raises(UserError, match=r"holds none of locret \(it holds: indexer\)"):
        distill(memories, LocalContext(tmp_path / "other"), second, tiny_backbone())


def test_what_is_ranked_too_low_falls_as_an_indexer_learns(spec, tmp_path):
    """Once a step, of each loss: the same quantity."""
    for loss in ("kl", "bce", "mse"):
        history = History(tmp_path / loss, span=10)
        longer = with_overrides(spec, [f"target.loss={loss}", "distill.schedule.stable=70"])
        distill(longer, LocalContext(tmp_path / f"run-{loss}"), history, tiny_backbone())
        missed = [row["missed"] for row in history.read()]
        assert all(0 <= value <= 1 for value in missed)
        assert sum(missed[-10:]) < 0.8 * sum(missed[:10]), loss


@pytest.mark.parametrize("packing", [False, True])
def test_a_killed_run_ends_in_the_same_weights(spec, tmp_path, packing):
    spec = with_overrides(spec, [f"distill.packing={packing}"])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    history = History(tmp_path / "h1", span=10)
    distill(spec, LocalContext(whole), history, tiny_backbone())
    resumed = History(tmp_path / "h2", span=10)
    with pytest.raises(KeyboardInterrupt):
        distill(spec, KilledAt(parts, step=10), resumed, tiny_backbone())
    distill(spec, LocalContext(parts), resumed, tiny_backbone())
    expected = IndexerStack.load(whole / "step-00000030").state_dict()
    for name, tensor in IndexerStack.load(parts / "step-00000030").state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert [r["step"] for r in resumed.read()] == list(range(30))
    assert [r["loss"] for r in resumed.read()] == [r["loss"] for r in history.read()]
    assert [r["padding"] for r in resumed.read()] == [r["padding"] for r in history.read()]


def test_a_run_of_a_version_without_positions_goes_on_with_the_same_data(spec, tmp_path):
    history = History(tmp_path / "h")
    with pytest.raises(KeyboardInterrupt):
        distill(spec, KilledAt(tmp_path / "run", step=20), history, tiny_backbone())
    path = tmp_path / "run" / "step-00000010" / STATE
    state = torch.load(path, weights_only=True)
    torch.save({name: value for name, value in state.items() if name != "position"}, path)
    shutil.rmtree(tmp_path / "run" / "step-00000020")
    before = [row["loss"] for row in history.read()]
    with pytest.raises(KeyboardInterrupt):
        distill(spec, KilledAt(tmp_path / "run", step=20), history, tiny_backbone())
    assert [row["loss"] for row in history.read()] == before


@dataclass(frozen=True)
class StoppedAfter(LocalContext):
    """Asked to stop during this step."""

    step: int = 0
    seen: list = field(default_factory=list)

    def stop_requested(self):
        self.seen.append(None)
        return len(self.seen) == self.step


def test_a_stopped_run_has_a_checkpoint_of_its_last_step_and_ends_in_the_same_weights(spec, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    distill(spec, LocalContext(whole), History(tmp_path / "h1"), tiny_backbone())
    history = History(tmp_path / "h2")
    distill(spec, StoppedAfter(parts, step=13), history, tiny_backbone())
    assert sorted(folder.name for folder in parts.iterdir())[-1] == "step-00000013"
    assert history.read()[-1]["step"] == 12
    distill(spec, LocalContext(parts), history, tiny_backbone())
    expected = IndexerStack.load(whole / "step-00000030").state_dict()
    for name, tensor in IndexerStack.load(parts / "step-00000030").state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_micro_batches_add_up_to_the_step_of_one_large_batch(spec, tmp_path, monkeypatch):
    """Windows of one length: the mean over them is the mean over micro-batches."""
    windows = torch.randint(4, 200, (6, 4, 32), generator=torch.Generator().manual_seed(0))
    start = next(WindowStream([TEXT], tiny_tokenizer(), length=32, seed=0).steps(1)).position
    one = [StepBatches([MicroBatch(step, torch.full((4,), 32))], start) for step in windows]
    four = [StepBatches([MicroBatch(row[None], torch.tensor([32])) for row in step], start) for step in windows]
    short = ["distill.schedule.stable=3", "distill.schedule.decay=1", "distill.workers=1", "distill.length=32"]
    results = []
    for name, steps, accumulate in (("one", one, 1), ("four", four, 4)):
        monkeypatch.setattr(WindowStream, "steps", lambda *_, steps=steps: iter(steps))
        history = History(tmp_path / f"h-{name}")
        overridden = with_overrides(spec, [*short, f"distill.accumulate={accumulate}"])
        distill(overridden, LocalContext(tmp_path / name), history, tiny_backbone())
        results.append([value for row in history.read() for value in (row["loss"], row["grad_norm"])])
    assert len(results[0]) == 12
    assert results[0] == pytest.approx(results[1], rel=1e-3)


def test_a_gradient_that_is_not_finite_stops_before_it_is_applied(spec, tmp_path, monkeypatch):
    from indexmem.distill.trainees.indexer import IndexerTrainee

    whole = IndexerTrainee.layer_loss

    def broken(self, tap, lengths_B, step):
        loss = whole(self, tap, lengths_B, step)
        if tap.layer == 1 and step.step == 3:
            loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss

    monkeypatch.setattr(IndexerTrainee, "layer_loss", broken)
    with pytest.raises(RuntimeError, match=r"gradient of 'indexer' is not finite at step 3 in layers \[1\]"):
        distill(spec, LocalContext(tmp_path / "run"), History(tmp_path / "h"), tiny_backbone())


def test_a_loss_that_is_not_finite_stops_with_step_and_layer(spec, tmp_path, monkeypatch):
    backbone = tiny_backbone()
    monkeypatch.setattr(
        "indexmem.distill.trainees.indexer.LOSSES", {"bce": lambda _, importance_BGT, *a: importance_BGT * torch.nan}
    )
    with pytest.raises(RuntimeError, match=r"loss of 'indexer' is not finite at step 0 in layers \[0, 1, 2\]"):
        distill(spec, LocalContext(tmp_path / "run"), History(tmp_path / "h"), backbone)


def test_schedules():
    wsd = LearningRateConfig(warmup=4, stable=3, decay=2, peak_lr=1.0, final_lr=0.1)
    rates = [wsd.rate(step) for step in range(wsd.steps)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1, 1, 1, 0.55, 0.1])
    constant = LearningRateConfig(kind="constant", warmup=2, stable=3, decay=9, peak_lr=1.0)
    assert [constant.rate(step) for step in range(constant.steps)] == [0.5, 1, 1, 1, 1]
