"""What a layer keeps of its context, where heads may keep different numbers of tokens.

Shapes: N layers, H KV heads of a layer, L context tokens, K kept tokens of the head that keeps most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Kept(NamedTuple):
    """What a layer keeps of its context."""

    positions_HK: Tensor  # ascending, int64; a head's entries beyond its number repeat its last position
    counts_H: Tensor | None = None  # tokens of each head, int64; None: all K


def everything(heads: int, tokens: int, device: torch.device) -> Kept:
    """All tokens, in every head."""
    return Kept(torch.arange(tokens, device=device).expand(heads, tokens))


def ragged(kept_HL: Tensor) -> Kept:
    """What is marked True, as positions. Every head must keep one token at least."""
    return ragged_layers(kept_HL[None])[0]


def ragged_layers(kept_NHL: Tensor) -> list[Kept]:
    """`ragged` for N layers at once, each as wide as its own longest head."""
    counts_NH = kept_NHL.sum(dim=-1)
    fewest, *widths = torch.cat((counts_NH.amin()[None], counts_NH.amax(dim=1))).tolist()  # waits for the device once
    assert fewest > 0, "a head without tokens has no last position to repeat"
    marked_first_NHK = (~kept_NHL).byte().argsort(dim=-1, stable=True)[..., : max(widths)]
    column_NHK = torch.arange(max(widths), device=counts_NH.device).minimum(counts_NH[..., None] - 1)
    positions_NHK = marked_first_NHK.gather(-1, column_NHK)
    return [
        Kept(position_HK[:, :width], count_H) for position_HK, width, count_H in zip(positions_NHK, widths, counts_NH)
    ]


def oldest_first(positions_HK: Tensor, counts_H: Tensor | None) -> Tensor:
    """A layer's kept positions with every head's last one in the last column: new tokens can follow.

    A head's entries before its own repeat its first one.
    """
    if counts_H is None:
        return positions_HK
    before_H1 = positions_HK.shape[1] - counts_H[:, None]
    column_HK = (torch.arange(positions_HK.shape[1], device=counts_H.device) - before_H1).clamp(min=0)
    return positions_HK.gather(1, column_HK)


def lengths_of(kept_HK: Sequence[Tensor], counts_H: Sequence[Tensor] | None) -> list[list[int]]:
    """Tokens of each KV head, by layer. On a GPU this waits for the device once, if heads keep different numbers."""
    if counts_H is None:
        return [[positions_HK.shape[1]] * positions_HK.shape[0] for positions_HK in kept_HK]
    return torch.stack(list(counts_H)).tolist()
