"""Methods that rank by another one's scores.

Shapes: B batch, H KV heads, L context tokens.
"""

from __future__ import annotations

from torch import Tensor

from indexmem.config.schema import MethodConfig
from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.simple import FullCache
from indexmem.models.attention import LayerTap


class ByScoresOf(EvictionMethod):
    """Takes the scores of `base` and decides by itself what they mean."""

    def __init__(self, base: EvictionMethod, config: MethodConfig) -> None:
        """Raises UserError for a base that is more than a scorer: its other half would be lost without notice."""
        if base.decides or base.selection.shares:
            raise UserError(
                f"base '{config.label}' decides more than scores; use a method that only scores, such as 'snapkv'"
            )
        if base.cross_layer or base.own_pass or isinstance(base, FullCache):
            raise UserError(f"base '{config.label}' has no scores for each layer; use a method such as 'snapkv'")
        self.base = base
        self.base_label = config.label
        self.checkpoint, self.code = base.checkpoint, base.code
        self.min_context = base.min_context

    def score(self, tap: LayerTap) -> Tensor:
        return self.base.score(tap)
