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
from indexmem.eviction.methods.kvpress_scores import KvpressMethod, PyramidKV
from indexmem.eviction.methods.learned import LearnedIndexer
from indexmem.eviction.methods.simple import FullCache, Random, StreamingLLM

FULL = "full"

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


def _indexer(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
    _check_params(params, ("checkpoint",))
    folder = params.get("checkpoint") or context.checkpoint
    if folder is None:
        raise UserError("needs a trained checkpoint: distil one first, or set indexer.checkpoint=FOLDER")
    return LearnedIndexer(str(folder), context)


METHODS: Mapping[str, Factory] = MappingProxyType(
    {
        FULL: _own(FullCache),
        "indexer": _indexer,
        "snapkv": _kvpress(SnapKVPress),
        "pyramidkv": _kvpress(PyramidKVPress, PyramidKV),
        "tova": _kvpress(TOVAPress),
        "keydiff": _kvpress(KeyDiffPress),
        "knorm": _kvpress(KnormPress),
        "expected_attention": _kvpress(ExpectedAttentionPress),
        "streaming_llm": _own(StreamingLLM, ("n_sink",)),
        "random": _own(Random, ("seed",)),
    }
)


def make_method(config: MethodConfig, context: MethodContext) -> EvictionMethod:
    """Build a method from its config. Raises UserError naming the method, the mistake and what is allowed."""
    factory = METHODS.get(config.name)
    if factory is None:
        near = difflib.get_close_matches(config.name, METHODS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UserError(f"Unknown method '{config.name}'.{hint} Methods: {', '.join(METHODS)}.")
    try:
        return factory(config.params, context)
    except UserError as error:
        raise UserError(f"Method '{config.label}': {error}") from None


def _check_params(params: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in params:
        if name not in allowed:
            raise UserError(f"unknown parameter '{name}'. Allowed: {', '.join(allowed) or 'none'}.")
