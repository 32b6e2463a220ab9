"""The section `pretrain` of a spec: a small language model that is trained from nothing on generated tasks.

indexmem reads specs that have this section, but does not look into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from indexmem.config.load import load_as
from indexmem.config.schema import Experiment
from indexmem.config.section import Section

Share = Annotated[float, Field(ge=0, le=1)]

ROUNDING = 1e-6


class ArchitectureConfig(Section):
    """A Llama with tied embeddings; its vocabulary is that of the built-in tokenizer."""

    hidden: PositiveInt = 256
    layers: PositiveInt = 6
    heads: PositiveInt = 8
    kv_heads: PositiveInt = 4
    intermediate: PositiveInt = 768
    max_positions: PositiveInt = 8192
    rope_theta: PositiveFloat = 100_000.0

    @model_validator(mode="after")
    def _divisible(self) -> ArchitectureConfig:
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden={self.hidden} must be a multiple of heads={self.heads}, and that of kv_heads={self.kv_heads}"
            )
        return self


class StageConfig(Section):
    """A part of the training with sequences of one length."""

    length: PositiveInt = Field(description="tokens of a sequence")
    share: Share = Field(description="of all steps")
    dense: Share = Field(
        0.2, description="share of the documents without meaning, in which nearly all can be looked up"
    )


class PretrainConfig(Section):
    """What is trained on, how long, and how."""

    gone: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "workers": "Start so many processes: torchrun --nproc-per-node N jobs/pretrain_testbed.py SPEC",
            "use_gpu": "Leave it out: a GPU is used where there is one.",
            "max_failures": "Leave it out: the same command goes on from the last checkpoint.",
        }
    )
    architecture: ArchitectureConfig = ArchitectureConfig()
    start_from: str | None = Field(
        None,
        description="model whose weights training begins with: a pre-training's folder, or `testbed`; null: random",
    )
    texts: tuple[str, ...] = Field(("essays-train", "king-james"), description="haystacks and plain text")
    heldout: str = Field("essays-heldout", description="haystack of the validation samples")
    mixture: dict[str, PositiveFloat] = Field(
        default_factory=lambda: {"niah_multikey_1": 1.0}, description="weight of each task, and of plain `text`"
    )
    stages: tuple[StageConfig, ...] = (StageConfig(length=256, share=1.0),)
    steps: PositiveInt = 4000
    step_tokens: PositiveInt = Field(65536, description="tokens of one step of all ranks")
    warmup: Share = Field(0.02, description="share of the steps in which the learning rate rises")
    decay: Share = Field(0.4, description="share of the steps in which it falls, at the end")
    peak_lr: PositiveFloat = 2e-3
    final_lr: PositiveFloat = 2e-5
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.1
    grad_clip: PositiveFloat = 1.0
    loaders: NonNegativeInt = Field(0, description="processes of each rank that make its batches")
    compile: bool = Field(True, description="compile the layers where a GPU is there")
    checkpoint_every: PositiveInt = 500
    keep_checkpoints: PositiveInt = 2
    evaluate_every: PositiveInt = Field(500, description="steps between validations")
    evaluate_samples: NonNegativeInt = Field(16, description="of each task and length; 0: no validation")
    evaluate_lengths: tuple[PositiveInt, ...] = (1024, 2048, 4096)
    seed: int = 0

    def stage(self, step: int) -> StageConfig:
        """The stage of 0-based `step`."""
        ends = accumulate(stage.share for stage in self.stages)
        return next((stage for stage, end in zip(self.stages, ends) if step < end * self.steps), self.stages[-1])

    @model_validator(mode="after")
    def _stages_are_whole(self) -> PretrainConfig:
        if abs(sum(stage.share for stage in self.stages) - 1) > ROUNDING:
            raise ValueError(f"the shares of stages sum to {sum(stage.share for stage in self.stages):g}, not to 1")
        if self.warmup + self.decay > 1:
            raise ValueError(f"warmup={self.warmup} and decay={self.decay} are shares that sum to more than 1")
        longest = max(stage.length for stage in self.stages)
        if longest > self.architecture.max_positions:
            raise ValueError(f"a stage of {longest} tokens exceeds max_positions={self.architecture.max_positions}")
        for stage in self.stages:
            if self.step_tokens % stage.length:
                raise ValueError(
                    f"step_tokens={self.step_tokens} must be a multiple of the length {stage.length} of each stage"
                )
        return self


class PretrainingSpec(Experiment):
    """A spec whose section `pretrain` is checked like every other one."""

    pretrain: PretrainConfig = PretrainConfig()  # type: ignore[assignment]  # any mapping for indexmem


def load_pretraining(path: str | Path, overrides: Sequence[str] = ()) -> PretrainingSpec:
    """Read a spec. Raises UserError like `indexmem.config.load.load`, for the section `pretrain` as well."""
    return load_as(PretrainingSpec, path, overrides)
