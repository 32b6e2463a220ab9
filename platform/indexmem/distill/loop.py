"""The training loop. It knows no Ray: where it runs, it learns from a TrainContext."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from indexmem.config.schema import Experiment
from indexmem.distill.data import MicroBatch, Position, WindowStream
from indexmem.distill.history import History
from indexmem.distill.module import DistillModule
from indexmem.distill.prefetch import prefetched
from indexmem.distill.trainees.base import StepContext, Trainee
from indexmem.distill.trainees.registry import make_trainees
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import fill_module, load_module, read_config, save_modules, weights_path
from indexmem.models.assets import modules_folder
from indexmem.models.backbone import Backbone, load_backbone

STATE = "state.pt"


class TrainContext(Protocol):
    """Where the loop runs: one process, or a rank of a group."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def wrap(self, module: nn.Module) -> nn.Module:
        """Synchronise gradients between ranks."""

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """Within, gradients of what `wrap` returned add up on this rank alone."""

    def mean(self, values: Tensor) -> Tensor:
        """Average over ranks."""

    def restore(self) -> Path | None:
        """Folder of the checkpoint to go on from."""

    def stop_requested(self) -> bool:
        """Whether to end after this step with a checkpoint. Ranks need not agree: one is enough."""

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

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        return nullcontext()

    def stop_requested(self) -> bool:
        return False

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
    """Train the modules of `experiment` to the end of its schedule, resuming from the context's checkpoint.

    A step averages the gradients of workers x accumulate micro-batches, however many ranks share them. The last
    checkpoint's folder holds the trained modules. Raises RuntimeError naming step, module and layers when a loss or a
    gradient is not finite; nothing is updated by such a step.
    """
    config = experiment.distill
    backbone = backbone or load_backbone(experiment.model)
    torch.manual_seed(config.seed)  # the same initial weights on every rank
    trainees = make_trainees(experiment, backbone.geometry, str(backbone.device))
    if config.start_from is not None:
        begin_with(modules_folder(config.start_from), trainees)
    module = DistillModule(backbone, trainees, experiment.target).to(backbone.device)
    synchronised = context.wrap(module)
    optimizers = [
        torch.optim.AdamW(t.parameters(), lr=config.schedule.peak_lr, weight_decay=config.weight_decay)
        for t in trainees
    ]
    start, position = _resume(context.restore(), trainees, optimizers)

    stream = WindowStream.of(config, backbone.tokenizer)
    per_step = config.workers * config.accumulate
    steps = stream.steps(config.batch_size, per_step, context.rank, context.world, position)
    if position is None:  # a new run, or a checkpoint from before positions were kept
        steps = islice(steps, start, None)
    pending: list[dict[str, Any]] = []
    with prefetched(steps) as data:
        for step in range(start, config.schedule.steps):
            began = time.perf_counter()
            rate = config.schedule.rate(step)
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            batch = next(data)
            share = context.world / per_step  # synchronising divides by the world
            total_ML = _backward(context, synchronised, batch.micro_batches, StepContext(step, config.seed), share)
            tokens = sum(int(micro_batch.lengths_D.sum()) for micro_batch in batch.micro_batches)
            # One all-reduce for both, so that all ranks stop after the same step.
            stop = total_ML.new_tensor([float(context.stop_requested())])
            averaged = context.mean(torch.cat((total_ML.flatten(), stop)))
            losses_ML, stopping = averaged[:-1].view_as(total_ML), bool(averaged[-1] > 0)
            _check_finite("loss", losses_ML, trainees, step)
            running = [pair for pair in zip(trainees, optimizers) if pair[0].starts_at() <= step]
            norms = {
                trainee.name: _update(trainee, optimizer, config.grad_clip, rate, step)
                for trainee, optimizer in running
            }
            for buffer in module.buffers():  # running statistics of the data
                buffer.copy_(context.mean(buffer))

            seconds = time.perf_counter() - began
            row = {"step": step, "lr": rate, "tokens_per_second": tokens * context.world / seconds}
            row["padding"] = statistics.fmean(micro_batch.padding for micro_batch in batch.micro_batches)
            for trainee, losses_L in zip(trainees, losses_ML):
                if trainee.name in norms:
                    row |= _named_metrics(trainee.name, losses_L, norms[trainee.name]) | trainee.measured()
            pending.append(row)
            saving = stopping or step + 1 == config.schedule.steps or (step + 1) % config.checkpoint_every == 0
            if context.rank == 0 and (saving or seconds > 0.5 or len(pending) >= 20):
                history.write(pending)
                pending = []
            if saving:
                state = {"step": step + 1, "position": asdict(batch.position)}
                folder = _save(context, trainees, optimizers, state, experiment, row) if context.rank == 0 else None
                context.checkpoint(folder, {"step": step + 1})
            if stopping:
                return


def _backward(
    context: TrainContext, synchronised: nn.Module, micro_batches: Sequence[MicroBatch], at: StepContext, share: float
) -> Tensor:
    """Gradients of a rank's micro-batches, each counting `share`, and the sum of their losses [modules, layers].

    Ranks synchronise with the last one. Modules and layers are independent: each sees its own loss's gradient.
    """
    device = next(synchronised.parameters()).device
    losses = []
    for number, micro_batch in enumerate(micro_batches, start=1):
        ids_BL, lengths_D = (x.to(device) for x in (micro_batch.ids_BL, micro_batch.lengths_D))
        with nullcontext() if number == len(micro_batches) else context.accumulating(synchronised):
            losses_ML = synchronised(ids_BL, lengths_D, at, micro_batch.packed) * share
            losses_ML.sum().backward()
        losses.append(losses_ML.detach())
    return torch.stack(losses).sum(dim=0)


def _update(trainee: Trainee, optimizer: torch.optim.Optimizer, grad_clip: float, rate: float, step: int) -> float:
    """Take the step; the norm that the gradient had. Nothing is updated when it is not finite."""
    norm = _clip(trainee, grad_clip, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return norm


def _named_metrics(name: str, losses_L: Tensor, norm: float) -> dict[str, float]:
    """The first module's loss is `loss`; the others are named: `loss_memory-indexer`."""
    suffix = "" if name == "indexer" else f"_{name}"
    return {
        f"loss{suffix}": losses_L.mean().item(),
        f"loss_worst_layer{suffix}": losses_L.max().item(),
        f"grad_norm{suffix}": norm,
    }


def begin_with(folder: Path, trainees: Sequence[Trainee]) -> None:
    """Give modules the weights of those of their name in a checkpoint; those that it does not hold begin anew.

    Raises UserError where they do not fit, or where it holds none of them.
    """
    held = read_config(folder)["modules"]
    known = [trainee for trainee in trainees if trainee.name in held]
    if not known:
        names = ", ".join(trainee.name for trainee in trainees)
        raise UserError(f"distill.start_from={folder} holds none of {names} (it holds: {', '.join(held)}).")
    for trainee in known:
        shape, _, weights = load_module(folder, trainee.name)
        wanted = asdict(trainee.trained.shape)  # type: ignore[call-overload]
        if differs := sorted(name for name in {*shape, *wanted} if shape.get(name) != wanted.get(name)):
            said = ", ".join(f"{name} is {shape.get(name)} there and {wanted.get(name)} here" for name in differs)
            raise UserError(
                f"distill.start_from={folder}: '{trainee.name}' has another shape: {said}. "
                "Give the spec the same sizes, or leave distill.start_from out."
            )
        fill_module(trainee.trained, weights, weights_path(folder, trainee.name))


def _resume(
    folder: Path | None, trainees: Sequence[Trainee], optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[int, Position | None]:
    """The step to go on with, and where its data begins."""
    if folder is None:
        return 0, None
    state = torch.load(folder / STATE, weights_only=True)
    for trainee, optimizer in zip(trainees, optimizers):
        weights = load_module(folder, trainee.name)[2]
        fill_module(trainee.trained, weights, weights_path(folder, trainee.name))
        optimizer.load_state_dict(state["optimizers"][trainee.name])
    return int(state["step"]), Position.load(state["position"]) if "position" in state else None


def _save(
    context: TrainContext,
    trainees: Sequence[Trainee],
    optimizers: Sequence[torch.optim.Optimizer],
    state: dict[str, Any],
    experiment: Experiment,
    metrics: dict[str, Any],
) -> Path:
    folder = context.scratch()
    states = {trainee.name: optimizer.state_dict() for trainee, optimizer in zip(trainees, optimizers)}
    torch.save({**state, "optimizers": states}, folder / STATE)
    trained = {
        "backbone": experiment.model.id,
        "step": state["step"],
        "metrics": metrics,
        "sequences_per_step": experiment.distill.sequences_per_step,
        **{
            section: getattr(experiment, section).model_dump(mode="json")
            for section in ("indexer", "target", "distill")
        },
    }
    return save_modules({trainee.name: trainee.trained for trainee in trainees}, folder, trained)


def _check_finite(what: str, values_ML: Tensor, trainees: Sequence[Trainee], step: int) -> None:
    for trainee, values_L in zip(trainees, values_ML):
        bad = (~torch.isfinite(values_L)).nonzero().flatten().tolist()
        if bad:
            raise RuntimeError(
                f"{what} of '{trainee.name}' is not finite at step {step} in layers {bad}; "
                "lower distill.schedule.peak_lr"
            )


def _clip(trainee: Trainee, limit: float, step: int) -> float:
    """Clip the trainee's gradient to norm `limit`; returns the norm that it had."""
    norm = nn.utils.get_total_norm(_gradients(trainee))
    if not norm.isfinite():
        norm_L = torch.stack([nn.utils.get_total_norm(_gradients(layer)) for layer in trainee.trained])
        _check_finite("gradient", norm_L[None], [trainee], step)
    nn.utils.clip_grads_with_norm_(trainee.parameters(), limit, norm)
    return norm.item()


def _gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
