"""The attention function that backbones run with, and the taps on it.

Loaded with `attn_implementation="indexmem"`, a backbone behaves as with sdpa. Four keywords, passed through
`model(..., layer_tap=..., kv_view=...)` and so bound to one call and never to the model's modules, change that:

- `layer_tap(tap)` is called in each layer with what attention sees, before attention runs, and may return its output;
- `kv_view.attend(layer, query, key, value, scaling)` replaces attention (compressed, ragged caches);
- `documents` makes each row of tokens several documents that attend to themselves alone (models/packed.py);
- `readings` makes it several documents that are read twice (models/rereading.py).

Only layers with full attention are tapped, and a tap numbers these alone; a model's other layers attend within a window
and keep their cache (models/geometry.py).

Shapes: B batch, L tokens, Q query heads, H KV heads, d head_dim, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from indexmem.models.geometry import FULL, attention_kinds
from indexmem.models.packed import PackedDocuments
from indexmem.models.projection import unrotate
from indexmem.models.rereading import Readings, Reread, States
from indexmem.models.sequence_attention import attend_in_window, attend_with_lse

ATTENTION_NAME = "indexmem"

RotaryEmbedding = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (x, position_ids [B, L]) -> cos, sin [B, L, r]


class KVView(Protocol):
    """A cache that attends by itself."""

    def attend(self, layer: int, query_BQLd: Tensor, key_BHTd: Tensor, value_BHTd: Tensor, scaling: float) -> Tensor:
        """Attention output [B, L, Q, d]. `layer` counts all layers of the model, as transformers does."""


@dataclass(frozen=True)
class LayerTap:
    """What one attention layer sees during a forward pass."""

    layer: int  # among those with full attention
    module: nn.Module
    hidden_BLD: Tensor  # attention input, after the layer's input norm
    query_BQLd: Tensor  # after RoPE
    key_BHLd: Tensor  # after RoPE
    value_BHLd: Tensor
    cos_BLr: Tensor  # rotary tables, r <= d
    sin_BLr: Tensor
    scaling: float  # the backbone's own logit scale
    rotary: RotaryEmbedding  # the model's rotary embedding in these layers
    again: Reread | None = None  # the second reading of what is seen here, where there is one

    def span(self, start: int, stop: int) -> LayerTap:
        """The part of the sequence from `start` to before `stop`, as the layer saw it."""
        return replace(
            self,
            hidden_BLD=self.hidden_BLD[:, start:stop],
            query_BQLd=self.query_BQLd[:, :, start:stop],
            key_BHLd=self.key_BHLd[:, :, start:stop],
            value_BHLd=self.value_BHLd[:, :, start:stop],
            cos_BLr=self.cos_BLr[:, start:stop],
            sin_BLr=self.sin_BLr[:, start:stop],
        )

    def prefix(self, tokens: int) -> LayerTap:
        """What the layer would have seen of the first `tokens` tokens alone (causality: the same values)."""
        return self.span(0, tokens)

    def rows(self, index_R: Tensor, tokens: int) -> LayerTap:
        """Some sequences of the batch, all of `tokens` real tokens, without padding and without a second reading."""
        one_table = self.cos_BLr.shape[0] == 1  # tables of batch 1 serve all rows
        return replace(
            self,
            hidden_BLD=self.hidden_BLD[index_R],
            query_BQLd=self.query_BQLd[index_R],
            key_BHLd=self.key_BHLd[index_R],
            value_BHLd=self.value_BHLd[index_R],
            cos_BLr=self.cos_BLr if one_table else self.cos_BLr[index_R],
            sin_BLr=self.sin_BLr if one_table else self.sin_BLr[index_R],
            again=None,
        ).prefix(tokens)

    @cached_property
    def attended(self) -> tuple[Tensor, Tensor] | None:
        """Causal attention's output [B, L, Q, d] and its rows' log-sum-exp [B, Q, L]; None where no kernel gives both.

        The layer goes on with the output if it was asked for here, and does not attend again.
        """
        return attend_with_lse(self.query_BQLd, self.key_BHLd, self.value_BHLd, self.scaling)

    @cached_property
    def query_pre_BQLd(self) -> Tensor:
        """Query before RoPE (after any q_norm), fp32: the rotation undone, so that it holds for every family."""
        return unrotate(self.query_BQLd, self.cos_BLr, self.sin_BLr)

    @cached_property
    def key_pre_BHLd(self) -> Tensor:
        """Key before RoPE (after any k_norm), fp32."""
        return unrotate(self.key_BHLd, self.cos_BLr, self.sin_BLr)


def indexmem_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    layer_tap: Callable[..., Tensor | None] | None = None,
    kv_view: KVView | None = None,
    documents: PackedDocuments | None = None,
    readings: Readings | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention with taps; causal sdpa without them, within the layer's window if it has one.

    Right padding needs no mask under causality.
    """
    if readings is not None:
        assert kv_view is None and documents is None, "both readings are in the row"
        return _attend_twice(readings, module, (query, key, value), scaling, layer_tap, sliding_window), None
    if documents is not None:
        assert kv_view is None, "caches hold whole rows"
        query, key, value = (documents.split(states, dim=2) for states in (query, key, value))
    attended = None if layer_tap is None else layer_tap(module, query, key, value, scaling)
    if kv_view is not None:
        layer: int = module.layer_idx  # type: ignore[assignment]
        return kv_view.attend(layer, query, key, value, scaling), None
    if sliding_window is not None and sliding_window < key.shape[2]:
        output = attend_in_window(query, key, value, sliding_window, scaling)
    elif attended is not None:
        output = attended
    else:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling)
    return output if documents is None else documents.join(output), None


def _attend_twice(
    readings: Readings,
    module: nn.Module,
    states: States,
    scaling: float,
    layer_tap: Callable[..., Tensor | None] | None,
    window: int | None,
) -> Tensor:
    """Attention of both readings; the first is what is tapped, with the second beside it."""
    query, key, value = (readings.split_first(x, dim=2) for x in states)
    second: States = tuple(readings.split_second(x, dim=2) for x in states)  # type: ignore[assignment]
    if window is not None and window < key.shape[2] + second[1].shape[2]:
        if layer_tap is not None:
            layer_tap(module, query, key, value, scaling)
        again_RWQd = readings.attend_within(window, second, (query, key, value), scaling)
        return readings.join(attend_in_window(query, key, value, window, scaling), again_RWQd)
    again_RWQd, lse_RQW = readings.reread(second, (query, key, value), scaling)
    attended = None if layer_tap is None else layer_tap(module, query, key, value, scaling, (second, lse_RQW))
    if attended is None:
        attended, _ = sdpa_attention_forward(module, query, key, value, None, 0.0, scaling)
    return readings.join(attended, again_RWQd)


def register_attention() -> None:
    """Make `attn_implementation="indexmem"` known to transformers (idempotent)."""
    AttentionInterface.register(ATTENTION_NAME, indexmem_attention)


def layer_number(module: nn.Module) -> int | None:
    """Number of a self-attention module among those with full attention; None for one with a sliding window."""
    index: int = module.layer_idx  # type: ignore[assignment]
    kinds = attention_kinds(module.config)  # type: ignore[arg-type]
    return kinds[:index].count(FULL) if kinds[index] == FULL else None


def attention_layers(model: PreTrainedModel) -> list[nn.Module]:
    """A decoder's self-attention modules with full attention, in layer order."""
    modules = [layer.self_attn for layer in model.get_decoder().layers]
    return [module for module in modules if layer_number(module) is not None]


def rotary_of(model: PreTrainedModel, kind: str = FULL) -> RotaryEmbedding:
    """The rotary embedding of the layers that attend in this way; most families have one for all."""
    decoder = model.get_decoder()
    per_kind = FULL in (getattr(decoder.config, "rope_parameters", None) or {})
    return partial(decoder.rotary_emb, layer_type=kind) if per_kind else decoder.rotary_emb


def output_weight(module: nn.Module) -> Tensor:
    """Weight [D, Q d] of an attention module's output projection W_O."""
    projection: nn.Linear = module.o_proj  # type: ignore[assignment]
    return projection.weight


@contextmanager
def tapping(
    model: PreTrainedModel,
    visit: Callable[[LayerTap], None],
    see_window: Callable[[int, Tensor, Tensor], None] | None = None,
    documents: PackedDocuments | None = None,
    readings: Readings | None = None,
) -> Iterator[dict[str, Any]]:
    """Visit every layer with full attention of the calls made inside.

    Yields the keywords to pass on: `with tapping(model, visit) as kwargs: model(ids, **kwargs)`. Query, key and value
    come from the attention function; hidden states and rotary tables from a pre-hook that is removed on exit.
    `see_window` gets the number (among all layers), keys and values [B, H, L, d] of each layer with a sliding window.
    With `documents` the calls get a row of them, and all that is visited is the padded batch of the documents. With
    `readings` they get a row of documents read twice, and visited is the batch of the first reading, which has the
    second beside it.
    """

    inputs: dict[str, Any] = {}
    rotary = rotary_of(model)

    def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs["hidden"] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        inputs["rotary"] = kwargs["position_embeddings"]

    def tap(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        second: tuple[States, Tensor] | None = None,
    ) -> Tensor | None:
        layer = layer_number(module)
        if layer is not None:
            hidden, (cos, sin) = inputs["hidden"], inputs["rotary"]
            again = None
            if readings is not None and second is not None:
                tables = readings.split_second(cos), readings.split_second(sin)
                again = Reread(readings.chunks, *second[0], second[1], *tables, readings.spans_R4)
                hidden, cos, sin = (readings.split_first(states) for states in (hidden, cos, sin))
            if documents is not None:
                hidden, cos, sin = (documents.split(states) for states in (hidden, cos, sin))
            seen = LayerTap(layer, module, hidden, query, key, value, cos, sin, scaling, rotary, again)
            visit(seen)
            attended: tuple[Tensor, Tensor] | None = vars(seen).get("attended")  # there if the visitor asked for it
            return None if attended is None else attended[0]
        if see_window is not None:
            see_window(int(module.layer_idx), key, value)  # type: ignore[arg-type]
        return None

    handles = [module.register_forward_pre_hook(remember, with_kwargs=True) for module in attention_layers(model)]
    try:
        packed: dict[str, Any] = {}
        if documents is not None:
            packed = {"documents": documents, "position_ids": documents.position_ids}
        if readings is not None:
            packed = {"readings": readings, "position_ids": readings.positions_1N}
        yield {"layer_tap": tap, **packed}
    finally:
        for handle in handles:
            handle.remove()
