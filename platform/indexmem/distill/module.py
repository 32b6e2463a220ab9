"""What DDP wraps: the trainable indexers, and the frozen backbone that teaches them.

One frozen forward pass; in each layer the tap computes that layer's loss from what its attention sees. Losses are
local: nothing is back-propagated through the backbone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from indexmem.config.schema import TargetConfig
from indexmem.distill.losses import importance_kl
from indexmem.distill.targets import pooled_target, target_scale
from indexmem.eviction.indexer import IndexerStack
from indexmem.models.attention import LayerTap, tapping
from indexmem.models.backbone import Backbone


class DistillModule(nn.Module):
    """forward(ids, lengths) -> loss of each layer [layers]."""

    def __init__(self, backbone: Backbone, indexers: IndexerStack, target: TargetConfig) -> None:
        super().__init__()
        self.indexers = indexers
        self.target = target
        # In a tuple, not a submodule: DDP then neither broadcasts nor buckets the frozen weights, and state_dict()
        # holds only what is trained.
        self._frozen = (backbone,)

    def forward(self, ids_BL: Tensor, lengths_B: Tensor) -> Tensor:
        """Mean KL over the batch for every layer. ids are right-padded; lengths count real tokens."""
        (backbone,) = self._frozen
        losses: list[Tensor] = []
        rows = self.indexers.shape.rows

        def visit(tap: LayerTap) -> None:
            scale = target_scale(self.target, tap.scaling, self.indexers.geometry.attention_width)
            target_BGT = pooled_target(
                tap.query_BQLd, tap.key_BHLd, lengths_B, rows=rows, scale=scale, config=self.target
            )
            with torch.enable_grad():
                importance_BGT = self.indexers[tap.layer](tap.hidden_BLD, tap.query_pre_BQLd, lengths_B)
                losses.append(importance_kl(target_BGT, importance_BGT, lengths_B, self.target.sinks).mean())

        with torch.no_grad(), tapping(backbone.model, visit) as kwargs:
            backbone.model.get_decoder()(ids_BL, use_cache=False, **kwargs)
        return torch.stack(losses)
