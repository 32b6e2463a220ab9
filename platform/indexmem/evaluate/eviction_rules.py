"""Which eviction settings go together: every setting that a grid accepts has an effect."""

from __future__ import annotations

from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.methods.registry import DECODING, FULL, base_name

DECODE_DETAILS = ("decode_every", "decode_window")
SPARSE = ("indexer",)  # methods that can choose tokens before their K and V exist


def check_eviction(config: EvictionConfig, methods: tuple[MethodConfig, ...]) -> None:
    """Raises UserError for settings without effect, budgets that cannot hold what always stays, unfit methods.

    The full cache fits every setting: it is the reference, and nothing compresses it.
    """
    evicting = [method for method in methods if method.name != FULL]
    if not evicting and config.model_dump(exclude={"sinks"}) != EvictionConfig().model_dump(exclude={"sinks"}):
        raise UserError(f"eviction settings have no effect on '{FULL}' alone. Add a method, or leave them out.")
    _check_decoding(config, evicting)
    _check_order(config, evicting)


def _check_decoding(config: EvictionConfig, methods: list[MethodConfig]) -> None:
    if config.decode_budget is None:
        for name in DECODE_DETAILS:
            if getattr(config, name) != EvictionConfig.model_fields[name].default:
                raise UserError(
                    f"eviction.{name}={getattr(config, name)} has no effect without a budget. "
                    "Set eviction.decode_budget=TOKENS, or leave it out."
                )
        return
    always = config.sinks + config.decode_window
    if config.decode_budget <= always:
        raise UserError(
            f"eviction.decode_budget={config.decode_budget} is filled by tokens that always stay: {config.sinks} sinks "
            f"and {config.decode_window} recent ones. Use a budget above {always}, or a smaller eviction.decode_window."
        )
    unfit = [method.label for method in methods if base_name(method) not in DECODING]
    if unfit:
        raise UserError(
            f"eviction.decode_budget: {', '.join(unfit)} cannot rank a cache that grows. "
            f"Methods that can: {', '.join(DECODING)}, each also as NAME+memory."
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
    if config.extra_tokens:
        raise UserError("eviction.extra_tokens does not combine with eviction.when=before_prefill. Leave one out.")
    if config.sinks < 1:
        raise UserError(
            "eviction.when=before_prefill needs eviction.sinks=1 or more: "
            "a token before the first kept one would have nothing to attend to."
        )
