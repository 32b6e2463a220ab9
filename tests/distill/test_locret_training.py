"""Locret's training: target and loss against loops, gradients in fp64, and that it learns."""

from itertools import islice

import pytest
import torch
from tiny_models import random_ids, tiny_backbone
from tiny_tokenizers import SENTENCES, tiny_tokenizer
from torch.nn import functional as F

from indexmem.config.load import validate
from indexmem.config.schema import Experiment
from indexmem.distill.data import WindowStream
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.module import DistillModule
from indexmem.distill.targets import pooled_target
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.locret import TARGET, LocretTrainee, retention_loss
from indexmem.distill.trainees.registry import make_trainees
from indexmem.eviction.methods.locret import LocretShape, LocretStack
from indexmem.models.attention import tapping

LENGTHS = (13, 8, 1)


def loop_target(query_QLd, key_HLd, scale):
    """The largest logit that the token's own and later queries of its KV head's group give it."""
    group = query_QLd.shape[0] // key_HLd.shape[0]
    heads, length, _ = key_HLd.shape
    target = torch.empty(heads, length, dtype=torch.float64)
    for head in range(heads):
        for t in range(length):
            queries = query_QLd[head * group : (head + 1) * group, t:].double()
            target[head, t] = (queries @ key_HLd[head, t].double()).max() * scale
    return target


def loop_loss(predicted, target, smoothing):
    """Over all sequences: lists of [H, T], padding already cut off."""
    regression, steps = [], []
    for ours, theirs in zip(predicted, target):
        for head in range(ours.shape[0]):
            for t in range(ours.shape[1]):
                gap = (ours[head, t] - theirs[head, t]).abs()
                regression.append(0.5 * gap**2 if gap < 1 else gap - 0.5)
                if t:
                    steps.append((ours[head, t] - ours[head, t - 1]) ** 2)
    smooth = torch.stack(steps).mean() if steps else 0.0
    return torch.stack(regression).mean() + smoothing * smooth


def padded_case():
    torch.manual_seed(0)
    predicted = torch.randn(3, 2, 13, dtype=torch.float64, requires_grad=True)
    target = 3 * torch.randn(3, 2, 13, dtype=torch.float64)
    for b, length in enumerate(LENGTHS):
        target[b, :, length:] = -torch.inf  # as pooled_target leaves padding
    return predicted, target, torch.tensor(LENGTHS)


@pytest.mark.parametrize("smoothing", [0.0, 2.5e-3, 10.0])
def test_loss_and_gradient_equal_the_loops(smoothing):
    predicted, target, lengths = padded_case()
    fast = retention_loss(predicted, target, lengths, smoothing)
    cut = [(predicted[b, :, :n], target[b, :, :n]) for b, n in enumerate(LENGTHS)]
    slow = loop_loss(*zip(*cut), smoothing)
    torch.testing.assert_close(fast, slow)
    (fast_gradient,) = torch.autograd.grad(fast, predicted, retain_graph=True)
    (slow_gradient,) = torch.autograd.grad(slow, predicted)
    torch.testing.assert_close(fast_gradient, slow_gradient)
    for b, length in enumerate(LENGTHS):
        assert (fast_gradient[b, :, length:] == 0).all()


def test_the_gradient_is_that_of_finite_differences():
    predicted, target, lengths = padded_case()
    assert torch.autograd.gradcheck(lambda x: retention_loss(x, target, lengths, 0.5), predicted)


def test_one_token_alone_has_no_neighbour():
    predicted = torch.tensor([[[3.0]]])
    assert retention_loss(predicted, torch.tensor([[[1.0]]]), torch.tensor([1]), 1.0).item() == 1.5


def test_a_step_through_the_backbone_equals_the_loops_in_every_layer():
    """Ragged batch, GQA, real taps: target, prediction and masking together; gradients stay in their layer."""
    backbone = tiny_backbone()
    (trainee,) = make_trainees(validate({"distill": {"modules": ["locret"]}}, "test"), backbone.geometry)
    assert (trainee.name, trainee.trained.shape) == ("locret", LocretShape(1024))
    ids = torch.tensor([random_ids(13, seed) for seed in range(3)])
    losses_L = DistillModule(backbone, [trainee])(ids, torch.tensor(LENGTHS), StepContext(0, 0))[0]
    for layer, loss in enumerate(losses_L):
        predicted, target = [], []
        for b, length in enumerate(LENGTHS):
            taps = []
            with torch.no_grad(), tapping(backbone.model, taps.append) as kwargs:
                backbone.model.model(ids[b : b + 1, :length], **kwargs)
            predicted.append(trainee.heads.predict(taps[layer])[0].double())
            target.append(loop_target(taps[layer].query_BQLd[0], taps[layer].key_BHLd[0], 16**-0.5))
        torch.testing.assert_close(loss.double(), loop_loss(predicted, target, 2.5e-3), atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(losses_L[1], list(trainee.parameters()))
    assert [bool(g.any()) for g in gradients] == [False, False, True, True, False, False]


def spearman(a, b):
    ranks = [x.double().argsort(dim=-1).argsort(dim=-1).double() for x in (a, b)]
    centred = [r - r.mean(-1, keepdim=True) for r in ranks]
    return F.cosine_similarity(*centred, dim=-1)


def agreement(heads, backbone, ids):
    """Rank correlation with the target, and the share of its top quarter that is found: mean over layers and heads."""
    correlation, found = [], []

    def visit(tap):
        lengths = torch.tensor([ids.shape[1]] * ids.shape[0])
        target = pooled_target(tap.query_BQLd, tap.key_BHLd, lengths, rows=2, scale=tap.scaling, config=TARGET)
        predicted = heads.predict(tap)
        correlation.append(spearman(predicted, target).mean())
        top = [x.topk(ids.shape[1] // 4, dim=-1).indices for x in (predicted, target)]
        found.append((top[0][..., None] == top[1][..., None, :]).any(-1).double().mean())

    with torch.no_grad(), tapping(backbone.model, visit) as kwargs:
        backbone.model.model(ids, **kwargs)
    return torch.stack(correlation).mean().item(), torch.stack(found).mean().item()


def test_it_learns_to_rank_windows_it_has_not_seen(tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(SENTENCES[:150]))
    schedule = {"warmup": 5, "stable": 120, "decay": 75, "peak_lr": 0.005, "final_lr": 0.0005}
    spec = validate(
        {
            "target": {"source": "logprobs"},  # texts are read once, as `agreement` does
            "distill": {
                "modules": ["locret"],
                "locret_hidden": 128,  # 1,024 is wide for a model of width 48
                "texts": [str(tmp_path / "text.txt")],
                "length": 96,
                "batch_size": 2,
                "schedule": schedule,
                "checkpoint_every": 1000,
            },
        },
        "test",
    )
    backbone = tiny_backbone()
    distill(spec, LocalContext(tmp_path / "run"), History(tmp_path / "history"), backbone)
    losses = [row["loss_locret"] for row in History(tmp_path / "history").read()]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])

    heldout = WindowStream([" ".join(SENTENCES[150:])], tiny_tokenizer(), length=96, seed=1)
    ids = torch.cat([batch.ids_BL for step in islice(heldout.steps(2), 4) for batch in step.micro_batches])
    trained = LocretStack.load(tmp_path / "run" / "step-00000200")
    correlation, found = agreement(trained, backbone, ids)
    torch.manual_seed(5)
    untrained = agreement(LocretTrainee(Experiment(), backbone.geometry).heads, backbone, ids)
    assert correlation > 0.55 > 0.3 > untrained[0]
    assert found > 0.55 > 0.4 > untrained[1]  # by chance: 0.25
