"""The indexer's distillation: predicted importance against pooled attention (paper section 3.1, Training)."""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.config.modules import TargetConfig
from indexmem.config.schema import Experiment
from indexmem.distill.losses import LOSSES
from indexmem.distill.targets import pooled_target, reconstruction_target, target_scale
from indexmem.distill.trainees.base import StepContext, Trainee
from indexmem.eviction.indexer import INDEXER, IndexerShape, IndexerStack
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry


class IndexerTrainee(Trainee):
    name = INDEXER

    def __init__(self, experiment: Experiment, geometry: Geometry) -> None:
        super().__init__()
        self.indexers = IndexerStack(IndexerShape.of(experiment.indexer, geometry), geometry)
        self.target = experiment.target
        products = getattr(torch, experiment.distill.score_products)
        self._products = None if products == torch.float32 else products
        self._missed: list[Tensor] = []
        self._shared_BGT: Tensor | None = None  # importance that the layers of a sharing group are taught together

    @property
    def trained(self) -> IndexerStack:
        return self.indexers

    def layer_loss(self, tap: LayerTap, lengths_B: Tensor, step: StepContext) -> Tensor:
        target_BGT = self._target(tap, lengths_B)
        with torch.enable_grad():
            indexer = self.indexers.owned_by(tap.layer)
            if indexer is not None:
                features = indexer.features_of(tap)
                self._shared_BGT = indexer.importance(features, lengths_B, products=self._products)
            assert self._shared_BGT is not None, "layers are visited in order"
            self._missed.append(missed(target_BGT, self._shared_BGT.detach(), lengths_B, self.target.sinks))
            return LOSSES[self.target.loss](target_BGT, self._shared_BGT, lengths_B, self.target.sinks).mean()

    def measured(self) -> dict[str, float]:
        found, self._missed = torch.stack(self._missed), []
        return {"missed": found.mean().item()}

    def _target(self, tap: LayerTap, lengths_B: Tensor) -> Tensor:
        rows = self.indexers.shape.rows
        if self.target.source == "reconstruction":
            assert tap.again is not None, "texts are read twice"
            return reconstruction_target(tap.again, tap.key_BHLd, rows=rows, scale=tap.scaling, heads=self.target.heads)
        return pooled_target(
            tap.query_BQLd,
            tap.key_BHLd,
            lengths_B,
            rows=rows,
            scale=target_scale(self.target, tap.scaling, self.indexers.geometry.attention_width),
            config=self.target,
            lse_BQL=_row_lse(tap, self.target),
        )

    def goes_on(self, layer: int) -> bool:
        last = layer + 1 == self.indexers.geometry.layers
        return not last and self.indexers.owned_by(layer + 1) is None


def missed(target_BGT: Tensor, importance_BGT: Tensor, lengths_B: Tensor, sinks: int) -> Tensor:
    """Of the tenth of (row, token) pairs that the target ranks highest in a layer, the share ranked lower: [].

    Unlike a loss it is the same quantity whatever the loss is. Over the batch's pairs together, without sinks and
    padding.
    """
    position_T = torch.arange(target_BGT.shape[-1], device=target_BGT.device)
    counts_B1T = ((position_T >= sinks) & (position_T < lengths_B[:, None]))[:, None]
    wanted, given = (x.masked_fill(~counts_B1T, -torch.inf).flatten() for x in (target_BGT, importance_BGT))
    best = max(1, wanted.numel() // 10)
    found = torch.zeros_like(wanted, dtype=torch.bool).scatter_(0, given.topk(best).indices, True)
    return 1 - found[wanted.topk(best).indices].float().mean()


def _row_lse(tap: LayerTap, target: TargetConfig) -> Tensor | None:
    """What attention knows of the teacher's rows [B, Q, L], if they are at attention's own scale."""
    if target.source == "logits" or target.scale != "head" or tap.attended is None:
        return None
    return tap.attended[1]
