"""What kvpress' own presses keep of a context, on its own hooks and cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from tiny_models import tiny_model
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from indexmem.eviction.context import RowCache


def kvpress_model(family: str, name_or_path: str = "tiny") -> PreTrainedModel:
    """A model of its own: presses leave attributes on the modules that they ran on."""
    model = copy.deepcopy(tiny_model(family, "sdpa"))
    model.config.name_or_path = name_or_path
    return model


def kvpress_cache(model: PreTrainedModel, press, ids: Sequence[int]) -> DynamicCache:
    """The cache after a prefill under a press."""
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        model.model(input_ids=torch.tensor([list(ids)]), past_key_values=cache)
    return cache


def masked_kept(model: PreTrainedModel, tokens: int) -> list[Tensor]:
    """What a head-wise press kept: the complement of its masks, bool [H, L] per layer."""
    kept = []
    for layer in model.model.layers:
        kept_HL = torch.ones(model.config.num_key_value_heads, tokens, dtype=torch.bool)
        _, head, position = layer.self_attn.masked_key_indices
        kept_HL[head, position] = False
        kept.append(kept_HL)
    return kept


def kept_mask(row: RowCache, layer: int) -> Tensor:
    """What a row keeps in a layer, bool [H, L], from each head's own number of positions."""
    kept_HK = row.kept_HK[layer]
    mask_HL = torch.zeros(kept_HK.shape[0], row.keys_HLd[layer].shape[1], dtype=torch.bool)
    for head, length in enumerate(row.lengths(layer)):
        positions = kept_HK[head, :length]
        assert (positions.diff() > 0).all(), "positions ascend"
        assert (kept_HK[head, length:] == positions[-1]).all(), "padding repeats the last position"
        mask_HL[head, positions] = True
    return mask_HL


def same_vectors(ours_Kd: Tensor, theirs_Kd: Tensor) -> bool:
    """Whether two sets of keys are the same: kvpress leaves tokens in the order of scores, we in that of the text."""
    if ours_Kd.shape != theirs_Kd.shape:
        return False
    distances = torch.cdist(ours_Kd, theirs_Kd, compute_mode="donot_use_mm_for_euclid_dist")
    return bool(distances.min(dim=1).values.max() < 1e-4 and distances.min(dim=0).values.max() < 1e-4)
