"""The distillation objective. Shapes: B batch, G score rows, T keys."""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.eviction.streaming import NEG_INF


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
