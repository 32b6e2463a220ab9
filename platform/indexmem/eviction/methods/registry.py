"""Names -> eviction methods: a registry of factories (docs/methods.md has the same methods as a table)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvpress import (
    CapPress,
    CURPress,
    KeyDiffPress,
    KnormPress,
    LagKVPress,
    LeverageScorePress,
    NonCausalAttnPress,
    PyramidKVPress,
    SnapKVPress,
    TOVAPress,
)

from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.methods.adakv import (
    AdaKV,
    AdaKVConfig,
    CriticalAdaKV,
    CriticalAdaKVConfig,
    CriticalKV,
    CriticalKVConfig,
)
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.compactor import CUR, Compactor, Seeded
from indexmem.eviction.methods.duo import DuoAttention
from indexmem.eviction.methods.factories import (
    MethodEntry,
    from_checkpoint,
    from_model,
    from_params,
    from_press,
    trained_folder,
)
from indexmem.eviction.methods.fastkvzip import FastKVzip
from indexmem.eviction.methods.foreign import foreign_entry
from indexmem.eviction.methods.kvpress_scores import (
    TOVA,
    ExpectedAttention,
    ExpectedAttentionOnDevice,
    KeyDiff,
    KeysAndValues,
    Knorm,
    PyramidKV,
    SnapKV,
)
from indexmem.eviction.methods.kvzip import KVzip
from indexmem.eviction.methods.learned import LearnedIndexer
from indexmem.eviction.methods.locret import Locret
from indexmem.eviction.methods.names import (
    EVICTS_NOTHING,
    FULL_CACHE,
    INDEXMEM,
    TRAINED_BY_SPEC,
    base_name,
)
from indexmem.eviction.methods.params import MethodParams, check_params, in_sets, share, take_sharing
from indexmem.eviction.methods.pretrained import ExpectedAttentionStored, KVzap, QFilter
from indexmem.eviction.methods.running_mean import RunningMean, RunningMeanConfig
from indexmem.eviction.methods.simple import FullCache, ObservedAttention, Random, StreamingLLM
from indexmem.eviction.methods.with_memory import WithMemory
from indexmem.eviction.methods.xkv import XKV
from indexmem.fetching import NotAtHand
from indexmem.plugins.load import unknown_name


def _over_base(scores: str, kind: type[Any], config: type[MethodParams]) -> MethodEntry:
    """A method that ranks by the scores of another one, named by its parameter `base`."""

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, dict.fromkeys(config.model_fields, Any))
        settings = config.of(params)
        base: MethodConfig = settings.base  # type: ignore[attr-defined]
        return kind(make_method(base, context.of_scores), settings)

    return MethodEntry(scores, kind, build)


METHODS: Mapping[str, MethodEntry] = MappingProxyType(
    {
        FULL_CACHE: from_params("nothing: everything is kept", FullCache),
        "indexer": from_checkpoint("distilled prediction of what a repetition attends to", LearnedIndexer),
        "locret": from_checkpoint("trained retention heads", Locret),
        "xkv": from_params("nothing: all tokens, in low rank", XKV),
        "snapkv": from_press("attention of the last queries", SnapKVPress, SnapKV),
        "pyramidkv": from_press("attention of last queries, more tokens in lower layers", PyramidKVPress, PyramidKV),
        "tova": from_press("attention of the last query", TOVAPress, TOVA),
        "keydiff": from_press("distance of the key from the mean key", KeyDiffPress, KeyDiff),
        "knorm": from_press("shortness of the key", KnormPress, Knorm),
        "expected_attention": from_press(
            "attention expected of later queries", ExpectedAttentionOnDevice, ExpectedAttention
        ),
        "observed_attention": from_params("mean attention received", ObservedAttention),
        "lagkv": from_press("spread of key and value within the range of the next lag", LagKVPress, KeysAndValues),
        "leverage": from_press("leverage of the key", LeverageScorePress, Seeded),
        "non_causal_attention": from_press("attention received within chunks, without causality", NonCausalAttnPress),
        "compactor": from_params("leverage and non-causal attention, blended by the budget", Compactor),
        "cur": from_press("leverage of key and value within a window", CURPress, CUR),
        "cap": from_press("weighted leverage of the value", CapPress),
        "streaming_llm": from_params("recency, after the first tokens", StreamingLLM),
        "random": from_params("noise", Random),
        "running_mean": _over_base("a base's scores, averaged over gated layers", RunningMean, RunningMeanConfig),
        "adakv": _over_base("a base's scores, compared among a layer's heads", AdaKV, AdaKVConfig),
        "criticalkv": _over_base("a base's scores, then times what the value writes", CriticalKV, CriticalKVConfig),
        "critical_adakv": _over_base("adakv's budgets, criticalkv's choice", CriticalAdaKV, CriticalAdaKVConfig),
        "kvzip": from_params("highest attention while the context is repeated", KVzip),
        "duo_attention": from_model("heads: how far back they look", DuoAttention),
        "kvzap": from_model("trained prediction of KVzip's scores", KVzap),
        "fastkvzip": from_model("trained gates that predict KVzip's scores", FastKVzip),
        "qfilter": from_model("projection on the head's trained filter", QFilter),
        "expected_attention_stats": from_model(
            "attention expected of later queries, from stored statistics", ExpectedAttentionStored
        ),
    }
)


def make_method(config: MethodConfig, context: MethodContext) -> EvictionMethod:
    """Build a method from its config. Raises UserError naming the method, the mistake and what is allowed.

    `<name>+memory` is method <name> with the latent memory trained for it; `indexmem` is `indexer+memory`.
    """
    entry = entry_of(config)
    base, plus = base_name(config), base_name(config) != config.name
    if plus and (entry.kind.own_pass or entry.kind.cross_layer):
        reason = "scores no windows" if entry.kind.own_pass else "ranks by all layers' scores"
        raise UserError(f"Method '{config.label}': '{base}' {reason}, so no memory can be trained for it.")
    try:
        sharing, params = take_sharing(config.params)
        if not plus:
            return in_sets(share(entry.build(params, context), sharing), context.granularity, context.block)
        without_memory = {k: v for k, v in params.items() if k != "checkpoint" or base in TRAINED_BY_SPEC}
        method = share(entry.build(without_memory, context), sharing)
        method = in_sets(method, context.granularity, context.block)
        return WithMemory(method, base, trained_folder(params, context, "memory"), context)
    except NotAtHand:
        raise
    except UserError as error:
        raise UserError(f"Method '{config.label}': {error}") from None


def entry_of(config: MethodConfig) -> MethodEntry:
    """The entry of the method that ranks tokens, ours or somebody's own.

    Raises UserError, with the nearest name, for a method that does not exist and for a memory of what keeps everything.
    """
    base = base_name(config)
    entry = METHODS.get(base) or foreign_entry(base)
    if entry is None or (base in EVICTS_NOTHING and base != config.name):
        raise unknown_name(
            "methods", "method", config.name, [*METHODS, INDEXMEM], "; NAME+memory adds a trained memory"
        )
    return entry
