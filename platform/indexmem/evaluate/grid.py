"""A spec -> its cells and samples, checked before anything is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample, build_hash
from indexmem.benchmarks.cache import SampleCache
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.budget import NOTHING_EVICTED
from indexmem.config.schema import Experiment, GridConfig, MethodConfig
from indexmem.config.spec import cache_folder, content_hash, run_root
from indexmem.errors import UserError
from indexmem.evaluate.checks import (
    check_bytes_suffice,
    check_layers_alike,
    check_model,
    check_parameters,
)
from indexmem.evaluate.modules import check_modules, modules_for
from indexmem.evaluate.settings import check_budgets, check_eviction
from indexmem.evaluate.version import ENGINE_VERSION
from indexmem.evaluate.work import GridCell, Mask, contexts_of
from indexmem.eviction.footprint import Footprint
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.names import FULL_CACHE, needs_training
from indexmem.eviction.methods.registry import make_method
from indexmem.fetching import noted
from indexmem.models.backbone import inspect, load_tokenizer, model_fingerprint
from indexmem.models.geometry import Geometry
from indexmem.models.thinking import with_thinking
from indexmem.results import other_code
from indexmem.results.gate import check_floor
from indexmem.results.store import RowStore
from indexmem.texts.documents import load_texts

NOT_AT_HAND = "not-at-hand"  # in an outline, instead of hashes

Samples = Mapping[str, tuple[Sample, ...]]  # benchmark -> samples


@dataclass(frozen=True)
class GridPlan:
    """Everything that a grid will do, known before it starts."""

    geometry: Geometry
    model_fingerprint: str
    methods: Mapping[str, MethodConfig]  # label -> config
    cells: tuple[GridCell, ...]
    samples: Samples
    store: RowStore
    checkpoint: str | None  # folder of the indexer that the cells use
    lacking: tuple[str, ...] = ()  # what a dry run did not find here, as sentences

    @property
    def outline(self) -> bool:
        """Whether samples are not built: they stand for themselves, as many as were asked for."""
        return any(cell.benchmark_build == NOT_AT_HAND for cell in self.cells)

    @property
    def partitions(self) -> tuple[str, ...]:
        """Folders of the row store: one for each benchmark build on this model."""
        return tuple(sorted(set(map(self.partition, self.samples))))

    @property
    def cell_ids(self) -> tuple[str, ...]:
        return tuple(cell.id for cell in self.cells)

    @property
    def row_count(self) -> int:
        return sum(len(self.samples[cell.benchmark]) for cell in self.cells)

    @cached_property
    def cells_of(self) -> Mapping[str, tuple[GridCell, ...]]:
        """benchmark -> its cells, in order."""
        cells: dict[str, list[GridCell]] = {benchmark: [] for benchmark in self.samples}
        for cell in self.cells:
            cells[cell.benchmark].append(cell)
        return {benchmark: tuple(group) for benchmark, group in cells.items()}

    @cached_property
    def contexts(self) -> Mapping[str, Sequence[int]]:
        """benchmark -> which context each of its samples asks about; in an outline, each about one of its own."""
        return {
            benchmark: range(len(samples)) if self.outline else contexts_of(samples)
            for benchmark, samples in self.samples.items()
        }

    @property
    def context_rows(self) -> int:
        """Rows of the context with the most questions and cells."""
        asked = {benchmark: max(Counter(numbers).values()) for benchmark, numbers in self.contexts.items()}
        return max(asked[benchmark] * len(cells) for benchmark, cells in self.cells_of.items())

    def partition(self, benchmark: str) -> str:
        """Folder of the row store for this benchmark's rows."""
        return f"{self.model_fingerprint}-{self.cells_of[benchmark][0].benchmark_build}"

    def rows(self) -> pa.Table:
        """The stored rows of its cells; they know of rows that other code left beside them."""
        found = self.store.read(self.partitions, cell_ids=self.cell_ids)
        return other_code.with_note(found, self.store.read(self.partitions, columns=other_code.COLUMNS))

    def missing(self) -> dict[str, Mask]:
        """benchmark -> missing_SC: which of its samples lack a finished row in which of its cells."""
        return {benchmark: np.isnan(score_SC) for benchmark, score_SC in self.scores().items()}

    def prefills(self, missing: Mapping[str, Mask]) -> int:
        """Contexts that some missing row asks about."""
        asked = {name: np.flatnonzero(missing_SC.any(axis=1)).tolist() for name, missing_SC in missing.items()}
        return sum(len({self.contexts[name][i] for i in samples}) for name, samples in asked.items())

    def scores(self) -> dict[str, NDArray[np.float32]]:
        """benchmark -> score_SC of its samples' finished rows in its cells; NaN where there is none."""
        return {
            benchmark: self.store.scores(
                [self.partition(benchmark)],
                [cell.id for cell in self.cells_of[benchmark]],
                [sample.id for sample in samples],
                [sample.repeat for sample in samples],
            ).T
            for benchmark, samples in self.samples.items()
        }


def plan(experiment: Experiment, *, require_checkpoint: bool = True) -> GridPlan:
    """Check the spec and lay out its cells and samples; samples that are not cached in the run root are made.

    Raises UserError for an unknown method, parameter or benchmark, eviction settings that do not fit together, a prompt
    longer than the model's context, a budget in bytes below what a method holds in any case, a missing or unfitting
    checkpoint, a missing model, a haystack without text, or a floor for the full cache that nothing can be held to.
    With `require_checkpoint=False` a spec whose indexer is not trained yet can still be planned. Within
    `nothing_fetched` (dry run) what is not on this machine is in `GridPlan.lacking`; without its model, tokenizer or
    texts a plan is an outline: cells and numbers, no samples.
    """
    grid = experiment.grid
    if not grid.methods:
        raise UserError("grid.methods is empty. Example: grid.methods='[full, indexer, snapkv]'")
    if not grid.benchmarks:
        raise UserError("grid.benchmarks is empty. Example: grid.benchmarks='[niah_single_1]'")
    check_eviction(experiment.eviction, experiment.indexer, grid.methods)
    check_budgets(experiment.eviction, grid)
    check_modules(experiment, require=require_checkpoint)
    if grid.fidelity and not any(method.name == FULL_CACHE for method in grid.methods):
        raise UserError("grid.fidelity compares with the full cache. Add full to grid.methods.")
    benchmarks = make_benchmarks(grid.benchmarks)
    if not grid.fidelity and any(benchmark.by_fidelity for benchmark in benchmarks):
        raise UserError("A benchmark is scored by how a cell agrees with the full cache. Set grid.fidelity=true.")
    check_floor(grid, [benchmark.name for benchmark in benchmarks])
    geometry = inspect(experiment.model)
    check_model(experiment.eviction, geometry)
    if grid.length > geometry.max_positions:
        raise UserError(
            f"grid.length={grid.length} is more than the model's context of {geometry.max_positions} tokens. "
            f"Use grid.length={geometry.max_positions} or less."
        )
    lacking: list[str] = []
    checkpoint, model, built = None, NOT_AT_HAND, None
    with noted(lacking):
        checkpoint = modules_for(experiment, require=require_checkpoint)
    context = MethodContext.of(experiment, geometry, checkpoint)
    origins = {}
    for config in grid.methods:
        method = None
        if checkpoint is not None or not needs_training(config):
            with noted(lacking):
                method = make_method(config, context)
        check_parameters(config, context)
        origins[config.label] = (method.checkpoint, method.code) if method else ("untrained", "")
        if method and method.min_context > grid.length // 2:
            raise UserError(
                f"Method '{config.label}' needs contexts of at least {method.min_context} tokens; "
                f"grid.length={grid.length} is too short for it."
            )
        if method and config.name != FULL_CACHE:
            footprint = Footprint.of(method, geometry, grid.length, experiment.model.element_size)
            check_bytes_suffice(config, footprint, grid, experiment.eviction)
            check_layers_alike(config, method, geometry, grid, experiment.eviction.equal_bytes)

    with noted(lacking):
        model = model_fingerprint(experiment.model)
        built = _samples(benchmarks, experiment)
    builds, samples = built or _placeholders(benchmarks, grid)
    return GridPlan(
        geometry=geometry,
        model_fingerprint=model,
        methods={config.label: config for config in grid.methods},
        cells=tuple(_cells(experiment, model, builds, origins)),
        samples={name: repeated(_asked(once, grid), grid.decoding.repeats) for name, once in samples.items()},
        store=RowStore(run_root(experiment) / "results"),
        checkpoint=checkpoint,
        lacking=tuple(lacking),
    )


def _cells(
    experiment: Experiment, model: str, builds: Mapping[str, str], origins: Mapping[str, tuple[str, str]]
) -> list[GridCell]:
    """`origins`: label -> the method's checkpoint and code."""
    cells = []
    for benchmark, build in builds.items():
        for method in experiment.grid.methods:
            for budget in (NOTHING_EVICTED,) if method.name == FULL_CACHE else experiment.grid.requested:
                checkpoint, code = origins[method.label]
                identity = {
                    "engine": ENGINE_VERSION,
                    "model": model,
                    "method": method.identity,
                    "checkpoint": checkpoint,
                    "eviction": experiment.eviction.identity,
                    "build": build,
                }
                identity |= budget.identity | experiment.grid.decoding.identity
                identity |= {"fidelity": True} if experiment.grid.fidelity else {}
                identity |= {"question_aware": True} if experiment.grid.question_aware else {}
                identity |= {"code": code} if code else {}  # none of ours: ENGINE_VERSION stands for that
                cells.append(GridCell(content_hash(identity), method, budget, benchmark, build, checkpoint, code))
    return cells


def _asked(samples: Sequence[Sample], grid: GridConfig) -> Sequence[Sample]:
    """As the grid's protocol has them asked. Raises UserError for a conversation whose questions cannot all be seen."""
    if not grid.question_aware:
        return samples
    for sample in samples:
        if sample.turns:
            raise UserError(
                f"grid.protocol=question_aware: {sample.id} is a conversation, and what evicts once, before the first "
                "answer, cannot see the questions after it. Use grid.protocol=agnostic, or ask single questions "
                f"(without 'turns' in the settings or rows of {sample.benchmark})."
            )
    return [replace(sample, question_aware=True) for sample in samples]


def repeated(samples: Sequence[Sample], repeats: int) -> tuple[Sample, ...]:
    """All samples once, then all again: an interrupted grid has as many repeats of one as of another."""
    return tuple(replace(sample, repeat=repeat) for repeat in range(repeats) for sample in samples)


def _samples(benchmarks: Sequence[Benchmark], experiment: Experiment) -> tuple[dict[str, str], Samples]:
    """benchmark -> build hash, and benchmark -> samples."""
    grid = experiment.grid
    haystack = "\n\n".join(load_texts([grid.haystack]))
    tokenizer = with_thinking(load_tokenizer(experiment.model), grid.decoding.thinking)
    build = BuildContext(tokenizer, grid.length, grid.seed, haystack, grid.max_new_tokens)
    builds = {benchmark.name: build_hash(benchmark, build) for benchmark in benchmarks}
    cache = SampleCache(cache_folder() / "samples")
    return builds, cache.samples(benchmarks, builds, grid.samples, build)


def _placeholders(benchmarks: Sequence[Benchmark], grid: GridConfig) -> tuple[dict[str, str], Samples]:
    """Stand-ins for `_samples` where what they are made of is not here: samples without content, to be counted."""

    def count(benchmark: Benchmark) -> int:
        size = None
        with noted([]):  # that of a file that is not here
            size = benchmark.size
        return min(grid.samples, size or grid.samples)

    samples = {
        b.name: tuple(
            Sample(f"{b.name}/{index}", b.name, "", "", "", ("",), grid.max_new_tokens or b.max_new_tokens)
            for index in range(count(b))
        )
        for b in benchmarks
    }
    return dict.fromkeys(samples, NOT_AT_HAND), samples
