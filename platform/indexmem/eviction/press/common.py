"""What our presses have in common: which tokens stay, and whether a checkpoint fits the model.

Shapes: B batch, H KV heads, L context tokens, K kept tokens, d head_dim.
"""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from indexmem.errors import UserError
from indexmem.eviction.checkpoint import size_differences
from indexmem.eviction.ranking import keep, rank
from indexmem.eviction.selection import tokens_left
from indexmem.models.geometry import Geometry


def keep_best(scores_BHL: Tensor, ratio: float, n_sink: int = 0) -> Tensor:
    """Positions [B, H, K] that stay when a fraction `ratio` is evicted, ascending, the first `n_sink` among them."""
    ranking = rank(scores_BHL.flatten(0, 1), n_sink)
    return keep(ranking, tokens_left(scores_BHL.shape[-1], ratio)).unflatten(0, scores_BHL.shape[:2])


def take(x_BHLd: Tensor, kept_BHK: Tensor) -> Tensor:
    """The kept tokens' rows [B, H, K, d]."""
    return x_BHLd.gather(2, kept_BHK[..., None].expand(-1, -1, -1, x_BHLd.shape[-1]))


def check_fits(trained: Geometry, model: PreTrainedModel) -> None:
    """Raise UserError that lists every size in which the model differs from the one that modules were trained for."""
    if differences := size_differences(trained, Geometry.of(model.config)):
        raise UserError(
            f"The press was trained for another model ({differences}). "
            "Use the model that its checkpoint names, or distil for this one."
        )
