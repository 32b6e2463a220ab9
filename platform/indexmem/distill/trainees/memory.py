"""The memory's training: match what full attention would have said (paper section 3.2, L_mem).

A base method evicts from a context, at a ratio drawn for the step, and some tokens after it query what is left. Where a
text is read twice, the context is the first reading and the tokens are a piece of the second; else they are a window's
last ones.

    L = || o_full - o_fused ||^2 / max( || o_full - o_kept ||^2, 1e-4 || o_full ||^2 )

The paper's MSE, divided by its value without memory (no gradient through it): layers of any scale weigh the same, and
1 - L is the share of the eviction error that the memory removes.

Shapes: H KV heads, Q query heads, C context tokens, n query tokens, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from indexmem.config.modules import module_name
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.distill.trainees.base import StepContext, Trainee
from indexmem.errors import UserError
from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.attention import context_and_new, merge
from indexmem.eviction.memory.base import Evicted, LatentMemory, MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.learned import IndexerScores, selection_of
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.ranking import has_nan, nan_error
from indexmem.models.assets import modules_folder
from indexmem.models.attention import LayerTap, output_weight
from indexmem.models.geometry import Geometry
from indexmem.models.rereading import Reread

# Squared error, as a share of the output's square, below which evictions cost nothing: heads that share a budget keep
# almost all of what they attend to in some windows, which would weigh without limit.
SLIGHT = 1e-4
CONTEXT_SHARE = 0.75  # of a window shorter than four times distill.query_tokens


class MemoryTrainee(Trainee):
    """Memory for the evictions of one base method."""

    def __init__(
        self, experiment: Experiment, geometry: Geometry, base: str, indexers: IndexerStack | None, device: str
    ) -> None:
        super().__init__()
        self.name = module_name(base)
        self.memories = MemoryStack(MemoryShape.of(experiment.memory, geometry), geometry)
        self.config = experiment.distill
        self.sinks = experiment.eviction.sinks
        # In a tuple: the indexer is trained by its own trainee, at the same time.
        self._base = (_base_method(experiment, geometry, base, indexers, device),)

    @property
    def trained(self) -> MemoryStack:
        return self.memories

    def starts_at(self) -> int:
        return self.config.joint_from

    def layer_loss(self, tap: LayerTap, lengths_B: Tensor, step: StepContext) -> Tensor:
        memory: LatentMemory = self.memories[tap.layer]  # type: ignore[assignment]
        (base,) = self._base
        # Heads that share the model's budget leave some layers much and others little: each layer meets all ratios.
        of_layer = f"/{tap.layer}" if base.selection.across == "model" else ""
        ratio = step.uniform(*self.config.evict_ratios, of_layer)
        losses = []
        for length in lengths_B.unique().tolist():  # sequences of equal length go together
            rows_R = (lengths_B == length).nonzero().squeeze(1)
            alone = tap.rows(rows_R, length)
            if tap.again is None:
                context = max(length - self.config.query_tokens, int(length * CONTEXT_SHARE))
                scene = self.scene(alone, context, length - context, ratio)
            else:
                where = step.uniform(0, 1, "/piece")
                scene = self.scene(
                    *_with_piece(alone, tap.again, rows_R.tolist(), where, self.config.query_tokens), ratio
                )
            if scene is not None:
                losses.append(_loss(memory, scene))
        with torch.enable_grad():
            if not losses:
                return sum((p.sum() * 0.0 for p in memory.parameters()), start=tap.key_BHLd.new_zeros(()))
            return torch.stack(losses).sum() / len(lengths_B)

    def scene(self, tap: LayerTap, context: int, asked: int, ratio: float) -> Scene | None:
        """Evict from the first `context` tokens, attend from the last `asked`; None for contexts too short to score."""
        (base,) = self._base
        batch, heads = tap.key_BHLd.shape[:2]
        if context < max(base.min_context, 2 * self.sinks + 2):
            return None
        target = context * (1 - ratio)
        selection = base.selection.of_layer(tap.layer, self.memories.geometry.layers)
        leaves_BHC = torch.ones((batch, heads, context), dtype=torch.bool, device=tap.key_BHLd.device)
        for leaves_HC, scores_HC in zip(leaves_BHC, base.score(tap.prefix(context))):
            if has_nan(scores_HC):
                raise nan_error()
            (kept,) = selection.choose([selection.rank(scores_HC, self.sinks)], context, target)
            leaves_HC.scatter_(1, kept.positions_HK, False)
        held, new, lost = context_and_new(tap, context, asked, leaves_BHC)
        return Scene(tap, context, asked, leaves_BHC, merge(held, new, lost)[0], *merge(held, new))


@dataclass(frozen=True)
class Scene:
    """Windows of one length: what was evicted, and what attention says with and without it."""

    tap: LayerTap
    context: int
    asked: int
    leaves_BHC: Tensor
    full_BQnd: Tensor
    plain_BQnd: Tensor
    lse_BQn: Tensor  # of the plain output's softmax


def _with_piece(
    tap: LayerTap, again: Reread, documents: Sequence[int], where: float, asked: int
) -> tuple[LayerTap, int, int]:
    """Documents of one length and, after them, their second reading up to the end of a piece that asks.

    `where` in [0, 1) says which piece, of up to `asked` tokens. Returns how many tokens are context and how many ask.
    """
    of_each = [[row for row, chunk in enumerate(again.chunks) if chunk.document == document] for document in documents]
    number = int(where * len(of_each[0]))
    rows = [rows[number] for rows in of_each]
    chunk = again.chunks[rows[0]]
    inside = where * len(of_each[0]) - number
    asked = min(asked, chunk.stop - chunk.start)
    end = chunk.before + asked + int(inside * (chunk.stop - chunk.start - asked))
    index = torch.tensor(rows, device=tap.key_BHLd.device)
    joined = replace(
        tap,
        query_BQLd=torch.cat((tap.query_BQLd, again.query_RQWd[index, :, :end]), dim=2),
        key_BHLd=torch.cat((tap.key_BHLd, again.key_RHWd[index, :, :end]), dim=2),
        value_BHLd=torch.cat((tap.value_BHLd, again.value_RHWd[index, :, :end]), dim=2),
        cos_BLr=torch.cat((tap.cos_BLr.expand(len(rows), -1, -1), again.cos_RWr[index, :end]), dim=1),
        sin_BLr=torch.cat((tap.sin_BLr.expand(len(rows), -1, -1), again.sin_RWr[index, :end]), dim=1),
    )
    return joined, tap.key_BHLd.shape[2], asked


def _loss(memory: LatentMemory, scene: Scene) -> Tensor:
    """Relative squared error, summed over the windows."""
    tap, context = scene.tap, scene.context
    before = memory.shape.rotary == "pre"
    query_BQLd = tap.query_pre_BQLd if before else tap.query_BQLd
    memory.observe(query_BQLd[:, :, :context])
    evicted = Evicted(
        (tap.key_pre_BHLd if before else tap.key_BHLd)[:, :, :context],
        tap.value_BHLd[:, :, :context],
        scene.leaves_BHC,
        output_weight(tap.module) if memory.shape.value == "model" else None,
    )
    with torch.enable_grad():
        state = memory.write(None, evicted)
        readout = memory.read(state, query_BQLd[:, :, -scene.asked :], scene.plain_BQnd, scene.lse_BQn)
        missing, left = scene.full_BQnd - scene.plain_BQnd, scene.full_BQnd - readout.output_BQnd
        if readout.residual_BnD is not None:
            weight_DV = output_weight(tap.module).float()
            missing = missing.transpose(1, 2).flatten(2) @ weight_DV.T
            left = left.transpose(1, 2).flatten(2) @ weight_DV.T - readout.residual_BnD
        per_window = tuple(range(1, left.dim()))
        whole = scene.full_BQnd.square().sum((1, 2, 3)) * SLIGHT
        return (left.square().sum(per_window) / missing.square().sum(per_window).maximum(whole)).sum()


def _base_method(
    experiment: Experiment, geometry: Geometry, base: str, indexers: IndexerStack | None, device: str
) -> EvictionMethod:
    if base == "indexer" and indexers is not None:
        sections = {"indexer": experiment.indexer.model_dump(), "target": experiment.target.model_dump()}
        return IndexerScores(indexers, selection_of(None, experiment.indexer.floor, sections, indexers.shape))
    checkpoint = experiment.indexer.checkpoint
    folder = None if checkpoint is None else str(modules_folder(checkpoint))
    # Training evicts layer by layer and single tokens, however coarse the evaluation's sets are.
    context = replace(MethodContext.of(experiment, geometry, folder, device), granularity="head", block=1)
    method = make_method(MethodConfig(name=base), context)
    if method.own_pass:
        raise UserError(f"memory.bases: '{base}' reads a whole context again and cannot score windows; leave it out.")
    if method.cross_layer:
        raise UserError(
            f"memory.bases: '{base}' ranks by the scores of all layers, and training evicts layer by layer: a memory "
            "would learn of other tokens than those that are evicted. Leave it out, or name a method of its base."
        )
    return method
