"""Slow, dense, obvious versions of the fast paths, in fp64: the oracles of the tests. Written from the equations.

Shapes as in indexer.py; everything is a loop or an explicit L x L matrix, and padding is cut off before anything else.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from indexmem.eviction.indexer import ACTIVATIONS, NORM_EPS, Indexer
from indexmem.eviction.methods.running_mean import EPS


def dense_scores(indexer: Indexer, hidden_LD: Tensor, query_pre_QLd: Tensor) -> Tensor:
    """A [G, L, L] of one sequence, above the diagonal -inf (paper section 3.1)."""
    shape, length = indexer.shape, hidden_LD.shape[0]
    act = ACTIVATIONS[shape.activation]
    hidden = hidden_LD.double()
    flat = query_pre_QLd.double().transpose(0, 1).reshape(length, -1)
    q = (flat @ indexer.q_proj.weight.double().T).view(length, shape.rows, shape.heads, shape.dim)
    k = hidden @ indexer.k_proj.weight.double().T
    alpha = (hidden @ indexer.gate.weight.double().T).view(length, shape.rows, shape.heads)
    alpha = alpha / (shape.heads * shape.dim) ** 0.5
    q = q / (q.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
    k = k / (k.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
    z_GHST = act(torch.einsum("sghi,ti->ghst", q, k))
    scores_GST = torch.einsum("sgh,ghst->gst", alpha, z_GHST)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores_GST.masked_fill(future, float("-inf"))


def dense_importance(indexer: Indexer, hidden_LD: Tensor, query_pre_QLd: Tensor) -> Tensor:
    """imp [G, L] = max over queries, through autograd's own max, and what the token alone says."""
    importance_GL = torch.zeros(indexer.shape.rows, hidden_LD.shape[0], dtype=torch.float64)
    if indexer.shape.pair_term:
        importance_GL = importance_GL + dense_scores(indexer, hidden_LD, query_pre_QLd).max(dim=1).values
    if indexer.shape.token_term:
        importance_GL = importance_GL + dense_token_term(indexer, hidden_LD)
    return importance_GL


def dense_token_term(indexer: Indexer, hidden_LD: Tensor) -> Tensor:
    """W_2 silu(W_1 x + b_1) + b_2 [G, L]."""
    weights = {name: weight.double() for name, weight in indexer.token.named_parameters()}
    inner_Lw = hidden_LD.double() @ weights["0.weight"].T + weights["0.bias"]
    outer_LG = inner_Lw / (1 + (-inner_Lw).exp()) @ weights["2.weight"].T + weights["2.bias"]
    return outer_LG.T


def dense_target(query_QLd: Tensor, key_HLd: Tensor, scale: float, *, rows: int, source: str, heads: str) -> Tensor:
    """Pooled teacher [rows, L]: max over queries, after reducing the query heads of each score row."""
    per_kv_head = query_QLd.shape[0] // key_HLd.shape[0]
    key_QLd = key_HLd.double().repeat_interleave(per_kv_head, dim=0)
    logits_QST = query_QLd.double() @ key_QLd.transpose(1, 2) * scale
    future = torch.ones(logits_QST.shape[-2:], dtype=torch.bool).triu(1)
    logits_QST = logits_QST.masked_fill(future, float("-inf"))
    if source == "logprobs":
        logits_QST = logits_QST.log_softmax(dim=-1)
    return _pooled(logits_QST, rows, heads)


def dense_reread_target(
    query_QWd: Tensor, key_HCd: Tensor, scale: float, *, rows: int, heads: str, lse_QW: Tensor | None
) -> Tensor:
    """Pooled teacher [rows, C] of one chunk and what is read when it is repeated; logits if lse is None."""
    per_kv_head = query_QWd.shape[0] // key_HCd.shape[0]
    key_QCd = key_HCd.double().repeat_interleave(per_kv_head, dim=0)
    logits_QWC = query_QWd.double() @ key_QCd.transpose(1, 2) * scale
    if lse_QW is not None:
        logits_QWC -= lse_QW.double()[..., None]
    return _pooled(logits_QWC, rows, heads)


def _pooled(logits_QST: Tensor, rows: int, heads: str) -> Tensor:
    """Maximum over queries, after reducing the query heads of each score row."""
    grouped = logits_QST.reshape(rows, -1, *logits_QST.shape[-2:])
    reduced = grouped.max(dim=1).values if heads == "max" else grouped.mean(dim=1)
    return reduced.max(dim=1).values


def dense_kl(target_T: Tensor, importance_T: Tensor, sinks: int) -> Tensor:
    """KL( softmax(target) || softmax(importance) ) over the non-sink keys of one score row."""
    log_p = target_T[sinks:].double().log_softmax(-1)
    log_q = importance_T[sinks:].double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum()


def dense_attention(query_QLd: Tensor, key_HTd: Tensor, value_HTd: Tensor, mask_LT: Tensor, scale: float) -> Tensor:
    """softmax(q k^T scale + mask) v, head by head: [Q, L, d]."""
    group = query_QLd.shape[0] // key_HTd.shape[0]
    outputs = []
    for head, query_Ld in enumerate(query_QLd.double()):
        logits = query_Ld @ key_HTd[head // group].double().T * scale
        outputs.append(logits.masked_fill(~mask_LT, float("-inf")).softmax(-1) @ value_HTd[head // group].double())
    return torch.stack(outputs)


def slow_probabilities(scores_L: Tensor, probability: str, temperature: float) -> list[float]:
    """p of one layer: `softmax` at a temperature, or `negonly` (L1, shifted only if negative)."""
    scores = scores_L.double().tolist()
    if probability == "softmax":
        weights = [math.exp(s / temperature - max(s / temperature for s in scores)) for s in scores]
        return [w / sum(weights) for w in weights]
    shifted = [s - min(scores) if min(scores) < 0 else s for s in scores]
    return [s / (sum(shifted) + EPS) for s in shifted]


def slow_entropy(p_L: list[float]) -> float:
    """-sum p log(p + eps) / log T of one layer; what eps puts outside [0, 1] is cut off."""
    return min(1.0, max(0.0, -sum(p * math.log(p + EPS) for p in p_L) / math.log(len(p_L))))


def slow_gated_mean(scores_NL: Tensor, passed: list[bool], delta: float) -> list[float]:
    """sum_l a_l s_l / (sum_l a_l + delta), token by token."""
    layers = [layer for layer, takes_part in zip(scores_NL.double().tolist(), passed) if takes_part]
    return [sum(layer[t] for layer in layers) / (len(layers) + delta) for t in range(scores_NL.shape[1])]
