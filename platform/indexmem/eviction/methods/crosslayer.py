"""Running mean: any scorer's scores, averaged over the layers that pass a gate; every layer keeps the same tokens.

Rows of the paper's table -> gate: layer_mean -> none, ent_skip_high -> entropy_skip_high, ent_skip_low ->
entropy_skip_low, peak_gate -> peak, peak_gate_keephigh -> peak_keep_high (formulas: eviction/crosslayer.py).
Shapes: N layers, B batch, H KV heads, L context tokens, K kept tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from indexmem.config.schema import MethodConfig
from indexmem.eviction.crosslayer import GATES, gated_mean, layer_scores, negonly_probabilities, softmax_probabilities
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.params import Params
from indexmem.eviction.methods.wrapping import ByScoresOf

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
GATE_ONLY = frozenset({"gamma", "probability", "temperature", "delta", "sinks"})


class RunningMeanConfig(Params):
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
