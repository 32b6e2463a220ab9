"""Cross-layer score aggregation (paper, appendix "Cross-layer Score Redundancy and Index Reuse").

    mean          sbar = 1/N sum_l s_l
    gated mean    sbar = sum_l a_l s_l / (sum_l a_l + delta),   a_l = 1 where layer l passes the gate, else 0
    softmax       p_t = exp(s_t / tau) / sum_j exp(s_j / tau)
    negonly       p_t = u_t / (sum_j u_j + eps),   u = s - min s if min s < 0, else s
    entropy       H = -sum_t p_t log(p_t + eps) / log T,   in [0, 1]

A gate compares one statistic of a layer's distribution with a threshold gamma. The paper names its peak gates without
a formula; here the peak of a layer is max_t p_t.
Computed in fp64 (N x L numbers a context), so that neither the threshold nor the mean is decided by rounding.
Shapes: N layers, H KV heads, L tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

EPS = 1e-12  # epsilon of the formulas above


def layer_scores(scores_HL: Tensor, heads: Literal["mean", "max"]) -> Tensor:
    """s_l [L], fp64: one layer's scores, reduced over its KV heads."""
    scores = scores_HL.double()
    return scores.mean(dim=0) if heads == "mean" else scores.amax(dim=0)


def softmax_probabilities(scores_NL: Tensor, temperature: float) -> Tensor:
    """p [N, L] by softmax; the maximum is subtracted before the division, so no temperature overflows."""
    return ((scores_NL - scores_NL.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)


def negonly_probabilities(scores_NL: Tensor) -> Tensor:
    """p [N, L] by L1 normalisation, shifted to a minimum of 0 only where a layer has negative scores.

    A layer whose scores are all 0 (after the shift: all equal) gives p = 0, hence entropy 0 and peak 0.
    """
    shifted = scores_NL - scores_NL.amin(dim=-1, keepdim=True).clamp(max=0.0)
    return shifted / (shifted.sum(dim=-1, keepdim=True) + EPS)


def normalised_entropy(p_NL: Tensor) -> Tensor:
    """H [N] in [0, 1] (epsilon's excess is cut off); 0 for a single token."""
    entropy_N = -(p_NL * (p_NL + EPS).log()).sum(dim=-1)
    return (entropy_N / math.log(max(p_NL.shape[-1], 2))).clamp(0.0, 1.0)


def peak(p_NL: Tensor) -> Tensor:
    """max_t p_t [N]: 1/L for a layer without preference, 1 for a layer that wants a single token."""
    return p_NL.amax(dim=-1)


@dataclass(frozen=True)
class Gate:
    """Which layers take part in the mean."""

    statistic: Callable[[Tensor], Tensor]  # p [N, L] -> [N], each in [0, 1]
    passes: Callable[[Tensor, float], Tensor]  # (statistic, gamma) -> bool [N]


# Skip-high keeps H <= gamma, skip-low keeps H >= gamma. The two peak gates are opposites in the same way: what
# `peak_keep_high` says by its name (keep peak >= gamma) leaves peak <= gamma for the plain one.
GATES: Mapping[str, Gate] = MappingProxyType(
    {
        "entropy_skip_high": Gate(normalised_entropy, torch.le),
        "entropy_skip_low": Gate(normalised_entropy, torch.ge),
        "peak": Gate(peak, torch.le),
        "peak_keep_high": Gate(peak, torch.ge),
    }
)


def gated_mean(scores_NL: Tensor, passed_N: Tensor, delta: float) -> Tensor:
    """sum_l a_l s_l / (sum_l a_l + delta): [L]; all 0 when no layer passed."""
    return scores_NL[passed_N].sum(dim=0) / (passed_N.to(scores_NL.dtype).sum() + delta)
