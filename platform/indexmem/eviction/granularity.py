"""Coarser eviction: one set of tokens for each head, for each layer or for the model, in whole blocks of tokens.

A paged cache frees a page when nothing in it is needed any more. A page holds K and V of `block` consecutive tokens: of
one head, of all heads of a layer, or of all layers. A set's block is worth as much as its best (head, token) pair, so
what stays is what holds the best pairs.
Blocks are aligned to positions: block u holds the tokens from u b on, and the last one of a context may not be full.
Shapes: N layers, H KV heads of a layer, S sets of a layer, G groups of X sets that share a budget, L context tokens, T
cached tokens, U blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from indexmem.config.modules import Across
from indexmem.eviction.kept import Kept, ragged_layers
from indexmem.eviction.ranking import best_blocks, comparable, has_nan, nan_error
from indexmem.eviction.selection import GrownLayer, GrownLayers, PerHead, Shared, whole_pairs

COARSENESS: tuple[Across, ...] = ("head", "layer", "model")


@dataclass(frozen=True)
class SetsOfBlocks(Shared):
    """The best blocks of each set, or of all sets that share a budget: best first, until the next one does not fit.

    `across` is never finer than `granularity`, since the heads of a set spend one budget in any case. `floor` and
    `alike` are as in `Shared`, of sets instead of heads; a set keeps one block at least.
    """

    granularity: Across = field(default="head", kw_only=True)  # which heads hold the same tokens
    block: int = field(default=1, kw_only=True)

    @classmethod
    def of(cls, selection: PerHead | Shared, granularity: Across, block: int) -> SetsOfBlocks:
        """The same budgets, spent on sets and blocks. Sets with nothing to share have a budget of their own."""
        across = max(selection.across, granularity, key=COARSENESS.index)
        if not isinstance(selection, Shared):
            return cls(across, granularity=granularity, block=block)
        return cls(across, selection.floor, alike=selection.alike, granularity=granularity, block=block)

    @property
    def shares(self) -> bool:
        """Always: by the last block heads differ in any case, and layers of one set are chosen together."""
        return True

    @property
    def slack(self) -> float:
        return super().slack * self.block

    @property
    def step(self) -> int:
        return self.block

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """What each block is worth to the set of each head, [H, U]: one set of all heads unless each has its own."""
        scores_HL = comparable(scores_HL, sinks, assume_no_nan=True)
        block_L = torch.arange(scores_HL.shape[-1], device=scores_HL.device) // self.block
        worth_HU = _best_in_blocks(scores_HL, block_L.expand_as(scores_HL), -(-scores_HL.shape[-1] // self.block))
        return worth_HU if self.granularity == "head" else worth_HU.amax(dim=-2, keepdim=True).expand_as(worth_HU)

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        worth_NHU = torch.stack(list(rankings))
        size_U = torch.full(worth_NHU.shape[-1:], self.block, device=worth_NHU.device)
        size_U[-1] = tokens - self.block * (len(size_U) - 1)
        stays_NHU = self._mark_blocks(worth_NHU, size_U.expand_as(worth_NHU), target)
        return ragged_layers(stays_NHU.repeat_interleave(self.block, dim=-1)[..., :tokens])

    def choose_grown(self, grown: Sequence[GrownLayer], budget: int, always: int) -> list[Kept]:
        held = GrownLayers.of(grown)
        if has_nan(held.scores_NHT):
            raise nan_error()
        block_NHT = held.position_NHT // self.block
        scores_NHT = held.scores_NHT.masked_fill(~held.valid_NHT, float("-inf"))
        worth_NHU = _best_in_blocks(scores_NHT, block_NHT, int(block_NHT.max()) + 1)
        size_NHU = torch.zeros_like(worth_NHU, dtype=torch.long).scatter_add_(-1, block_NHT, held.valid_NHT.long())
        if self.granularity != "head":
            worth_NHU = worth_NHU.amax(dim=1, keepdim=True).expand_as(worth_NHU)
        stays_NHU = self._mark_blocks(worth_NHU, size_NHU, budget)
        return held.kept(stays_NHU.gather(-1, block_NHT) & held.valid_NHT)

    def _mark_blocks(self, worth_NHU: Tensor, size_NHU: Tensor, target: float) -> Tensor:
        """Which blocks stay of a budget of `target` tokens per head; `size`: tokens that they hold."""
        worth_NSU, size_NSU = worth_NHU, size_NHU
        if self.granularity != "head":
            worth_NSU, size_NSU = worth_NSU[:, :1], size_NSU[:, :1]
        if self.granularity == "model":
            worth_NSU, size_NSU = worth_NSU.amax(dim=0, keepdim=True), size_NSU[:1]
        layers, sets, blocks = worth_NSU.shape
        groups = {"head": (layers * sets, 1), "layer": (layers, sets), "model": (1, layers * sets)}[self.across]
        sharing = groups[1]
        total = max(sharing, whole_pairs(sharing * target))
        if total < sharing * int(size_NSU.amax()):
            raise ValueError(
                f"a budget of {target:,.1f} tokens per head holds no whole block of {int(size_NSU.amax())}: "
                "it takes a larger budget, or a smaller eviction.block"
            )
        marked_GXU = best_blocks(
            worth_NSU.reshape(*groups, blocks),
            size_NSU.reshape(*groups, blocks),
            total,
            floor=whole_pairs(self.floor * (total // sharing)),
        )
        return self.together(marked_GXU.view(layers, sets, blocks)).expand_as(worth_NHU)


def _best_in_blocks(scores_HL: Tensor, block_HL: Tensor, blocks: int) -> Tensor:
    """The highest score in each block, -inf where it holds no token: [..., U]."""
    worth_HU = scores_HL.new_full((*scores_HL.shape[:-1], blocks), float("-inf"))
    return worth_HU.scatter_reduce(-1, block_HL, scores_HL, "amax")
