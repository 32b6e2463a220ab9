"""Head-wise budgets and output-aware ranking on top of any scorer: AdaKV, CriticalKV and both together.

Stored of a layer are the scores that decide, so every budget of a context is served by one scoring.
Shapes: B batch, H KV heads, g query heads per KV head, L context tokens, d head_dim, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.kept import Kept, ragged
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.over_base import ByScoresOf
from indexmem.eviction.methods.params import MethodParams
from indexmem.eviction.ranking import best_of_all, comparable, two_stages
from indexmem.eviction.selection import Selection, Shared, whole_tokens
from indexmem.models.attention import LayerTap, output_weight

ZeroToOne = Annotated[float, Field(ge=0, le=1)]
TOKEN_BLOCK = 4096  # tokens projected at once: bounds the product at TOKEN_BLOCK x D


class AdaKVConfig(MethodParams):
    """Parameters of `adakv`."""

    base: MethodConfig = Field(MethodConfig(name="snapkv"), description="whose scores: a name, or a method")
    alpha_safeguard: ZeroToOne = Field(0.2, description="share of an even budget that every head keeps in any case")


class CriticalKVConfig(MethodParams):
    """Parameters of `criticalkv`."""

    base: MethodConfig = Field(MethodConfig(name="snapkv"), description="whose scores: a name, or a method")
    epsilon: Annotated[float, Field(ge=0)] = Field(1e-4, description="added to the scores of the second stage")
    first_stage_ratio: ZeroToOne = Field(0.5, description="share of the budget that goes by the scores alone")


class CriticalAdaKVConfig(CriticalKVConfig):
    """Parameters of `critical_adakv`."""

    alpha_safeguard: ZeroToOne = Field(0.2, description="share of an even budget that every head keeps in any case")


class AdaKV(ByScoresOf):
    """AdaKV (arXiv 2407.11550): the heads of a layer compete for its budget with the scores of `base`.

    A layer keeps H int(target) pairs of head and token. Each head's best `alpha_safeguard int(target)` are safe, one at
    least; the rest goes to the best of all heads.
    """

    def __init__(self, base: EvictionMethod, config: AdaKVConfig) -> None:
        """Raises UserError for a base that is more than a scorer, or has no scores of single heads."""
        super().__init__(base, config.base)
        _refuse_equal_heads(base, self.base_label)
        self.last_queries = base.last_queries
        self.selection = WholeTokens("layer", config.alpha_safeguard)


@dataclass(frozen=True)
class WholeTokens(Shared):
    """A layer's heads share H int(target) pairs: the authors' rounding."""

    def mark(self, ranking_XL: Tensor, tokens: int, target: float) -> Tensor:
        return _compete(ranking_XL, whole_tokens(target, tokens), self.floor)


class CriticalKV(ByScoresOf):
    """CriticalKV (arXiv 2502.03805): what a token writes to the output counts, not only how much it is attended to.

        score'[t] = (score[t] + epsilon) mean_g || W_O,g v_t ||_1

    A head keeps its best `first_stage_ratio target` tokens by `score`, one at least, and the others by `score'`.
    """

    def __init__(self, base: EvictionMethod, config: CriticalKVConfig) -> None:
        """Raises UserError for a base that is more than a scorer."""
        super().__init__(base, config.base)
        self.epsilon = config.epsilon
        self.selection: Selection = TwoStages(first_stage=config.first_stage_ratio)

    def score(self, tap: LayerTap) -> Tensor:
        """Both stages' scores, [B, 2, H, L]."""
        first_BHL = self.base.score(tap).float()
        return torch.stack((first_BHL, (first_BHL + self.epsilon) * output_norms(tap)), dim=1)


class CriticalAdaKV(CriticalKV):
    """CriticalAdaKV (arXiv 2502.03805): AdaKV's number of tokens for each head, CriticalKV's choice within it."""

    def __init__(self, base: EvictionMethod, config: CriticalAdaKVConfig) -> None:
        """Raises UserError for a base that is more than a scorer, or has no scores of single heads."""
        super().__init__(base, config)
        _refuse_equal_heads(base, self.base_label)
        self.selection = AdaTwoStages(first_stage=config.first_stage_ratio, safeguard=config.alpha_safeguard)


@dataclass(frozen=True)
class TwoStages(Selection):
    """A share of each head's tokens by the first scores, the others by the second."""

    first_stage: float = 0.5

    def rank(self, scores_2HL: Tensor, sinks: int) -> Tensor:
        return comparable(scores_2HL, sinks, assume_no_nan=True)

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        even = whole_tokens(target, tokens)
        return [self.of_scores(first_HL, second_HL, even, target) for first_HL, second_HL in rankings]

    def of_scores(self, first_HL: Tensor, second_HL: Tensor, even: int, target: float) -> Kept:
        """What a layer keeps by its two scores; `even`: the budget of a head in whole tokens."""
        sure = _at_least_one(int(target * self.first_stage), self.first_stage)
        counts_H = torch.full((len(first_HL),), even, device=first_HL.device)
        # All heads keep as many: positions alone tell them.
        return Kept(ragged(two_stages(first_HL, second_HL, counts_H.clamp(max=sure), counts_H)).positions_HK)


@dataclass(frozen=True)
class AdaTwoStages(TwoStages):
    """As many tokens of each head as AdaKV's."""

    safeguard: float = 0.2

    def of_scores(self, first_HL: Tensor, second_HL: Tensor, even: int, target: float) -> Kept:
        counts_H = _compete(first_HL, even, self.safeguard).sum(dim=1)
        safe = _at_least_one(int(even * self.safeguard), self.safeguard)
        sure_H = (counts_H * self.first_stage).long().clamp(min=safe)
        return ragged(two_stages(first_HL, second_HL, sure_H, counts_H))


def output_norms(tap: LayerTap) -> Tensor:
    """|| W_O,h v_t ||_1 of each value through its query heads' part of the output projection, their mean [B, H, L]."""
    heads, head_dim = tap.value_BHLd.shape[1], tap.value_BHLd.shape[-1]
    weight_HgdD = output_weight(tap.module).T.unflatten(0, (heads, -1, head_dim))
    blocks = []
    for value_BHTd in tap.value_BHLd.split(TOKEN_BLOCK, dim=2):
        norms_BHTg = value_BHTd.new_empty((*value_BHTd.shape[:3], weight_HgdD.shape[1]), dtype=torch.float32)
        for head, group in torch.cartesian_prod(*map(torch.arange, weight_HgdD.shape[:2])).tolist():
            product_BTD = value_BHTd[:, head] @ weight_HgdD[head, group]
            norms_BHTg[:, head, :, group] = product_BTD.norm(p=1, dim=-1, dtype=torch.float32)
        blocks.append(norms_BHTg.mean(dim=-1))
    return torch.cat(blocks, dim=2)


def _compete(scores_HL: Tensor, even: int, alpha: float) -> Tensor:
    """Mark the best H x `even` pairs; `alpha even` of each head are safe."""
    # One token of each head is kept even with alpha = 0: a head without tokens has nothing to attend to.
    return best_of_all(scores_HL, scores_HL.shape[-2] * even, floor=max(1, int(even * alpha)))


def _at_least_one(count: int, share: float) -> int:
    """A share of a short context is one token at least, unless there is none to take."""
    return max(1, count) if share > 0 else 0


def _refuse_equal_heads(base: EvictionMethod, label: str) -> None:
    if not base.per_head:
        raise UserError(
            f"base '{label}' gives all KV heads of a layer the same scores, so there is nothing to share out; "
            "use one that scores heads apart, such as 'snapkv' (or an indexer of scope kv_head)"
        )
