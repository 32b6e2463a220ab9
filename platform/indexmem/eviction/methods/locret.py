"""Eviction by trained retention heads.

Shapes: B batch, H KV heads, L context tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from indexmem.errors import UserError
from indexmem.eviction.checkpoint import check_geometry, weights_hash
from indexmem.eviction.locret import NAME, LocretStack
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.models.attention import LayerTap


class Locret(EvictionMethod):
    """Locret (arXiv 2410.01805): keeps, per KV head, the tokens whose predicted importance is highest.

    `recent` tokens at the context's end rank before all others (after the sinks), the latest first: the local tokens
    that Locret always keeps. 0 by default, so that all methods obey the same rules.
    """

    def __init__(self, folder: str, context: MethodContext, recent: int = 0) -> None:
        """Raises UserError when the checkpoint is missing, fits another model or holds no retention heads."""
        if not isinstance(recent, int) or recent < 0:
            raise UserError(f"recent={recent!r} must be a number of tokens, 0 or more. Example: recent: 100")
        check_geometry(folder, context.geometry)
        self.heads = LocretStack.load(folder).to(context.device).eval().requires_grad_(False)
        self.checkpoint = weights_hash(folder, NAME)
        self.recent = recent

    @torch.no_grad()
    def score(self, tap: LayerTap) -> Tensor:
        scores_BHL = self.heads.predict(tap)
        length = scores_BHL.shape[-1]
        first = max(0, length - self.recent)
        above_all = scores_BHL.amax(dim=(-2, -1), keepdim=True) + 1  # in every head: heads may share a budget
        scores_BHL[..., first:] = above_all + torch.arange(length - first, device=scores_BHL.device)
        return scores_BHL
