"""Locret's training (arXiv 2410.01805): regression of each token's causal importance.

    target[t] = max over s >= t, and over the query heads of a KV head's group, of q_s . k_t / sqrt(d)     (after RoPE)
    loss      = smooth_l1(predicted, target) + alpha * (predicted[t] - predicted[t+1])^2,   means over real tokens

The paper takes the maximum over the queries of an answer only. Plain text has no answer: where it is read twice (target
source `reconstruction`), the second reading stands for it; else every later query counts, and the token's own. Sinks
are part of the regression, as in the paper.

Shapes: B batch, H KV heads, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.config.modules import TargetConfig
from indexmem.config.schema import Experiment
from indexmem.distill.targets import pooled_target, reconstruction_target
from indexmem.distill.trainees.base import StepContext, Trainee
from indexmem.eviction.methods.locret import LOCRET, LocretShape, LocretStack
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry

SMOOTHING = 2.5e-3  # alpha of the paper
TARGET = TargetConfig(
    source="logits", loss="kl", scale="head", heads="max", sinks=0
)  # Locret always has this target; the spec's `target` is the indexer's


def retention_loss(predicted_BHT: Tensor, target_BHT: Tensor, lengths_B: Tensor, smoothing: float) -> Tensor:
    """Scalar: mean smooth-L1 (beta 1) over real tokens + `smoothing` * mean squared step between real neighbours."""
    positions_T = torch.arange(target_BHT.shape[-1], device=target_BHT.device)
    real_BHT = (positions_T < lengths_B[:, None])[:, None].expand_as(target_BHT)
    # Padded targets are -inf: choose before subtracting, or the gradient is NaN.
    regression = F.smooth_l1_loss(predicted_BHT[real_BHT], target_BHT[real_BHT])
    pairs_BHT = real_BHT[..., 1:]
    steps = predicted_BHT.diff(dim=-1).square()
    return regression + smoothing * torch.where(pairs_BHT, steps, 0.0).sum() / pairs_BHT.sum().clamp(min=1)


class LocretTrainee(Trainee):
    name = LOCRET

    def __init__(self, experiment: Experiment, geometry: Geometry) -> None:
        super().__init__()
        self.heads = LocretStack(LocretShape(experiment.distill.locret_hidden), geometry)

    @property
    def trained(self) -> LocretStack:
        return self.heads

    def layer_loss(self, tap: LayerTap, lengths_B: Tensor, step: StepContext) -> Tensor:
        rows, scale = self.heads.geometry.kv_heads, tap.scaling
        if tap.again is not None:
            target_BHT = reconstruction_target(tap.again, tap.key_BHLd, rows=rows, scale=scale, normalised=False)
        else:
            target_BHT = pooled_target(tap.query_BQLd, tap.key_BHLd, lengths_B, rows=rows, scale=scale, config=TARGET)
        with torch.enable_grad():
            return retention_loss(self.heads.predict(tap), target_BHT, lengths_B, SMOOTHING)
