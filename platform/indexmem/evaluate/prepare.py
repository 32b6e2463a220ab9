"""A context made ready to answer from, cell by cell: evicted after one shared prefill, or before each cell's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from indexmem.config.budget import Budget
from indexmem.config.schema import EvictionConfig
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression
from indexmem.engine.sparse_prefill import sparse_prefill
from indexmem.errors import of_machine
from indexmem.evaluate.work import GridCell
from indexmem.eviction.context import RowCache
from indexmem.eviction.footprint import BudgetError, Footprint, check_bytes, check_kept
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.methods.registry import FULL_CACHE
from indexmem.eviction.selection import whole_tokens
from indexmem.models.backbone import Backbone
from indexmem.models.prompt import BARE, PromptFormat


@dataclass(frozen=True)
class Prepared:
    """One cell's compressed context and what it took."""

    cache: RowCache
    compression: Compression | None  # while decoding
    prefill_seconds: float  # shared by the cells evicted after prefill; a cell's own when it evicts before
    score_seconds: float


@dataclass
class Preparation:
    """The cells of one sample by id: ready, or why they are not."""

    ready: dict[str, Prepared] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """How much a cell may keep of one context, in tokens per KV head."""

    footprint: Footprint
    target: float  # before rounding
    slack: float  # tokens by which the method's own rounding may miss
    in_bytes: bool  # methods of one budget hold equal bytes
    compression: Compression | None

    def check(self, row: RowCache) -> None:
        """Raises BudgetError unless the row keeps what was requested."""
        check_kept(row, self.target, self.slack)
        if self.in_bytes:
            check_bytes(row, self.footprint, self.target, self.slack)


def request(backbone: Backbone, tokens: int, cell: GridCell, method: EvictionMethod, config: EvictionConfig) -> Request:
    """What a cell asks of a context of so many tokens. Raises BudgetError for a budget that the method cannot give."""
    footprint = Footprint.of(method, backbone.geometry, tokens, backbone.model.dtype.itemsize)
    granted = footprint.granted(cell.budget, tokens, config.equal_bytes)
    compression, target = None, min(tokens, granted)
    if cell.budget.kind == "ratio" and method.selection.shares:
        target = whole_tokens(target, tokens)  # heads that share have as much as heads that do not
    if config.decode_budget is not None and cell.method.name != FULL_CACHE:  # the full cache always grows
        compression = Compression(method, _held(footprint, cell.budget, granted, config), config)
        target = min(target, compression.budget)
    slack = method.selection.slack
    return Request(footprint, target, slack, config.equal_bytes or cell.budget.kind == "bytes", compression)


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


def prepare(
    backbone: Backbone,
    context_ids: list[int],
    cells: Sequence[GridCell],
    methods: Mapping[str, EvictionMethod],
    config: EvictionConfig,
    chunk: int | None = None,
    prompt: PromptFormat = BARE,
) -> Preparation:
    """Compress a context for each cell. The full cache never evicts, so it is prefilled as ever in either order.

    `chunk`: tokens that pass a layer at once in the shared prefill; None: all. `prompt`: what `context_ids` begin with
    besides the sample's text, and what follows its question.
    """
    early = [cell for cell in cells if config.when == "before_prefill" and cell.method.name != FULL_CACHE]
    late = [cell for cell in cells if cell not in early]
    done = Preparation()
    if late:
        _after_prefill(done, backbone, context_ids, late, methods, config, chunk, prompt)
    for cell in early:
        _before_prefill(done, backbone, context_ids, cell, methods[cell.method.label], config)
    return done


def _after_prefill(
    done: Preparation,
    backbone: Backbone,
    context_ids: list[int],
    cells: Sequence[GridCell],
    methods: Mapping[str, EvictionMethod],
    config: EvictionConfig,
    chunk: int | None,
    prompt: PromptFormat,
) -> None:
    labels = {cell.method.label for cell in cells}
    used = {label: method for label, method in methods.items() if label in labels}
    filled = prefill(backbone, context_ids, used, config.sinks, chunk, prompt)
    for cell in cells:
        label, method = cell.method.label, methods[cell.method.label]
        try:
            wanted = request(backbone, len(context_ids), cell, method, config)
            rankings = None if label in filled.errors else filled.rankings_HL[label]
            # What keeps everything needs no ranking: contexts for long answers may be too short for one.
            if rankings is None and whole_tokens(wanted.target, len(context_ids)) < len(context_ids):
                done.errors[cell.id] = filled.errors[label]
                continue
            cache = method.compress(filled.context, rankings, wanted.target)
            wanted.check(cache)
        except Exception as error:  # the method cannot give this budget of this context, whatever it says
            if of_machine(error):
                raise  # the caller has a smaller batch to try
            done.errors[cell.id] = error.with_traceback(None)
        else:
            done.ready[cell.id] = Prepared(cache, wanted.compression, filled.seconds, filled.score_seconds[label])


def _before_prefill(
    done: Preparation,
    backbone: Backbone,
    context_ids: list[int],
    cell: GridCell,
    method: EvictionMethod,
    config: EvictionConfig,
) -> None:
    assert isinstance(method, IndexerScores), "plan() refuses methods that need K and V to choose"
    try:
        wanted = request(backbone, len(context_ids), cell, method, config)
        filled = sparse_prefill(backbone, context_ids, method, wanted.target, config.sinks)
        wanted.check(filled.cache)
    except Exception as error:
        if of_machine(error):
            raise  # the caller has a smaller batch to try
        done.errors[cell.id] = error.with_traceback(None)
    else:
        done.ready[cell.id] = Prepared(filled.cache, wanted.compression, filled.seconds, filled.score_seconds)
