"""Low-rank factors of a matrix of tokens, and how many ranks a byte budget buys (the maths of xKV, arXiv 2503.18893).

    A ~ (A W) W^T,   W = the r leading right singular vectors of A

which is the best approximation of rank r: its squared error is the sum of the squared singular values left out. W
comes from the eigenvectors of A^T A in fp64: as exact as an fp32 SVD at about half its price, and without the unused U.

Shapes: L tokens, N columns (layers * KV heads * head_dim of a group), r rank, H KV heads, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LowRank:
    """What is stored instead of a matrix: a factor per token, shared by all layers, and a map for all columns."""

    tokens_Lr: Tensor
    maps_rN: Tensor

    @property
    def nbytes(self) -> int:
        return self.tokens_Lr.nbytes + self.maps_rN.nbytes

    def restore(self) -> Tensor:
        """The approximated matrix [L, N], fp32."""
        return self.tokens_Lr.float() @ self.maps_rN.float()


def principal_axes(matrix_LN: Tensor) -> Tensor:
    """Right singular vectors as columns [N, N], strongest first, fp32."""
    matrix = matrix_LN.double()
    return torch.linalg.eigh(matrix.T @ matrix).eigenvectors.flip(-1).float()


def truncate(matrix_LN: Tensor, axes_NN: Tensor, rank: int, dtype: torch.dtype) -> LowRank:
    """The matrix in its `rank` leading axes, stored in `dtype`."""
    maps_Nr = axes_NN[:, :rank].to(dtype)
    return LowRank((matrix_LN.float() @ maps_Nr.float()).to(dtype), maps_Nr.T.contiguous())


def affordable_ranks(tokens: int, columns: int, ratio: float, key_share: float) -> tuple[int, int]:
    """Ranks (of keys, of values) whose factors need at most (1 - ratio) of the numbers in K and V together.

    A rank costs L + N numbers where K and V hold L N each, so r_K + r_V = floor((1 - ratio) 2 L N / (L + N)).
    `key_share` of them go to the keys, unless one side would then get more ranks than the matrix has.
    Raises ValueError when the budget does not pay for rank 1 of each.
    """
    total = int((1 - ratio) * 2 * tokens * columns / (tokens + columns))
    if total < 2:
        raise ValueError(
            f"a context of {tokens} tokens is too short to factorise at ratio {ratio}: rank 1 of the keys and of the "
            f"values of {columns} columns already takes more than {1 - ratio:.3g} of the cache"
        )
    largest = min(tokens, columns)
    keys = min(max(round(key_share * total), 1, total - largest), largest, total - 1)
    return keys, total - keys


def layers_to_matrix(layers_HLd: Sequence[Tensor]) -> Tensor:
    """K or V of neighbouring layers as one matrix [L, N]."""
    return torch.cat(list(layers_HLd)).transpose(0, 1).flatten(1)


def matrix_to_layers(matrix_LN: Tensor, heads: int, head_dim: int) -> list[Tensor]:
    """Inverse of `layers_to_matrix`: one [H, L, d] per layer."""
    return list(matrix_LN.unflatten(1, (-1, head_dim)).transpose(0, 1).split(heads))
