"""Prefill that evicts before it attends (`eviction.when: before_prefill`; the paper's "pre-eviction").

Layer by layer: the indexer scores all tokens from the layer's input and its queries before RoPE, each KV head's tokens
are chosen, of a budget of its own or of the layer's, and only then are K and V computed, for tokens that some head
keeps. Every query attends to the kept tokens up to its own position; the first token is always kept, so there is one.
What later layers see, and so what they keep, depends on this: each ratio has a prefill of its own, and layers cannot
share a budget.
Shapes: L context tokens, D model width, H KV heads, g query heads per KV head, Q = H g, K kept tokens (of the head that
keeps most), U tokens kept by any head, d head_dim, r rotary dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from indexmem.engine.prefill import Stopwatch
from indexmem.engine.sparse_attention import attend_to_kept
from indexmem.eviction.context import IndexerKeys, RowCache
from indexmem.eviction.kept import Kept, lengths_of
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.ranking import has_nan, nan_error
from indexmem.models.backbone import Backbone
from indexmem.models.projection import attention_inputs, rotate


@dataclass(frozen=True)
class SparsePrefill:
    """A context of which only the kept K and V were ever computed."""

    cache: RowCache
    seconds: float  # the forward pass, scoring not counted
    score_seconds: float


@torch.inference_mode()
def sparse_prefill(
    backbone: Backbone, context_ids: list[int], method: IndexerScores, target: float, sinks: int
) -> SparsePrefill:
    """Run the backbone over a context of which each layer keeps `target` tokens per head, sinks first.

    Raises ValueError if no sink is kept or the scores are not numbers.
    """
    if sinks < 1:
        raise ValueError("before_prefill needs a first token that is always kept")
    assert method.selection.across != "model", "plan() refuses budgets that layers share"
    watch = Stopwatch(backbone.device)
    with watch.timing("all"):
        cache = _run(backbone, context_ids, method, target, sinks, watch)
    seconds = watch.seconds()
    return SparsePrefill(cache, seconds["all"] - seconds["scoring"], seconds["scoring"])


def _run(
    backbone: Backbone, context_ids: list[int], method: IndexerScores, target: float, sinks: int, watch: Stopwatch
) -> RowCache:
    decoder = backbone.model.get_decoder()
    hidden_LD = decoder.embed_tokens(torch.tensor(context_ids, device=backbone.device))
    positions_1L = torch.arange(len(context_ids), device=backbone.device)[None]
    cos_Lr, sin_Lr = (table[0] for table in decoder.rotary_emb(hidden_LD[None], positions_1L))
    keys, values, kept, indexer_keys = [], [], [], {}
    choice = Kept(torch.empty(0))
    for number, layer in enumerate(decoder.layers):
        input_LD = layer.input_layernorm(hidden_LD)
        query_pre_QLd = attention_inputs(layer.self_attn, "q", input_LD)
        with watch.timing("scoring"):
            found = _choose(method, number, input_LD, query_pre_QLd, target, sinks)
        if found is not None:  # else the layer shares the choice of the one before
            choice, indexer_keys[number] = found
        kept_HK = choice.positions_HK
        key_HKd, value_HKd = _kept_keys_and_values(layer.self_attn, input_LD, kept_HK, cos_Lr, sin_Lr)
        query_QLd = rotate(query_pre_QLd, cos_Lr, sin_Lr)
        seen_HK = _each_once(choice, len(context_ids))
        output_LQd = attend_to_kept(query_QLd, key_HKd, value_HKd, seen_HK, layer.self_attn.scaling)
        hidden_LD = hidden_LD + layer.self_attn.o_proj(output_LQd.flatten(1))
        hidden_LD = hidden_LD + layer.mlp(layer.post_attention_layernorm(hidden_LD))
        keys.append(key_HKd)
        values.append(value_HKd)
        kept.append(choice)
    positions = [layer.positions_HK for layer in kept]
    counts_H = [layer.counts_H for layer in kept if layer.counts_H is not None] or None
    return RowCache(
        *(keys, values, positions, counts_H),
        indexer_bytes=method.indexer_bytes(lengths_of(positions, counts_H), keys[0].element_size()),
        indexer_keys=indexer_keys,
        holds_kept_only=True,
    )


def _choose(
    method: IndexerScores, layer: int, input_LD: Tensor, query_pre_QLd: Tensor, target: float, sinks: int
) -> tuple[Kept, IndexerKeys] | None:
    """What a layer keeps, and its indexer keys; None in a layer without an indexer of its own."""
    indexer = method.indexers.owned_by(layer)
    if indexer is None:
        return None
    features = indexer.features(input_LD[None], query_pre_QLd[None].float())
    lengths_B = torch.tensor([input_LD.shape[0]], device=input_LD.device)
    scores_HL = indexer.importance(features, lengths_B)[0].expand(method.indexers.geometry.kv_heads, -1)
    if has_nan(scores_HL):
        raise nan_error()
    ranking_HL = method.selection.rank(scores_HL, sinks)
    (kept,) = method.selection.choose([ranking_HL], input_LD.shape[0], target)
    return kept, indexer.keys(features)


def _each_once(kept: Kept, length: int) -> Tensor:
    """Kept positions; where a head repeats its last one, a position after all queries, which none of them sees."""
    if kept.counts_H is None:
        return kept.positions_HK
    column_K = torch.arange(kept.positions_HK.shape[1], device=kept.positions_HK.device)
    return kept.positions_HK.masked_fill(column_K >= kept.counts_H[:, None], length)


def _kept_keys_and_values(
    module: nn.Module, input_LD: Tensor, kept_HK: Tensor, cos_Lr: Tensor, sin_Lr: Tensor
) -> tuple[Tensor, Tensor]:
    """K after RoPE and V, [H, K, d] each, projected for tokens that some head keeps and for no others."""
    union_U, column = kept_HK.unique(return_inverse=True)
    input_UD = input_LD[union_U]
    key_HUd = rotate(attention_inputs(module, "k", input_UD), cos_Lr[union_U], sin_Lr[union_U])
    value_HUd = attention_inputs(module, "v", input_UD)
    index_HKd = column[..., None].expand(-1, -1, key_HUd.shape[-1])
    return key_HUd.gather(1, index_HKd), value_HUd.gather(1, index_HKd)
