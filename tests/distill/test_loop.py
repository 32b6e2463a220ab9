"""The training loop without Ray: it learns, it resumes exactly, it stops at nonsense."""

from dataclasses import dataclass

import pytest
import torch
from tiny_models import tiny_backbone
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.config.load import validate, with_overrides
from indexmem.config.schema import ScheduleConfig
from indexmem.distill.data import WindowStream
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.schedule import learning_rate
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
    longer = with_overrides(spec, ["distill.schedule.stable=110", "distill.schedule.peak_lr=0.02"])
    history = History(tmp_path / "history", span=10)
    distill(longer, LocalContext(tmp_path / "run"), history, tiny_backbone())
    losses = [row["loss"] for row in history.read()]
    assert len(losses) == 120
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])


def test_a_killed_run_ends_in_the_same_weights(spec, tmp_path):
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


def test_a_loss_that_is_not_finite_stops_with_step_and_layer(spec, tmp_path, monkeypatch):
    backbone = tiny_backbone()
    monkeypatch.setattr(
        "indexmem.distill.trainees.indexer.importance_kl", lambda *a: torch.full((2,), float("nan"), requires_grad=True)
    )
    with pytest.raises(RuntimeError, match=r"loss of 'indexer' is not finite at step 0 in layers \[0, 1, 2\]"):
        distill(spec, LocalContext(tmp_path / "run"), History(tmp_path / "h"), backbone)


def test_ranks_share_the_stream_without_overlap_and_resume_in_place():
    stream = WindowStream([TEXT], tiny_tokenizer(), length=50, seed=3)
    take = lambda n, **kw: [tuple(map(tuple, ids.tolist())) for (ids, _), _ in zip(stream.batches(2, **kw), range(n))]  # noqa: E731
    whole = take(6)
    first, second = take(3, rank=0, world=2), take(3, rank=1, world=2)
    # One rank with batch 2 sees, per pair of steps, what two ranks with batch 2 see in one step.
    flat = [row for batch in whole for row in batch]
    assert [row for batch in first for row in batch] == flat[0::2]
    assert [row for batch in second for row in batch] == flat[1::2]
    assert take(2, rank=1, world=2, start=1) == second[1:]


def test_windows_never_mix_documents_and_short_texts_are_refused():
    stream = WindowStream(["aaaa " * 100, "bbbb " * 100], tiny_tokenizer(), length=80, seed=0)
    for (ids, lengths), _ in zip(stream.batches(4), range(10)):
        for row, length in zip(ids, lengths):
            text = tiny_tokenizer().decode(row[:length])
            assert not ("a" in text and "b" in text)
    with pytest.raises(ValueError, match="nothing to train on"):
        next(WindowStream(["short"], tiny_tokenizer(), length=80, seed=0).batches(1))


def test_schedules():
    wsd = ScheduleConfig(warmup=4, stable=3, decay=2, peak_lr=1.0, final_lr=0.1)
    rates = [learning_rate(wsd, step) for step in range(wsd.steps)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1, 1, 1, 0.55, 0.1])
    constant = ScheduleConfig(kind="constant", warmup=2, stable=3, decay=9, peak_lr=1.0)
    assert [learning_rate(constant, step) for step in range(constant.steps)] == [0.5, 1, 1, 1, 1]
