"""kvpress' pipeline on models whose first layer has a sliding window: masks cut to what an evicted layer holds.

There transformers makes one mask for layers of different lengths, as long as the first layer's cache. A layer that was
evicted from holds less, and all that it holds of the context is visible: the mask's last columns are its own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from indexmem.models.attention import attention_layers
from indexmem.models.geometry import FULL, attention_kinds


def fit_masks(model: PreTrainedModel) -> None:
    """From now on, layers with full attention take masks that are too long for them; nothing else changes.

    This stays on the model: questions are asked after a press is left. Safe to repeat.
    """
    if attention_kinds(model.config.get_text_config())[0] == FULL:
        return
    for module in attention_layers(model):
        if _fit not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_fit, with_kwargs=True)


def _fit(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    mask, cache, hidden_BnD = (kwargs.get(name) for name in ("attention_mask", "past_key_values", "hidden_states"))
    if isinstance(mask, Tensor) and mask.dim() == 4 and cache is not None and hidden_BnD is not None:
        held = cache.get_seq_length(module.layer_idx) + hidden_BnD.shape[1]
        kwargs["attention_mask"] = mask[..., -held:]
    return args, kwargs
