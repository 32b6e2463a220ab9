"""Hooks with which a model runs over an IndexMemCache: they lend it our attention for one forward pass at a time.

A model stays as it was loaded, attention function included. The hooks look at `past_key_values` and do nothing for any
other cache.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from torch import nn
from transformers import Cache, GenerationMixin, PreTrainedModel

from indexmem.models.attention import ATTENTION_NAME, register_attention

CACHE = "past_key_values"  # the keyword
Keywords = dict[str, Any]


class WatchedCache(Cache, ABC):
    """A cache that is told when a model's pass over it begins and ends."""

    @abstractmethod
    def begin(self, model: nn.Module, kwargs: Keywords) -> Keywords:
        """The keywords with which the pass is to run."""

    @abstractmethod
    def end(self, output: Any) -> Any:
        """The output that the pass is to have; called with None if it has failed, or never began."""


def watch(model: PreTrainedModel) -> None:
    """Tell watched caches of this model's passes over them. Safe to repeat."""
    register_attention()
    if any(isinstance(getattr(hook, "__self__", None), _Watch) for hook in model._forward_pre_hooks.values()):
        return
    hooks = _Watch()
    model.register_forward_pre_hook(hooks.begin, with_kwargs=True)
    model.register_forward_hook(hooks.end, with_kwargs=True, always_call=True)


class _Watch:
    """The hooks of one model."""

    def __init__(self) -> None:
        self._open: WatchedCache | None = None  # over which a pass has begun

    def begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords
    ) -> tuple[tuple[Any, ...], Keywords] | None:
        if self._open is not None:  # torch tells of an error in a pass, but not of a KeyboardInterrupt
            self._close(None)
        cache = kwargs.get(CACHE)
        if not isinstance(cache, WatchedCache):
            return None
        self._open = cache
        named = dict(zip(signature(module.forward).parameters, args)) if args else {}
        return (), cache.begin(module, named | kwargs)

    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords, output: Any) -> Any:
        return None if self._open is None else self._close(output)

    def _close(self, output: Any) -> Any:
        cache, self._open = self._open, None
        assert cache is not None
        return cache.end(output)


def reads_in_chunks() -> bool:
    """Whether this is called below a `generate` with prefill_chunk_size, of which it tells neither model nor cache."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is GenerationMixin._prefill.__code__:
            return frame.f_locals["generation_config"].prefill_chunk_size is not None
    return False


@contextmanager
def our_attention(model: PreTrainedModel) -> Iterator[None]:
    """Within, the model's decoder attends by our function, and makes no masks."""
    config = model.get_decoder().config
    own = config._attn_implementation
    config._attn_implementation = ATTENTION_NAME
    try:
        yield
    finally:
        config._attn_implementation = own
