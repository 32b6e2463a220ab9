"""The training loop. It knows no Ray: where it runs, it learns from a TrainContext."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from indexmem.config.schema import Experiment
from indexmem.distill.data import WindowStream
from indexmem.distill.history import History
from indexmem.distill.module import DistillModule
from indexmem.distill.schedule import learning_rate
from indexmem.eviction.checkpoint import load_indexers, save_indexers
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.models.texts import load_texts

STATE = "state.pt"


class TrainContext(Protocol):
    """Where the loop runs: one process, or a rank of a group."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def wrap(self, module: nn.Module) -> nn.Module:
        """Synchronise gradients between ranks."""

    def mean(self, values: Tensor) -> Tensor:
        """Average over ranks."""

    def restore(self) -> Path | None:
        """Folder of the checkpoint to go on from."""

    def checkpoint(self, folder: Path | None, metrics: dict[str, Any]) -> None:
        """Publish a checkpoint; all ranks call it together, rank 0 with the folder that it wrote."""

    def scratch(self) -> Path:
        """A fresh local folder for the next checkpoint."""


@dataclass(frozen=True)
class LocalContext:
    """One process, no Ray: checkpoints go to `folder`."""

    folder: Path
    rank: int = 0
    world: int = 1

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    def mean(self, values: Tensor) -> Tensor:
        return values

    def restore(self) -> Path | None:
        done = sorted(self.folder.glob(f"step-*/{STATE}"))
        return done[-1].parent if done else None

    def checkpoint(self, folder: Path | None, metrics: dict[str, Any]) -> None:
        assert folder is not None
        folder.rename(self.folder / f"step-{metrics['step']:08d}")

    def scratch(self) -> Path:
        folder = self.folder / f"writing-{time.time_ns()}"
        folder.mkdir(parents=True)
        return folder


def distill(experiment: Experiment, context: TrainContext, history: History, backbone: Backbone | None = None) -> None:
    """Train the indexers of `experiment` to the end of its schedule, resuming from the context's checkpoint.

    The last checkpoint's folder holds the trained indexers. Raises RuntimeError naming step and layers when a loss is
    not finite.
    """
    config = experiment.distill
    backbone = backbone or load_backbone(experiment.model)
    torch.manual_seed(config.seed)  # the same initial weights on every rank
    indexers = IndexerStack(IndexerShape.of(experiment.indexer, backbone.geometry), backbone.geometry)
    indexers.to(backbone.device)
    module = context.wrap(DistillModule(backbone, indexers, experiment.target))
    optimizer = torch.optim.AdamW(indexers.parameters(), lr=config.schedule.peak_lr, weight_decay=config.weight_decay)
    start = _resume(context.restore(), indexers, optimizer)

    stream = WindowStream(load_texts(config.texts), backbone.tokenizer, config.length, config.seed)
    batches = stream.batches(config.batch_size, context.rank, context.world, start)
    pending: list[dict[str, Any]] = []
    for step in range(start, config.schedule.steps):
        began = time.perf_counter()
        ids_BL, lengths_B = (x.to(backbone.device) for x in next(batches))
        rate = learning_rate(config.schedule, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        layer_losses = module(ids_BL, lengths_B)
        optimizer.zero_grad(set_to_none=True)
        layer_losses.sum().backward()  # layers are independent: each sees the gradient of its own loss
        grad_norm = nn.utils.clip_grad_norm_(indexers.parameters(), config.grad_clip)
        optimizer.step()

        losses = context.mean(layer_losses.detach())
        _check_finite(losses, step)
        seconds = time.perf_counter() - began
        row = {
            "step": step,
            "loss": losses.mean().item(),
            "loss_worst_layer": losses.max().item(),
            "lr": rate,
            "grad_norm": float(grad_norm),
            "tokens_per_second": int(lengths_B.sum()) * context.world / seconds,
        }
        pending.append(row)
        saving = step + 1 == config.schedule.steps or (step + 1) % config.checkpoint_every == 0
        if context.rank == 0 and (saving or seconds > 0.5 or len(pending) >= 20):
            history.write(pending)
            pending = []
        if saving:
            folder = _save(context, indexers, optimizer, step + 1, experiment, row) if context.rank == 0 else None
            context.checkpoint(folder, {"step": step + 1, "loss": row["loss"]})


def _resume(folder: Path | None, indexers: IndexerStack, optimizer: torch.optim.Optimizer) -> int:
    if folder is None:
        return 0
    indexers.load_state_dict(load_indexers(folder).state_dict())
    state = torch.load(folder / STATE, weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _save(
    context: TrainContext,
    indexers: IndexerStack,
    optimizer: torch.optim.Optimizer,
    step: int,
    experiment: Experiment,
    metrics: dict[str, Any],
) -> Path:
    folder = context.scratch()
    torch.save({"step": step, "optimizer": optimizer.state_dict()}, folder / STATE)
    trained = {
        "backbone": experiment.model.id,
        "step": step,
        "loss": metrics["loss"],
        "sequences_per_step": experiment.distill.batch_size * context.world,
        **{section: getattr(experiment, section).model_dump(mode="json") for section in ("target", "distill")},
    }
    return save_indexers(indexers, folder, trained)


def _check_finite(losses: Tensor, step: int) -> None:
    bad = (~torch.isfinite(losses)).nonzero().flatten().tolist()
    if bad:
        raise RuntimeError(f"loss is not finite at step {step} in layers {bad}; lower distill.schedule.peak_lr")
