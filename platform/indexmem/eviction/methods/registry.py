"""Names -> eviction methods: a registry of factories."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from kvpress import (
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    PyramidKVPress,
    ScorerPress,
    SnapKVPress,
    TOVAPress,
)

from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.crosslayer import RunningMean, RunningMeanConfig
from indexmem.eviction.methods.kvpress_scores import TOVA, KeyDiff, Knorm, KvpressMethod, PyramidKV, SnapKV
from indexmem.eviction.methods.learned import LearnedIndexer
from indexmem.eviction.methods.locret import Locret
from indexmem.eviction.methods.memory import WithMemory
from indexmem.eviction.methods.simple import FullCache, Random, StreamingLLM
from indexmem.eviction.methods.xkv import XKV

FULL, RUNNING_MEAN = "full", "running_mean"
EVICTS_NOTHING = frozenset({FULL, "xkv"})  # a memory of what they evict would stay empty
INDEXMEM, INDEXMEM_PARTS, MEMORY_SUFFIX = "indexmem", "indexer+memory", "+memory"
LEARNED = frozenset({"indexer", "locret"})
# Methods that can also rank a cache while it grows.
DECODING = ("indexer", "snapkv", "tova", "keydiff", "knorm", "streaming_llm", "random")

Factory = Callable[[Mapping[str, Any], MethodContext], EvictionMethod]


def _kvpress(press: type[ScorerPress], wrap: type[KvpressMethod] = KvpressMethod) -> Factory:
    allowed = [field.name for field in fields(press) if field.name != "compression_ratio"]

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        _check_params(params, allowed)
        return wrap(press(**params))

    return build


def _own(method: Callable[..., EvictionMethod], allowed: tuple[str, ...] = ()) -> Factory:
    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        _check_params(params, allowed)
        return method(**params)

    return build


def _learned(method: Callable[..., EvictionMethod], allowed: tuple[str, ...] = ()) -> Factory:
    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        _check_params(params, ("checkpoint", *allowed))
        folder = params.get("checkpoint") or context.checkpoint
        if folder is None:
            raise UserError("needs a trained checkpoint: distil one first, or set indexer.checkpoint=FOLDER")
        return method(str(folder), context, **{name: params[name] for name in allowed if name in params})

    return build


def _running_mean(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
    _check_params(params, tuple(RunningMeanConfig.model_fields))
    config = RunningMeanConfig.of(params)
    return RunningMean(make_method(config.base, context), config)


METHODS: Mapping[str, Factory] = MappingProxyType(
    {
        FULL: _own(FullCache),
        "indexer": _learned(LearnedIndexer),
        "locret": _learned(Locret, ("recent",)),
        "xkv": _own(XKV, ("group", "key_share")),
        "snapkv": _kvpress(SnapKVPress, SnapKV),
        "pyramidkv": _kvpress(PyramidKVPress, PyramidKV),
        "tova": _kvpress(TOVAPress, TOVA),
        "keydiff": _kvpress(KeyDiffPress, KeyDiff),
        "knorm": _kvpress(KnormPress, Knorm),
        "expected_attention": _kvpress(ExpectedAttentionPress),
        "streaming_llm": _own(StreamingLLM, ("n_sink",)),
        "random": _own(Random, ("seed",)),
        RUNNING_MEAN: _running_mean,
    }
)


def make_method(config: MethodConfig, context: MethodContext) -> EvictionMethod:
    """Build a method from its config. Raises UserError naming the method, the mistake and what is allowed.

    `<name>+memory` is method <name> with the latent memory trained for it; `indexmem` is `indexer+memory`.
    """
    name = INDEXMEM_PARTS if config.name == INDEXMEM else config.name
    base, plus, _ = name.partition(MEMORY_SUFFIX)
    factory = METHODS.get(base)
    if factory is None or name != base + plus or (base in EVICTS_NOTHING and plus):
        near = difflib.get_close_matches(config.name, [*METHODS, INDEXMEM], n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        names = ", ".join([*METHODS, INDEXMEM])
        raise UserError(f"Unknown method '{config.name}'.{hint} Methods: {names}; NAME+memory adds a trained memory.")
    try:
        if not plus:
            method = factory(config.params, context)
            method.extra_tokens = 0 if base in EVICTS_NOTHING else context.extra_tokens
            return method
        own = {k: v for k, v in config.params.items() if k != "checkpoint" or base in LEARNED}
        return _with_memory(factory(own, context), base, config.params, context)
    except UserError as error:
        raise UserError(f"Method '{config.label}': {error}") from None


def needs_training(config: MethodConfig) -> bool:
    """Whether the method uses weights that a spec trains, and names no folder of its own to take them from."""
    if config.name == RUNNING_MEAN and "base" in config.params:
        return needs_training(MethodConfig.model_validate(config.params["base"]))
    learned = config.name in LEARNED or config.name == INDEXMEM or config.name.endswith(MEMORY_SUFFIX)
    return learned and not config.params.get("checkpoint")


def base_name(config: MethodConfig) -> str:
    """Name of the method that ranks tokens, without its memory."""
    return (INDEXMEM_PARTS if config.name == INDEXMEM else config.name).removesuffix(MEMORY_SUFFIX)


def _with_memory(
    method: EvictionMethod, base: str, params: Mapping[str, Any], context: MethodContext
) -> EvictionMethod:
    folder = params.get("checkpoint") or context.checkpoint
    if folder is None:
        raise UserError("needs a trained memory: distil one first, or set indexer.checkpoint=FOLDER")
    return WithMemory(method, base, str(folder), context)


def _check_params(params: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in params:
        if name not in allowed:
            raise UserError(f"unknown parameter '{name}'. Allowed: {', '.join(allowed) or 'none'}.")
