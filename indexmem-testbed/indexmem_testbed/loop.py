"""The pre-training loop. Where it runs, it learns from a TrainContext."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from indexmem.config.learning_rate import LearningRateConfig
from indexmem.distill.history import History
from indexmem.errors import UserError
from indexmem.texts.documents import documents_hash, documents_of
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.model import STARTED_FROM, STATE, WeightedLoss, make_model, read_trained, save_model
from indexmem_testbed.start import load_start, start_folder
from indexmem_testbed.stream import PretrainStream
from indexmem_testbed.validation import Group, ValidationSet, exact_match

if TYPE_CHECKING:
    from indexmem.distill.loop import TrainContext  # importing it for good would take all that distillation needs

# Settings that change how fast or how safely training runs, not what it computes; start_from is a path.
OPERATIONAL = {
    *("loaders", "compile", "checkpoint_every", "keep_checkpoints", "start_from"),
    *("evaluate_every", "evaluate_samples", "evaluate_lengths", "heldout"),
}
ROWS_AT_ONCE = 20  # steps whose metrics are written together
EXACT = "exact_niah_"  # followed by a length: the mean over the needle tasks
UNCOMPILED = "force_eager"  # validation has a shape of its own for each batch


def pretrain(config: PretrainConfig, context: TrainContext, history: History, module: WeightedLoss) -> None:
    """Train to the end of the schedule, resuming from the context's checkpoint, whose last one is a model folder.

    All ranks together see `config.step_tokens` tokens a step, however many they are. Raises RuntimeError when a loss or
    a gradient is not finite; nothing is updated by such a step.
    """
    device = next(module.parameters()).device
    optimizer = _optimizer(module, config)
    start = _resume(context.restore(), module, optimizer, config)
    synchronised = context.wrap(module)
    rates = schedule(config)
    batches = PretrainStream(config, context.rank, context.world).batches(start)
    held_out = list(ValidationSet(config).groups()) if context.rank == 0 and config.evaluate_samples else []
    pending: list[dict[str, Any]] = []
    for step in range(start, config.steps):
        began = time.perf_counter()
        ids_BL, weights_BL = (tensor.to(device, non_blocking=True) for tensor in next(batches))
        waited = time.perf_counter() - began
        optimizer.zero_grad(set_to_none=True)
        # Ranks may hold unequal weights: all divide by the same number, so that each token counts alike.
        loss = synchronised(ids_BL, weights_BL) / context.mean(weights_BL[:, 1:].sum()).clamp_min(1e-6)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), config.grad_clip)
        stop = norm.new_tensor(float(context.stop_requested()))
        mean_loss, norm_value, stopping = context.mean(torch.stack((loss.detach(), norm, stop))).tolist()
        _check_finite(mean_loss, norm_value, step)
        for group in optimizer.param_groups:
            group["lr"] = rates.rate(step)
        optimizer.step()

        seconds = time.perf_counter() - began
        row: dict[str, Any] = {"step": step, "lr": rates.rate(step), "loss": mean_loss}
        row |= {"grad_norm": norm_value, "length": ids_BL.shape[1], "waited": waited / seconds}
        row["tokens_per_second"] = config.step_tokens / seconds
        last = step + 1 == config.steps
        if held_out and (last or (step + 1) % config.evaluate_every == 0):
            row |= validate(module, held_out, device)
            _print(row)
        pending.append(row)
        saving = stopping > 0 or last or (step + 1) % config.checkpoint_every == 0
        if context.rank == 0 and (saving or seconds > 0.5 or len(pending) >= ROWS_AT_ONCE):
            history.write(pending)
            pending = []
        if saving:
            folder = _save(context, module, optimizer, step + 1, config, row) if context.rank == 0 else None
            context.checkpoint(folder, {"step": step + 1})
        if stopping:
            return


def new_module(config: PretrainConfig, device: torch.device) -> WeightedLoss:
    """The model that training begins with, and its loss: the same on every rank.

    Raises UserError when `start_from` names no model of this architecture.
    """
    model = make_model(config.architecture, config.seed)
    if config.start_from is not None:
        load_start(model, start_folder(config.start_from))
    return WeightedLoss(model).to(device)


def compile_layers(module: WeightedLoss, config: PretrainConfig, world: int) -> None:
    """Compile the layers, and try them at each length. If the compiler fails, that is said and they run as they are.

    Layers are compiled one by one, not the model as a whole: they share their code, so each length is compiled once.
    """
    layers = module.model.model.layers
    for layer in layers:
        layer.compile(dynamic=False)
    try:
        for length in sorted({stage.length for stage in config.stages}):
            shape, device = (config.step_tokens // length // world, length), module.model.device
            module(torch.zeros(shape, dtype=torch.long, device=device), torch.ones(shape, device=device)).backward()
    except Exception as error:  # whatever a compiler may raise: the training itself needs none
        print(f"not compiled: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        for layer in layers:
            layer._compiled_call_impl = None
    module.zero_grad(set_to_none=True)


def schedule(config: PretrainConfig) -> LearningRateConfig:
    """Warmup, constant rate and linear decay in steps."""
    warmup, decay = (max(1, round(share * config.steps)) for share in (config.warmup, config.decay))
    stable = max(0, config.steps - warmup - decay)
    return LearningRateConfig(
        warmup=warmup, stable=stable, decay=decay, peak_lr=config.peak_lr, final_lr=min(config.final_lr, config.peak_lr)
    )


def validate(module: WeightedLoss, held_out: Sequence[Group], device: torch.device) -> dict[str, float]:
    """Exact match of every task and length, `exact_<task>_<length>`, and its mean over needle tasks by length."""
    found = {}
    needles: dict[int, list[float]] = {}
    with torch.compiler.set_stance(UNCOMPILED):
        for task, length, samples in held_out:
            if samples:
                found[f"exact_{task}_{length}"] = score = exact_match(module, samples, device)
                if task.startswith("niah"):
                    needles.setdefault(length, []).append(score)
    return found | {f"{EXACT}{length}": sum(scores) / len(scores) for length, scores in needles.items()}


def _optimizer(module: nn.Module, config: PretrainConfig) -> torch.optim.AdamW:
    """AdamW; only matrices decay, and embeddings do not."""
    parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    decayed = [p for name, p in parameters if p.dim() > 1 and "embed" not in name]
    others = [p for name, p in parameters if p.dim() < 2 or "embed" in name]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    fused = parameters[0][1].is_cuda
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=config.betas, fused=fused)


def _resume(folder: Path | None, module: WeightedLoss, optimizer: torch.optim.Optimizer, config: PretrainConfig) -> int:
    """The step to go on with. Raises UserError for a checkpoint of a training with other settings."""
    if folder is None:
        return 0
    before, now = read_trained(folder)["pretrain"], config.model_dump(mode="json", exclude=OPERATIONAL)
    if other := [name for name, value in now.items() if before.get(name) != value]:
        raise UserError(
            f"{folder.parent} holds a training with other settings: {', '.join(other)}. Give this one another --folder."
        )
    device = next(module.parameters()).device
    state = torch.load(folder / STATE, weights_only=True, map_location=device)
    module.model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _save(
    context: TrainContext,
    module: WeightedLoss,
    optimizer: torch.optim.Optimizer,
    step: int,
    config: PretrainConfig,
    metrics: dict[str, Any],
) -> Path:
    """The model in bfloat16 as it would be shipped, and beside it what training needs to go on, in float32."""
    folder = context.scratch()
    state = {"step": step, "model": module.model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / STATE)
    texts = {name: documents_hash(documents_of(name)) for name in config.texts}
    settings = config.model_dump(mode="json", exclude={"start_from"})  # a path that says little elsewhere
    trained = {"step": step, "pretrain": settings, "texts": texts, "metrics": metrics}
    if config.start_from is not None:
        trained[STARTED_FROM] = read_trained(start_folder(config.start_from))
    save_model(module.model, folder, trained)
    return folder


def _check_finite(loss: float, norm: float, step: int) -> None:
    for what, value in (("loss", loss), ("gradient", norm)):
        if not torch.isfinite(torch.tensor(value)):
            raise RuntimeError(f"the {what} is not finite at step {step}; lower pretrain.peak_lr")


def _print(row: dict[str, Any]) -> None:
    exact = {name.removeprefix(EXACT): value for name, value in row.items() if name.startswith(EXACT)}
    scores = "  ".join(f"{length} {value:.2f}" for length, value in exact.items() if length.isdigit())
    speed = f"{row['tokens_per_second']:,.0f} tokens/s"
    print(f"step {row['step'] + 1}  loss {row['loss']:.3f}  {speed}  exact {scores}", flush=True)
