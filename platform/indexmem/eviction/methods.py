"""Names -> eviction methods. A registry of factories: each cell's method is built afresh, nothing is shared.

A method ranks the tokens of a context from what one layer's attention sees. Training-free scores come from kvpress,
computed by its own code on our taps; the learned indexer is ours.
Shapes: B batch, L context tokens, H KV heads.
"""

from __future__ import annotations

import copy
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from kvpress import (
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    PyramidKVPress,
    ScorerPress,
    SnapKVPress,
    TOVAPress,
)
from torch import Tensor, nn

from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import check_geometry, load_indexers, weights_hash
from indexmem.eviction.policy import kept_count
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry

FULL = "full"


@dataclass(frozen=True)
class MethodContext:
    """What a factory may need besides the method's own parameters."""

    geometry: Geometry
    device: str = "cpu"
    checkpoint: str | None = None  # default folder of the trained indexer


class EvictionMethod(ABC):
    """Scores tokens, and says how many each layer keeps."""

    checkpoint = ""  # content hash of learned weights
    min_context = 1  # shortest context that it can score, in tokens

    @abstractmethod
    def score(self, tap: LayerTap) -> Tensor:
        """Importance [B, H, L] of each context token; higher is kept longer."""

    def kept(self, tokens: int, ratio: float, layer: int, layers: int) -> int:
        """Tokens kept per KV head in this layer."""
        return kept_count(tokens, ratio)

    def indexer_bytes(self, kept_per_layer: list[int], element_size: int) -> int:
        """Bytes of indexer keys held for the kept tokens, for later compression during decoding."""
        return 0


class FullCache(EvictionMethod):
    """Keeps everything: the reference that every ratio is compared with."""

    def score(self, tap: LayerTap) -> Tensor:
        return tap.key_BHLd.new_zeros(tap.key_BHLd.shape[:3])


class KvpressMethod(EvictionMethod):
    """A kvpress scorer applied to a tap."""

    def __init__(self, press: ScorerPress) -> None:
        self.press = press
        self.min_context = max(getattr(press, "window_size", 0), getattr(press, "n_sink", 0)) + 1

    def score(self, tap: LayerTap) -> Tensor:
        kwargs = {"position_embeddings": (tap.cos_BLr, tap.sin_BLr)}
        module = _with_rotary(tap.module, tap.rotary)
        return self.press.score(module, tap.hidden_BLD, tap.key_BHLd, tap.value_BHLd, None, kwargs)


class PyramidKV(KvpressMethod):
    """SnapKV scores with kvpress' pyramid of layer budgets: more tokens below, fewer above."""

    def kept(self, tokens: int, ratio: float, layer: int, layers: int) -> int:
        press = copy.copy(self.press)
        press.compression_ratio = ratio
        stand_in = SimpleNamespace(layer_idx=layer, config=SimpleNamespace(num_hidden_layers=layers))
        return press.get_layer_budget(stand_in, tokens)


class StreamingLLM(EvictionMethod):
    """First `n_sink` and most recent tokens (arXiv 2309.17453), positions kept as they were."""

    def __init__(self, n_sink: int = 4) -> None:
        self.n_sink = n_sink

    def score(self, tap: LayerTap) -> Tensor:
        length = tap.key_BHLd.shape[2]
        recency_L = torch.arange(length, dtype=torch.float32, device=tap.key_BHLd.device)
        recency_L[: self.n_sink] = length
        return recency_L.expand(tap.key_BHLd.shape[:3])


class Random(EvictionMethod):
    """Uniform noise: the floor. Seeded by (seed, layer, length), so a cell always keeps the same tokens."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def score(self, tap: LayerTap) -> Tensor:
        shape = tap.key_BHLd.shape[:3]
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + tap.layer) * 1_000_003 + shape[2])
        return torch.rand(shape, generator=generator).to(tap.key_BHLd.device)


class LearnedIndexer(EvictionMethod):
    """The distilled indexer; a layer-scope score row serves all KV heads."""

    def __init__(self, folder: str, context: MethodContext) -> None:
        check_geometry(folder, context.geometry)
        self.indexers = load_indexers(folder).to(context.device).eval().requires_grad_(False)
        self.checkpoint = weights_hash(folder)

    def score(self, tap: LayerTap) -> Tensor:
        batch, kv_heads, length = tap.key_BHLd.shape[:3]
        lengths_B = torch.full((batch,), length, device=tap.key_BHLd.device)
        with torch.no_grad():
            scores_BGL = self.indexers[tap.layer](tap.hidden_BLD, tap.query_pre_BQLd, lengths_B)
        return scores_BGL.expand(batch, kv_heads, length)

    def indexer_bytes(self, kept_per_layer: list[int], element_size: int) -> int:
        # Heads that keep different tokens need their own copies of the (shared) indexer keys.
        shape = self.indexers.shape
        return sum(kept_per_layer) * shape.rows * shape.dim * element_size


def _with_rotary(module: nn.Module, rotary: nn.Module) -> nn.Module:
    """A shallow copy of an attention module that knows the rotary embedding, as kvpress' scorers expect.

    kvpress sets the attribute on the model itself and leaves it there; the copy keeps the backbone untouched.
    """
    twin = copy.copy(module)
    twin.__dict__["_modules"] = {**module._modules, "rotary_emb": rotary}
    return twin


def _kvpress(press: type[ScorerPress], wrap: type[KvpressMethod] = KvpressMethod) -> Callable[..., EvictionMethod]:
    allowed = [field.name for field in fields(press) if field.name != "compression_ratio"]

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        _check_params(params, allowed)
        return wrap(press(**params))

    return build


def _own(method: Callable[..., EvictionMethod], allowed: tuple[str, ...] = ()) -> Callable[..., EvictionMethod]:
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


METHODS: Mapping[str, Callable[[Mapping[str, Any], MethodContext], EvictionMethod]] = MappingProxyType(
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


def _check_params(params: Mapping[str, Any], allowed: list[str] | tuple[str, ...]) -> None:
    for name in params:
        if name not in allowed:
            raise UserError(f"unknown parameter '{name}'. Allowed: {', '.join(allowed) or 'none'}.")
