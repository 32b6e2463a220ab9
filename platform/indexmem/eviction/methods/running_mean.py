"""Running mean: a base's scores averaged over the layers that pass a gate; every layer keeps the same tokens.

From the paper's appendix "Cross-layer Score Redundancy and Index Reuse":

    mean          sbar = 1/N sum_l s_l
    gated mean    sbar = sum_l a_l s_l / (sum_l a_l + delta),   a_l = 1 where layer l passes the gate, else 0
    softmax       p_t = exp(s_t / tau) / sum_j exp(s_j / tau)
    negonly       p_t = u_t / (sum_j u_j + eps),   u = s - min s if min s < 0, else s
    entropy       H = -sum_t p_t log(p_t + eps) / log T,   in [0, 1]

A gate compares one statistic of a layer's distribution with a threshold gamma. The paper names its peak gates without
a formula; here the peak of a layer is max_t p_t. Rows of the paper's table -> gate: layer_mean -> none, ent_skip_high
-> entropy_skip_high, ent_skip_low -> entropy_skip_low, peak_gate -> peak, peak_gate_keephigh -> peak_keep_high.
Computed in fp64 (N x L numbers a context), so that neither the threshold nor the mean is decided by rounding.
Shapes: N layers, B batch, H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from indexmem.config.schema import MethodConfig
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.over_base import ByScoresOf
from indexmem.eviction.methods.params import MethodParams

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
class LayerGate:
    """Which layers take part in the mean."""

    statistic: Callable[[Tensor], Tensor]  # p [N, L] -> [N], each in [0, 1]
    passes: Callable[[Tensor, float], Tensor]  # (statistic, gamma) -> bool [N]


# Skip-high keeps H <= gamma, skip-low keeps H >= gamma. The two peak gates are opposites in the same way: what
# `peak_keep_high` says by its name (keep peak >= gamma) leaves peak <= gamma for the plain one.
GATES: Mapping[str, LayerGate] = MappingProxyType(
    {
        "entropy_skip_high": LayerGate(normalised_entropy, torch.le),
        "entropy_skip_low": LayerGate(normalised_entropy, torch.ge),
        "peak": LayerGate(peak, torch.le),
        "peak_keep_high": LayerGate(peak, torch.ge),
    }
)


def gated_mean(scores_NL: Tensor, passed_N: Tensor, delta: float) -> Tensor:
    """sum_l a_l s_l / (sum_l a_l + delta): [L]; all 0 when no layer passed."""
    return scores_NL[passed_N].sum(dim=0) / (passed_N.to(scores_NL.dtype).sum() + delta)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
GATE_ONLY = frozenset({"gamma", "probability", "temperature", "delta", "sinks"})


class RunningMeanConfig(MethodParams):
    """Parameters of `running_mean`."""

    base: MethodConfig = Field(MethodConfig(name="expected_attention"), description="whose scores: a name, or a method")
    heads: Literal["mean", "max"] = Field("mean", description="reduction over a layer's KV heads")
    gate: Literal["none", "entropy_skip_high", "entropy_skip_low", "peak", "peak_keep_high"] = "none"
    gamma: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="the gate's threshold")
    probability: Literal["softmax", "negonly"] = Field("softmax", description="scores -> distribution")
    temperature: Positive = Field(1.0, description="tau of the softmax, in units of the scores")
    delta: Positive = Field(1e-8, description="added to the number of layers that pass")
    sinks: Annotated[int, Field(ge=0)] = Field(
        4, description="leading tokens that the gate does not look at; 0: all tokens (paper)"
    )

    @model_validator(mode="after")
    def _everything_applies(self) -> RunningMeanConfig:
        idle = sorted(self.model_fields_set & GATE_ONLY) if self.gate == "none" else []
        if idle:
            raise ValueError(f"{', '.join(idle)} has no effect without a gate; set gate to one of {', '.join(GATES)}")
        if self.gate != "none" and self.gamma is None:
            raise ValueError(f"gate '{self.gate}' needs a threshold gamma in [0, 1], for example gamma: 0.9")
        if self.probability == "negonly" and "temperature" in self.model_fields_set:
            raise ValueError("temperature belongs to probability 'softmax'; with 'negonly' it would have no effect")
        return self


class RunningMean(ByScoresOf):
    """Scores by `base`, ranks by the (gated) mean over layers, gives every layer and head the same ranking.

    The gate leaves the first `sinks` tokens out of its distribution: they are kept in any case, and scorers that
    protect them (ExpectedAttention gives them its maximum + 1) would otherwise have only that protection measured.
    """

    cross_layer = True

    def __init__(self, base: EvictionMethod, config: RunningMeanConfig) -> None:
        """Raises UserError for a base that is more than a scorer."""
        super().__init__(base, config.base)
        self.config = config
        if config.gate != "none":
            self.min_context = max(base.min_context, config.sinks + 1)

    def combine(self, scores_HL: Sequence[Tensor]) -> list[Tensor]:
        """One [L] row for all layers and heads. Raises ValueError for scores that have no mean or no distribution.

        Warns when the gate leaves out every layer: all scores are then 0, and tokens rank by position alone.
        """
        scores_NL = torch.stack([layer_scores(layer, self.config.heads) for layer in scores_HL])
        infinite = (~scores_NL.isfinite().all(dim=1)).nonzero().flatten().tolist()
        if infinite:
            raise ValueError(f"scores of base '{self.base_label}' are not finite in layers {infinite}")
        mean_L = scores_NL.mean(dim=0) if self.config.gate == "none" else self._gated(scores_NL)
        return [mean_L.expand_as(layer) for layer in scores_HL]

    def indexer_bytes(self, lengths: Sequence[Sequence[int]], element_size: int) -> int:
        return self.base.indexer_bytes(lengths, element_size)

    def _gated(self, scores_NL: Tensor) -> Tensor:
        config, gate = self.config, GATES[self.config.gate]
        assert config.gamma is not None
        seen_NL = scores_NL[:, config.sinks :]
        if seen_NL.shape[1] == 0:
            raise ValueError(f"a context of {scores_NL.shape[1]} tokens has none after the {config.sinks} sinks")
        softmax = config.probability == "softmax"
        p_NL = softmax_probabilities(seen_NL, config.temperature) if softmax else negonly_probabilities(seen_NL)
        statistic_N = gate.statistic(p_NL)
        passed_N = gate.passes(statistic_N, config.gamma)
        if not passed_N.any():
            # Rounded, so that Python shows a warning that repeats from context to context only once.
            low, high = statistic_N.min().item(), statistic_N.max().item()
            warnings.warn(
                f"running_mean of '{self.base_label}': gate {config.gate} with gamma={config.gamma} left out every "
                f"layer ({gate.statistic.__name__} from {low:.2f} to {high:.2f}); tokens are kept by position alone",
                RuntimeWarning,
                stacklevel=3,
            )
        return gated_mean(scores_NL, passed_N, config.delta)
