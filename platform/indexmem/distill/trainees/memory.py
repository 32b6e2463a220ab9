"""The memory's training: match what full attention would have said (paper section 3.2, L_mem).

In each window the last tokens query a context that a base method has evicted from, at a ratio drawn for the step:

    L = || o_full - o_fused ||^2 / || o_full - o_kept ||^2

The paper's MSE, divided by its value without memory (no gradient through it): layers of any scale weigh the same, and
1 - L is the share of the eviction error that the memory removes.

Shapes: H KV heads, Q query heads, C context tokens, n query tokens, d head_dim,
X batch x KV heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.config.schema import Experiment, MethodConfig
from indexmem.distill.trainees.base import StepContext, Trainee
from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.attention import context_and_new, merge
from indexmem.eviction.memory.base import Evicted, LatentMemory, MemoryShape
from indexmem.eviction.memory.stack import MemoryStack, module_name
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.policy import keep, rank
from indexmem.models.attention import LayerTap, output_weight
from indexmem.models.geometry import Geometry

CONTEXT_SHARE = 0.75  # of a window shorter than four times distill.query_tokens


class MemoryTrainee(Trainee):
    """Memory for the evictions of one base method."""

    def __init__(self, experiment: Experiment, geometry: Geometry, base: str, indexers: IndexerStack | None) -> None:
        super().__init__()
        self.name = module_name(base)
        self.memories = MemoryStack(MemoryShape.of(experiment.memory, geometry), geometry)
        self.config = experiment.distill
        self.sinks = experiment.eviction.sinks
        # In a tuple: the indexer is trained by its own trainee, at the same time.
        self._base = (_base_method(experiment, geometry, base, indexers),)

    @property
    def trained(self) -> MemoryStack:
        return self.memories

    def starts_at(self) -> int:
        return self.config.joint_from

    def layer_loss(self, tap: LayerTap, lengths_B: Tensor, step: StepContext) -> Tensor:
        memory: LatentMemory = self.memories[tap.layer]  # type: ignore[assignment]
        ratio = step.uniform(*self.config.evict_ratios)
        losses = []
        for length in lengths_B.unique():  # sequences of equal length go together
            rows_R = (lengths_B == length).nonzero().squeeze(1)
            loss = self._loss(memory, tap.rows(rows_R, int(length)), ratio)
            if loss is not None:
                losses.append(loss)
        with torch.enable_grad():
            if not losses:
                return sum((p.sum() * 0.0 for p in memory.parameters()), start=tap.key_BHLd.new_zeros(()))
            return torch.stack(losses).sum() / len(lengths_B)

    def _loss(self, memory: LatentMemory, tap: LayerTap, ratio: float) -> Tensor | None:
        """Summed loss of sequences of one length; None when it is too short for the base method to score."""
        (base,) = self._base
        batch, heads, length = tap.key_BHLd.shape[:3]
        context = max(length - self.config.query_tokens, int(length * CONTEXT_SHARE))
        if context < max(base.min_context, 2 * self.sinks + 2):
            return None
        seen = tap.prefix(context)
        ranking_XC = rank(base.score(seen).flatten(0, 1), self.sinks)
        kept_XK = keep(ranking_XC, base.kept(context, ratio, tap.layer, self.memories.geometry.layers))
        leaves_XC = torch.ones_like(ranking_XC, dtype=torch.bool).scatter_(1, kept_XK, False)
        leaves_BHC = leaves_XC.unflatten(0, (batch, heads))
        kept, new, lost = context_and_new(tap, context, leaves_BHC)
        full_BQnd, _ = merge(kept, new, lost)
        plain_BQnd, lse_BQn = merge(kept, new)

        before = memory.shape.rotary == "pre"
        memory.observe((tap.query_pre_BQLd if before else tap.query_BQLd)[:, :, :context])
        evicted = Evicted(
            (seen.key_pre_BHLd if before else seen.key_BHLd),
            seen.value_BHLd,
            leaves_BHC,
            output_weight(tap.module) if memory.shape.value == "model" else None,
        )
        query = (tap.query_pre_BQLd if before else tap.query_BQLd)[:, :, context:]
        with torch.enable_grad():
            readout = memory.read(memory.write(None, evicted), query, plain_BQnd, lse_BQn)
            missing, left = full_BQnd - plain_BQnd, full_BQnd - readout.output_BQnd
            if memory.shape.value == "model":
                weight_DV = output_weight(tap.module).float()
                project = lambda x: x.transpose(1, 2).flatten(2) @ weight_DV.T  # noqa: E731
                missing, left = project(missing), project(left) - readout.residual_BnD
            per_sequence = tuple(range(1, left.dim()))
            return (left.square().sum(per_sequence) / missing.square().sum(per_sequence).clamp(min=1e-12)).sum()


def _base_method(
    experiment: Experiment, geometry: Geometry, base: str, indexers: IndexerStack | None
) -> EvictionMethod:
    if base == "indexer" and indexers is not None:
        return IndexerScores(indexers)
    context = MethodContext(geometry, checkpoint=experiment.indexer.checkpoint)
    return make_method(MethodConfig(name=base), context)
