"""The experiment spec: frozen, validated once, one dotted name for each setting.

`distill.schedule.peak_lr` is at the same time the YAML path, the command-line override, the sweep axis, the MLflow
parameter and the results column. Nothing here imports torch or Ray, so `--help` and `--dry-run` stay fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    model_validator,
)

from indexmem.config.budget import Budget
from indexmem.config.decoding import DecodingConfig
from indexmem.config.distill import DistillConfig, Ratio
from indexmem.config.modules import Across, IndexerConfig, MemoryConfig, TargetConfig
from indexmem.config.naming import RunName
from indexmem.config.reference import without_folders
from indexmem.config.section import Section
from indexmem.config.sweep import SweepConfig

BudgetSetting = Annotated[Budget, PlainValidator(Budget.parse), PlainSerializer(str)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


class ModelConfig(Section):
    """The frozen backbone."""

    id: str = Field("smollm2-135m-instruct", description="a built-in asset, a local folder, or a hub id")
    revision: str | None = Field(None, description="hub revision; recorded with every row")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    trust_remote_code: bool = False

    @property
    def element_size(self) -> int:
        """Bytes of a number in K and V."""
        return 4 if self.dtype == "float32" else 2


class EvictionConfig(Section):
    """Rules that every method obeys (method contract, section 6)."""

    gone: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"extra_tokens": "Use eviction.equal_bytes=true: methods then hold equal bytes at a budget, in any dtype."}
    )
    sinks: NonNegativeInt = Field(4, description="leading tokens that are always kept")
    equal_bytes: bool = Field(
        False,
        description="a budget in tokens or as a ratio stands for the bytes of their K and V; what else a method holds "
        "(indexer keys, a memory's state) comes out of these",
    )
    granularity: Across = Field(
        "head", description="what holds one set of tokens: each KV head, each layer, or the whole model"
    )
    block: PositiveInt = Field(
        1, description="consecutive tokens that stay or leave together, as in the pages of a paged cache"
    )
    when: Literal["after_prefill", "before_prefill"] = Field(
        "after_prefill", description="before_prefill: only kept K and V are computed and attended to (indexer only)"
    )
    decode_budget: PositiveInt | Literal["budget"] | None = Field(
        None,
        description="B_max: compress to so many tokens while decoding; 'budget': to what each cell's budget grants, a "
        "number of tokens as it is, a ratio's (1 - r) L with decode_window on top",
    )
    decode_every: PositiveInt = Field(128, description="tau: generated tokens between compressions")
    decode_window: NonNegativeInt = Field(128, description="most recent tokens that always stay")

    @property
    def always_kept(self) -> int:
        """Tokens that no compression while decoding takes: B_max has to be larger.

        Whole blocks stay of them: those that begin before the window reach back by a block less one token at most.
        """
        sinks = -(-self.sinks // self.block) * self.block
        return max(sinks + self.decode_window + (self.block - 1) * bool(self.decode_window), self.block - 1)

    @property
    def identity(self) -> dict[str, Any]:
        """What it adds to a cell's identity: settings that are not at their defaults, so that one that comes later
        renames no row. A changed default needs a new `evaluate.version.ENGINE_VERSION`.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


class Named(Section):
    """A registered name, or a reference to somebody's own code, and, optionally, parameters of what has that name."""

    name: str
    params: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def identity(self) -> list[Any]:
        """Name and parameters; files without their folders, since what they hold tells them apart."""
        return [without_folders(self.name), without_folders(self.params)]

    @property
    def label(self) -> str:
        name, params = self.identity
        settings = ",".join(f"{k}={v}" for k, v in sorted(params.items()))
        return f"{name}({settings})" if settings else str(name)


class MethodConfig(Named):
    """One compared method, for example `snapkv` or `{name: snapkv, params: {window_size: 32}}`."""


class BenchmarkConfig(Named):
    """One benchmark or suite, for example `niah_single_1` or `{name: jsonl, params: {path: mine.jsonl}}`."""


SELECTION_SEED = 1_000_003  # far from the seeds that people count up
MEAN = "mean"  # all benchmarks of a grid: stands where a benchmark's name may stand


class GridConfig(Section):
    """Which (method, budget, benchmark) cells are evaluated, and on how many samples."""

    methods: tuple[MethodConfig, ...] = ()
    ratios: tuple[Ratio, ...] = Field((0.25, 0.5, 0.75, 0.9), description="evicted shares; [] for budgets alone")
    budgets: tuple[BudgetSetting, ...] = Field(
        (), description="more budgets: 0.5 (evicted), '512 tokens' (kept per head), '8 MiB' (all that a cell holds)"
    )
    benchmarks: tuple[BenchmarkConfig, ...] = (
        BenchmarkConfig(name="niah_single_1"),
        BenchmarkConfig(name="niah_single_2"),
        BenchmarkConfig(name="niah_multikey_1"),
    )
    length: PositiveInt = Field(4096, description="tokens of prompt plus generation allowance")
    samples: PositiveInt = 20
    seed: int = 42
    haystack: str = Field("essays-heldout", description="text for essay haystacks: a built-in text, a file or a folder")
    max_new_tokens: PositiveInt | None = Field(None, description="override the benchmark's own generation limit")
    decoding: DecodingConfig = DecodingConfig()
    protocol: Literal["agnostic", "question_aware"] = Field(
        "agnostic", description="question_aware: the cache is compressed with the question in it, question by question"
    )
    fidelity: bool = Field(
        False, description="measure how far each cell's token probabilities are from the full cache's"
    )
    full_cache_floor: Fraction | dict[str, Fraction] | None = Field(
        None, description="mean score in (0, 1] below which methods are not ranked: of every benchmark, or by its name"
    )
    actors: PositiveInt | None = Field(
        None, description="evaluation actors at most; default: as many as the cluster has room for at the time"
    )
    cpus_per_actor: PositiveInt = 1
    gpus_per_actor: NonNegativeFloat = 0.0
    batch_bytes: PositiveInt | None = Field(
        None,
        description="memory for one decode batch's KV cache, in bytes; default: 2 GiB on CPUs, of a GPU what is free",
    )
    prefill_chunk: PositiveInt | None = Field(
        None,
        description="tokens that pass a layer at once in prefills of long contexts; default: all",
    )
    samples_per_batch: PositiveInt | None = Field(
        None, description="contexts evaluated together by an actor, with all questions; default: 1 on CPUs, 8 on GPUs"
    )
    max_attempts: PositiveInt = Field(
        3, description="workers that may die on a unit of work, then on each of its samples, before rows fail"
    )
    drain_seconds: NonNegativeFloat = Field(
        30.0, description="at SIGTERM or Ctrl-C: how long to wait for what is being evaluated"
    )

    @property
    def question_aware(self) -> bool:
        return self.protocol == "question_aware"

    @property
    def unit_samples(self) -> int:
        """Samples in a unit of work."""
        return self.samples_per_batch or (8 if self.gpus_per_actor else 1)

    @property
    def requested(self) -> tuple[Budget, ...]:
        """All budgets, those of `ratios` first."""
        return (*map(Budget.of_ratio, self.ratios), *self.budgets)

    @model_validator(mode="after")
    def _no_duplicates(self) -> GridConfig:
        listed = {
            "ratios": list(map(str, self.ratios)),
            "budgets": list(map(str, self.budgets)),
            "benchmarks": [benchmark.label for benchmark in self.benchmarks],
        }
        for field, values in listed.items():
            if len(set(values)) != len(values):
                raise ValueError(f"{field} lists a value twice: [{', '.join(values)}]")
        twice = [str(budget) for budget in self.budgets if budget.ratio in self.ratios]
        if twice:
            raise ValueError(f"ratios and budgets both list {', '.join(twice)}")
        labels = [m.label for m in self.methods]
        if len(set(labels)) != len(labels):
            raise ValueError(f"methods lists a method twice with the same parameters: {labels}")
        return self


class TrackingConfig(Section):
    enabled: bool = True
    uri: str | None = Field(None, description="MLflow store; default: MLFLOW_TRACKING_URI, else SQLite in the run root")
    experiment: str = Field(
        "indexmem", description="prefix of the MLflow experiments (<prefix>/distill, <prefix>/eval)"
    )


class RunConfig(Section):
    root: str | None = Field(None, description="folder of all results; default: $INDEXMEM_HOME/runs")
    wait_for_nodes: NonNegativeFloat = Field(
        0.0, description="seconds to wait for nodes that an autoscaler starts; 0: what does not fit is an error"
    )


class Experiment(Section):
    """One spec file: what to distil, what to evaluate, where it goes."""

    name: RunName = "experiment"
    model: ModelConfig = ModelConfig()
    indexer: IndexerConfig = IndexerConfig()
    memory: MemoryConfig = MemoryConfig()
    target: TargetConfig = TargetConfig()
    distill: DistillConfig = DistillConfig()
    eviction: EvictionConfig = EvictionConfig()
    grid: GridConfig = GridConfig()
    sweep: SweepConfig = SweepConfig()
    pretrain: dict[str, JsonValue] = Field(default_factory=dict, description="for indexmem_testbed, which checks it")
    tracking: TrackingConfig = TrackingConfig()
    run: RunConfig = RunConfig()

    @property
    def selecting(self) -> Experiment:
        """This experiment on other samples, those that a sweep's trials are compared by: the winner is reported on
        samples that it was not chosen by."""
        chosen = self.sweep.samples_seed
        seed = SELECTION_SEED + self.grid.seed if chosen is None else chosen
        return self.model_copy(update={"grid": self.grid.model_copy(update={"seed": seed})})
