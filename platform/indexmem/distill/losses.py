"""The distillation objectives: importance against a target of log attention weights (or, for `kl`, of logits).

`kl` compares distributions over a head's tokens and is blind to a head's level: adding a number to all of its scores
changes nothing. `bce` and `mse` compare each score by itself, so that one of a head which attends to nothing in
particular is lower than one of a head which retrieves, in any layer: only such scores can share a budget.
Shapes: B batch, G score rows, T keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.eviction.streaming import NEG_INF

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # (target, importance, lengths, sinks) -> [B]

RARE = (
    4.0  # a score of 0 then means a weight of 1.8 %: most tokens are never attended to, and training starts near that
)
FAINT = -14.0  # log weights below count as this: one in a million is nothing


def importance_kl(target_BGT: Tensor, importance_BGT: Tensor, lengths_B: Tensor, sinks: int) -> Tensor:
    """KL( softmax_t(target) || softmax_t(importance) ), mean over score rows: [B] (paper section 3.1, Training).

    Sink positions (the first `sinks`) and padding are masked out of both distributions, exactly, over the whole
    sequence. A sequence with no key left contributes 0.
    """
    positions = torch.arange(target_BGT.shape[-1], device=target_BGT.device)
    valid_B1T = ((positions >= sinks) & (positions < lengths_B[:, None]))[:, None]
    log_p = target_BGT.masked_fill(~valid_B1T, NEG_INF).log_softmax(-1)
    log_q = importance_BGT.masked_fill(~valid_B1T, NEG_INF).log_softmax(-1)
    # 0 * (-inf - -inf) at masked keys would be NaN, in the gradient too: choose before multiplying.
    gap = torch.where(valid_B1T, log_p, 0.0) - torch.where(valid_B1T, log_q, 0.0)
    kl_BG = torch.where(valid_B1T, log_p.exp() * gap, 0.0).sum(-1)
    return torch.where(valid_B1T.any(-1), kl_BG, 0.0).mean(-1)


def importance_bce(target_BGT: Tensor, importance_BGT: Tensor, lengths_B: Tensor, sinks: int) -> Tensor:
    """Binary cross-entropy of the attention weight exp(target) and sigmoid(importance - 4), mean over keys: [B]."""
    weight_BGT = target_BGT.exp().clamp(max=1.0)  # 0 at padding
    each_BGT = F.binary_cross_entropy_with_logits(importance_BGT - RARE, weight_BGT, reduction="none")
    return _mean_over_keys(each_BGT, lengths_B, sinks)


def importance_mse(target_BGT: Tensor, importance_BGT: Tensor, lengths_B: Tensor, sinks: int) -> Tensor:
    """Squared error of the log attention weight, at least -14, mean over keys: [B]."""
    return _mean_over_keys((importance_BGT - target_BGT.clamp(min=FAINT)).square(), lengths_B, sinks)


def _mean_over_keys(each_BGT: Tensor, lengths_B: Tensor, sinks: int) -> Tensor:
    """Mean over score rows and keys that are neither sinks nor padding; 0 where there is none."""
    positions = torch.arange(each_BGT.shape[-1], device=each_BGT.device)
    counts_B1T = ((positions >= sinks) & (positions < lengths_B[:, None]))[:, None]
    keys_B = (lengths_B - sinks).clamp(min=1) * each_BGT.shape[1]
    return torch.where(counts_B1T, each_BGT, 0.0).sum((1, 2)) / keys_B


LOSSES: Mapping[str, Loss] = MappingProxyType({"kl": importance_kl, "bce": importance_bce, "mse": importance_mse})
