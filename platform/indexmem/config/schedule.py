"""How the learning rate goes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from indexmem.config.section import Section


class ScheduleConfig(Section):
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

    @model_validator(mode="after")
    def _at_least_one_step(self) -> ScheduleConfig:
        if self.steps < 1:
            raise ValueError("warmup + stable + decay must be at least 1 step")
        return self
