"""Budgets that heads share, in kvpress: what leaves is known once the last of the heads has been scored.

kvpress' caches hold as many tokens for each head of a layer. Where heads keep different numbers, all pairs therefore
stay, and attention ignores those that were evicted, as with kvpress' own head-wise presses.
Shapes: N layers, B batch, H KV heads of a layer, X heads that share a budget, L context tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from indexmem.errors import UserError
from indexmem.eviction.selection import Shared, tokens_left
from indexmem.models.attention import layer_number
from indexmem.models.geometry import FULL, attention_kinds

PATCH = "kvpress.attention_patch"  # the module of the functions that ignore masked pairs


class SharedBudget:
    """Collects the scores of heads that share a budget during a prefill, until they can be compared."""

    def __init__(self) -> None:
        self._scored: list[tuple[nn.Module, Tensor]] = []

    def settle(
        self, selection: Shared, module: nn.Module, scores_BHL: Tensor, ratio: float
    ) -> list[tuple[nn.Module, Tensor]]:
        """The layers whose evictions this layer's (comparable) scores settle, each with what leaves it, [B, H, L].

        With a budget of the whole model that is none until the last layer, and then all.
        """
        layer, last = layer_number(module), attention_kinds(module.config).count(FULL) - 1  # type: ignore[arg-type]
        if selection.across == "layer" or layer == 0:  # what an interrupted prefill has left is of another context
            self._scored = []
        self._scored.append((module, scores_BHL))
        if selection.across == "model" and layer != last:
            return []
        scored, self._scored = self._scored, []
        scores_BXL = torch.cat([scores.to(scores_BHL.device) for _, scores in scored], dim=1)
        tokens = scores_BXL.shape[-1]
        stays_BXL = selection.mark(scores_BXL, tokens, tokens_left(tokens, ratio))
        stays_NBHL = selection.together(stays_BXL.unflatten(1, (len(scored), -1)).transpose(0, 1))
        return [
            (scored_module, ~stays_BHL.to(scores.device))
            for (scored_module, scores), stays_BHL in zip(scored, stays_NBHL, strict=True)
        ]


def check_maskable(module: nn.Module) -> None:
    """Raise UserError where evicted pairs would be attended to: kvpress' patch is not in this attention function."""
    name = module.config._attn_implementation  # type: ignore[union-attr]
    function = ALL_ATTENTION_FUNCTIONS.get(name)
    if function is None or function.__module__ != PATCH:
        raise UserError(
            f"Attention '{name}' cannot ignore evicted pairs, as budgets that heads share need in kvpress. "
            'Load the model with attn_implementation="sdpa" (or flash attention), or give share="head".'
        )


def mask(module: nn.Module, leaves_BHL: Tensor) -> None:
    """Let the module's attention ignore what leaves, from the next token on until the next prefill.

    This lies on the module, where kvpress looks: it holds for the cache that was filled last.
    """
    indices = leaves_BHL.nonzero(as_tuple=True)
    module.masked_key_indices = indices if len(indices[0]) else None  # type: ignore[assignment]
