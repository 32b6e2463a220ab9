"""The learning rate of each optimizer step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from indexmem.config.section import Section


class LearningRateConfig(Section):
    """Warmup-stable-decay (WSD) or constant learning rate, in optimizer steps."""

    kind: Literal["wsd", "constant"] = "wsd"
    warmup: Annotated[int, Field(ge=0)] = 100
    stable: Annotated[int, Field(ge=0)] = 2000
    decay: Annotated[int, Field(ge=0)] = 2000
    peak_lr: Annotated[float, Field(gt=0)] = 1e-3
    final_lr: Annotated[float, Field(gt=0)] = 7.5e-6

    @property
    def steps(self) -> int:
        return self.warmup + self.stable + (self.decay if self.kind == "wsd" else 0)

    def rate(self, step: int) -> float:
        """Rate of 0-based `step`.

        Linear warmup to `peak_lr` over `warmup` steps, `stable` steps at it, then (WSD) linear decay to `final_lr`,
        reached at the last step. `constant` has no decay.
        """
        if step < self.warmup:
            return self.peak_lr * (step + 1) / self.warmup
        into_decay = step - self.warmup - self.stable + 1
        if self.kind == "constant" or into_decay <= 0:
            return self.peak_lr
        progress = min(1.0, into_decay / self.decay)
        return self.peak_lr + (self.final_lr - self.peak_lr) * progress

    def in_steps(self, steps: int) -> dict[str, int]:
        """Stages in the same proportions that take `steps` steps together, as settings of this section."""
        warmup = steps * self.warmup // self.steps
        decay = steps * self.decay // self.steps if self.kind == "wsd" else 0
        return {"warmup": warmup, "stable": steps - warmup - decay, "decay": decay}

    @model_validator(mode="after")
    def _at_least_one_step(self) -> LearningRateConfig:
        if self.steps < 1:
            raise ValueError("warmup + stable + decay must be at least 1 step")
        return self
