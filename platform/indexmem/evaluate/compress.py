"""A context compressed for each of its cells: evicted after one shared prefill, or before each cell's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from indexmem.config.budget import Budget
from indexmem.config.schema import EvictionConfig
from indexmem.engine.prefill import Prefill, prefill
from indexmem.engine.recompress import Compression
from indexmem.engine.sparse_prefill import sparse_prefill
from indexmem.errors import UserError, detached, of_machine
from indexmem.evaluate.work import GridCell
from indexmem.eviction.context import RowCache
from indexmem.eviction.footprint import BudgetError, Footprint, check_bytes, check_kept, target_of
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.methods.names import FULL_CACHE
from indexmem.eviction.selection import whole_tokens
from indexmem.models.backbone import Backbone
from indexmem.models.prompt import BARE, PromptFormat


@dataclass(frozen=True)
class CompressedCell:
    """One cell's compressed context and what it took."""

    cache: RowCache
    compression: Compression | None  # while decoding
    prefill_seconds: float  # shared by the cells evicted after prefill; a cell's own when it evicts before
    score_seconds: float


@dataclass
class CompressedCells:
    """The cells of one sample by id: ready to answer from, or why they are not."""

    ready: dict[str, CompressedCell] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)

    def attempt(self, cell: GridCell, compress: Callable[[], CompressedCell]) -> None:
        """Compress for a cell. An error of the method fails this cell alone; an error of the machine is raised, since
        less at once, or another machine, may succeed."""
        try:
            self.ready[cell.id] = compress()
        except Exception as error:
            if of_machine(error):
                raise
            self.errors[cell.id] = detached(error)


def compress_cells(
    backbone: Backbone,
    context_ids: list[int],
    cells: Sequence[GridCell],
    methods: Mapping[str, EvictionMethod],
    config: EvictionConfig,
    chunk: int | None = None,
    prompt: PromptFormat = BARE,
) -> CompressedCells:
    """Compress a context for each cell. The full cache never evicts, so it always comes from the shared prefill.

    `chunk`: tokens that pass a layer at once in the shared prefill; None: all. `prompt`: what `context_ids` begin with
    besides the sample's text, and what follows its question.
    """
    early = [cell for cell in cells if config.when == "before_prefill" and cell.method.name != FULL_CACHE]
    late = [cell for cell in cells if cell not in early]
    done = CompressedCells()
    if late:
        labels = {cell.method.label for cell in late}
        used = {label: method for label, method in methods.items() if label in labels}
        filled = prefill(backbone, context_ids, used, config.sinks, chunk, prompt)
        for cell in late:
            method = methods[cell.method.label]
            done.attempt(cell, partial(_after_prefill, filled, backbone, len(context_ids), cell, method, config))
    for cell in early:
        method = methods[cell.method.label]
        done.attempt(cell, partial(_before_prefill, backbone, context_ids, cell, method, config))
    return done


def _after_prefill(
    filled: Prefill, backbone: Backbone, tokens: int, cell: GridCell, method: EvictionMethod, config: EvictionConfig
) -> CompressedCell:
    _check_code(cell, method)
    label = cell.method.label
    limit = CellLimit.of(backbone, tokens, cell, method, config)
    rankings = None if label in filled.errors else filled.rankings_HL[label]
    # What keeps everything needs no ranking: contexts for long answers may be too short for one.
    if rankings is None and whole_tokens(limit.target, tokens) < tokens:
        raise filled.errors[label]
    cache = limit.checked(method.compress(filled.context, rankings, limit.target))
    return CompressedCell(cache, limit.compression, filled.seconds, filled.score_seconds[label])


def _before_prefill(
    backbone: Backbone, context_ids: list[int], cell: GridCell, method: EvictionMethod, config: EvictionConfig
) -> CompressedCell:
    assert isinstance(method, IndexerScores), "plan() refuses methods that need K and V to choose"
    limit = CellLimit.of(backbone, len(context_ids), cell, method, config)
    filled = sparse_prefill(backbone, context_ids, method, limit.target, config.sinks)
    return CompressedCell(limit.checked(filled.cache), limit.compression, filled.seconds, filled.score_seconds)


def _check_code(cell: GridCell, method: EvictionMethod) -> None:
    """Raises UserError where a worker imported other code than the plan, which an edit in between causes."""
    if method.code != cell.code:
        raise UserError(
            f"The source of '{cell.method.label}' changed while the grid ran. Start the same command again."
        )


@dataclass(frozen=True)
class CellLimit:
    """How much a cell may keep of one context, in tokens per KV head."""

    footprint: Footprint
    target: float  # before rounding
    slack: float  # tokens by which the method's own rounding may miss
    step: int  # tokens that come and go together
    in_bytes: bool  # methods of one budget hold equal bytes
    compression: Compression | None

    @classmethod
    def of(
        cls, backbone: Backbone, tokens: int, cell: GridCell, method: EvictionMethod, config: EvictionConfig
    ) -> CellLimit:
        """For a context of so many tokens. Raises BudgetError for a budget that the method cannot give."""
        footprint = Footprint.of(method, backbone.geometry, tokens, backbone.model.dtype.itemsize)
        granted = footprint.granted(cell.budget, tokens, config.equal_bytes)
        compression, target = None, target_of(method, cell.budget, tokens, granted)
        if config.decode_budget is not None and cell.method.name != FULL_CACHE:  # the full cache always grows
            compression = Compression(method, _held(footprint, cell.budget, granted, config), config)
            target = min(target, compression.budget)
        in_bytes = config.equal_bytes or cell.budget.kind == "bytes"
        return cls(footprint, target, method.selection.slack, method.selection.step, in_bytes, compression)

    def checked(self, row: RowCache) -> RowCache:
        """`row`. Raises BudgetError unless it keeps what was asked for."""
        check_kept(row, self.target, self.slack, self.step)
        if self.in_bytes:
            check_bytes(row, self.footprint, self.target, self.slack, self.step)
        return row


def _held(footprint: Footprint, budget: Budget, granted: float, config: EvictionConfig) -> int:
    """B_max: tokens per KV head that a cell holds while decoding.

    A ratio's is what it leaves of the context, and the recent window for what was generated since.
    """
    if isinstance(config.decode_budget, int):
        held = footprint.granted(Budget("tokens", config.decode_budget), 0, config.equal_bytes)
    else:
        held = granted + config.decode_window if budget.kind == "ratio" else granted
    if held <= config.always_kept:
        raise BudgetError(f"{held:.0f} tokens while decoding are no more than always stay ({config.always_kept})")
    return int(held)
