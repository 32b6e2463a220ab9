"""Learning rate by optimizer step."""

from __future__ import annotations

from indexmem.config.schema import ScheduleConfig


def learning_rate(config: ScheduleConfig, step: int) -> float:
    """Rate for 0-based `step`.

    Linear warmup to `peak_lr` over `warmup` steps, `stable` steps at it, then (WSD) linear decay to `final_lr`, reached
    at the last step. `constant` has no decay.
    """
    if step < config.warmup:
        return config.peak_lr * (step + 1) / config.warmup
    into_decay = step - config.warmup - config.stable + 1
    if config.kind == "constant" or into_decay <= 0:
        return config.peak_lr
    progress = min(1.0, into_decay / config.decay)
    return config.peak_lr + (config.final_lr - config.peak_lr) * progress
