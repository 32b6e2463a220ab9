"""Several documents in one row: how attention and its taps see them apart.

The row [1, N] holds the documents' tokens one after the other, without padding, and positions restart in each. All that
acts on single tokens (projections, norms, MLPs: most of a backbone's work) runs on the row. For attention the row is
split into a right-padded batch of the documents and its output joined again, so that attention, windows and taps are
those of any batch: a document never sees another, and no mask is materialised.

Shapes: N tokens of the row, D documents, L tokens of the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedDocuments:
    """Where the documents of a row lie."""

    lengths_D: Tensor
    place_DL: Tensor  # of each document's tokens in the row; padding repeats the document's last
    real_DL: Tensor  # what is not padding

    @classmethod
    def of(cls, lengths_D: Tensor) -> PackedDocuments:
        """Documents of these lengths, all at least 1, in the order in which they lie in the row."""
        position_L = torch.arange(int(lengths_D.max()), device=lengths_D.device)
        start_D = lengths_D.cumsum(0) - lengths_D
        place_DL = start_D[:, None] + torch.minimum(position_L, lengths_D[:, None] - 1)
        return cls(lengths_D, place_DL, position_L < lengths_D[:, None])

    @property
    def position_ids(self) -> Tensor:
        """Position of each token in its document, [1, N]."""
        position_L = torch.arange(self.place_DL.shape[1], device=self.place_DL.device)
        return position_L.expand_as(self.place_DL)[self.real_DL][None]

    def split(self, row: Tensor, dim: int = 1) -> Tensor:
        """Row [1, ..., N, ...] with the tokens along `dim` -> padded batch [D, ..., L, ...].

        Padding repeats real tokens: zeros would be no rotary table and no normed state, and could give NaN.
        """
        tokens_DL = row[0].movedim(dim - 1, 0)[self.place_DL]
        return tokens_DL.movedim(1, dim)

    def join(self, batch: Tensor) -> Tensor:
        """Padded batch [D, L, ...] -> row [1, N, ...]; what is at padding is dropped."""
        return batch[self.real_DL][None]
