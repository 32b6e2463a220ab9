"""What a grid is refused for by its spec alone: settings without effect, impossible budgets, methods that do not fit.

Imports no method: whoever sends a grid to a cluster need not have torch loaded to be told of a mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from indexmem.config.modules import IndexerConfig, module_name
from indexmem.config.schema import EvictionConfig, Experiment, GridConfig, MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.methods.names import DECODING, FULL_CACHE, base_name, is_shipped, trained_modules

if TYPE_CHECKING:
    from indexmem.eviction.methods.factories import MethodEntry

DECODE_DETAILS = ("decode_every", "decode_window")
SPARSE = ("indexer",)  # methods that can choose tokens before their K and V exist


def check_methods(methods: tuple[MethodConfig, ...]) -> None:
    """Raises UserError for methods that do not exist."""
    for config in methods:
        if not is_shipped(config):
            _entry_of(config)


def check_eviction(config: EvictionConfig, indexer: IndexerConfig, methods: tuple[MethodConfig, ...]) -> None:
    """Raises UserError for settings without effect, budgets that cannot hold what always stays, unfit methods.

    The full cache fits every setting: it is the reference, and nothing compresses it.
    """
    evicting = [method for method in methods if method.name != FULL_CACHE]
    if not evicting and config.model_dump(exclude={"sinks"}) != EvictionConfig().model_dump(exclude={"sinks"}):
        raise UserError(f"eviction settings have no effect on '{FULL_CACHE}' alone. Add a method, or leave them out.")
    _check_decoding(config, evicting)
    _check_order(config, evicting)
    _check_sharing(config, indexer, evicting)


def check_budgets(config: EvictionConfig, grid: GridConfig) -> None:
    """Raises UserError when there is no budget to evict by, or two ways to equal bytes at once."""
    evicting = [method for method in grid.methods if method.name != FULL_CACHE]
    if evicting and not grid.requested:
        raise UserError("grid.ratios and grid.budgets are empty. Example: grid.budgets='[0.5, 512 tokens, 8 MiB]'")
    if config.decode_budget == "budget":
        sizes = [str(budget) for budget in grid.requested if budget.kind == "bytes"]
        if sizes:
            raise UserError(
                f"eviction.decode_budget=budget takes B_max from each cell's budget, and {sizes[0]} is no number of "
                "tokens. Use ratios or tokens. Example: grid.ratios='[]' grid.budgets='[512 tokens, 1024 tokens]'"
            )
        for budget in grid.requested:
            if budget.kind == "tokens":
                _check_room(config, int(budget.amount), f"grid.budgets: {budget}")
    if config.equal_bytes and all(budget.kind == "bytes" for budget in grid.requested):
        raise UserError(
            "eviction.equal_bytes has no effect on budgets in bytes, which make methods equal by themselves. "
            "Leave it out."
        )


def _check_sharing(config: EvictionConfig, indexer: IndexerConfig, methods: list[MethodConfig]) -> None:
    floor = indexer.floor
    if indexer.share == "head" and floor != IndexerConfig.model_fields["floor"].default:
        raise UserError(
            f"indexer.floor={floor} has no effect with indexer.share=head: no heads share a budget. "
            "Use indexer.share=layer or indexer.share=model, or leave indexer.floor out."
        )
    pointless = {"head": (), "layer": ("layer",), "model": ("layer", "model")}[config.granularity]
    of_sets = [m.label for m in methods if _said_share(m, indexer) in pointless]
    if of_sets:
        raise UserError(
            f"eviction.granularity={config.granularity}: {', '.join(of_sets)} shares a budget among heads that "
            "hold one set of tokens, so there is nothing to share out. Leave `share` out, or use a finer granularity."
        )
    if config.when == "before_prefill" and config.granularity == "model":
        raise UserError(
            "eviction.when=before_prefill: a layer's tokens are chosen before later layers exist, so layers cannot "
            "hold one set. Use eviction.granularity=layer, or eviction.when=after_prefill."
        )
    if config.when == "before_prefill":
        shared = [method.label for method in methods if method.params.get("share", indexer.share) == "model"]
        if shared:
            raise UserError(
                f"eviction.when=before_prefill: {', '.join(shared)} shares a budget between all layers (share=model), "
                "and a layer's tokens are chosen before later layers exist. Use indexer.share=layer, or "
                "eviction.when=after_prefill."
            )


def _said_share(method: MethodConfig, indexer: IndexerConfig) -> Any:
    """Which heads the spec says share a budget, if it says so."""
    return method.params.get("share", indexer.share if base_name(method) == "indexer" else None)


def _check_decoding(config: EvictionConfig, methods: list[MethodConfig]) -> None:
    if config.decode_budget is None:
        for name in DECODE_DETAILS:
            if getattr(config, name) != EvictionConfig.model_fields[name].default:
                raise UserError(
                    f"eviction.{name}={getattr(config, name)} has no effect without a budget. "
                    "Set eviction.decode_budget=TOKENS, or leave it out."
                )
        return
    if config.decode_budget != "budget":
        _check_room(config, config.decode_budget, f"eviction.decode_budget={config.decode_budget}")
    unfit = [method.label for method in methods if not _can_decode(method)]
    if unfit:
        raise UserError(
            f"eviction.decode_budget: {', '.join(unfit)} cannot rank a cache that grows. "
            f"Methods that can: {', '.join(DECODING)}, each also as NAME+memory."
        )


def _check_room(config: EvictionConfig, budget: int, what: str) -> None:
    """A cache that is held at `budget` tokens needs room beside those that always stay."""
    always = config.always_kept
    in_blocks = f", in whole blocks of {config.block}" if config.block > 1 else ""
    if budget <= always:
        raise UserError(
            f"{what} is filled by tokens that always stay: {config.sinks} sinks and {config.decode_window} recent "
            f"ones{in_blocks}. Use a budget above {always}, or a smaller eviction.decode_window."
        )


def _check_order(config: EvictionConfig, methods: list[MethodConfig]) -> None:
    if config.when == "after_prefill":
        return
    unfit = [method.label for method in methods if method.name not in SPARSE]
    if unfit:
        raise UserError(
            f"eviction.when=before_prefill: {', '.join(unfit)} needs K and V of all tokens. "
            f"Methods that choose before they exist: {', '.join(SPARSE)}."
        )
    if config.sinks < 1:
        raise UserError(
            "eviction.when=before_prefill needs eviction.sinks=1 or more: "
            "a token before the first kept one would have nothing to attend to."
        )


def _can_decode(config: MethodConfig) -> bool:
    """Whether the method can also rank a cache while it grows. Raises UserError for a method that does not exist."""
    if is_shipped(config):
        return base_name(config) in DECODING
    return _entry_of(config).ranks_growing_caches


def _entry_of(config: MethodConfig) -> MethodEntry:
    """Of somebody's own method. Raises UserError for one that does not exist."""
    from indexmem.eviction.methods.registry import entry_of

    return entry_of(config)


def learned_methods(experiment: Experiment) -> list[str]:
    """Labels of the grid's methods whose modules a spec trains."""
    return [method.label for method in experiment.grid.methods if trained_modules(method)]


def trains_first(experiment: Experiment) -> bool:
    """Whether the grid compares methods whose modules the spec itself trains."""
    return bool(learned_methods(experiment)) and experiment.indexer.checkpoint is None


def check_made(experiment: Experiment) -> None:
    """Raises UserError for a method whose module the spec's own training does not make."""
    if not trains_first(experiment):
        return
    config = experiment.distill
    made = {str(name) for name in config.modules if name != "memory"}
    made |= {module_name(base) for base in experiment.memory.bases} if "memory" in config.modules else set()
    for method in experiment.grid.methods:
        if lacking := sorted(trained_modules(method) - made):
            raise UserError(
                f"Method '{method.label}' needs the module {lacking[0]}, and this spec trains "
                f"{', '.join(sorted(made))}. Add it (distill.modules lists indexer, memory and locret; memory.bases is "
                "for whose evictions memories are trained), or name trained ones: indexer.checkpoint=FOLDER."
            )
