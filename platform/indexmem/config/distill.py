"""How modules are distilled: texts, batches, workers, schedule, checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from indexmem.config.learning_rate import LearningRateConfig
from indexmem.config.section import Section
from indexmem.config.text import MIXTURE, Texts

Ratio = Annotated[float, Field(ge=0.0, lt=1.0, description="fraction of the KV cache that is evicted, in [0, 1)")]


class DistillConfig(Section):
    texts: Texts = MIXTURE
    length: PositiveInt = Field(2048, description="tokens per training sequence")
    batch_size: PositiveInt = Field(1, description="sequences per worker and step")
    packing: bool = Field(False, description="fill a row of `batch_size` x `length` tokens with windows, no padding")
    accumulate: PositiveInt = Field(1, description="micro-batches of `batch_size` per worker and step")
    workers: PositiveInt = Field(2, description="DDP processes; one GPU each when `use_gpu`")
    min_workers: PositiveInt | None = Field(
        None, description="start with so few while there is no room for more; a step still sees as many sequences"
    )
    use_gpu: bool = False
    schedule: LearningRateConfig = LearningRateConfig()
    weight_decay: NonNegativeFloat = 0.0
    grad_clip: PositiveFloat = 1.0
    checkpoint_every: PositiveInt = Field(
        50, description="steps between checkpoints; a killed run repeats at most these"
    )
    keep_checkpoints: PositiveInt = 2
    checkpoint_storage: str | None = Field(
        None, description="folder or URI (s3://, gs://, ...) for checkpoints; default: the run's own folder"
    )
    max_failures: NonNegativeInt = Field(3, description="worker-group restarts before the run fails")
    start_from: str | None = Field(
        None,
        description="folder or shipped name (testbed-modules, smollm2-modules) of modules to go on training",
    )
    modules: tuple[Literal["indexer", "memory", "locret"], ...] = Field(("indexer",), description="what is trained")
    locret_hidden: PositiveInt = Field(1024, description="hidden size of Locret's heads")
    joint_from: NonNegativeInt = Field(0, description="step at which memories join (second stage)")
    score_products: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="on GPUs, of the search for each key's best query; its score is computed in float32"
    )
    query_tokens: PositiveInt = Field(128, description="tokens at a window's end that query what was evicted before")
    evict_ratios: tuple[Ratio, Ratio] = Field((0.5, 0.9), description="each step draws its ratio from this range")
    seed: int = 0

    @property
    def sequences_per_step(self) -> int:
        return self.batch_size * self.accumulate * self.workers

    @model_validator(mode="after")
    def _elastic(self) -> DistillConfig:
        if self.min_workers is not None and self.min_workers > self.workers:
            raise ValueError(f"min_workers={self.min_workers} is more than workers={self.workers}")
        return self
