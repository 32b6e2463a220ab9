"""How far a compressed cache's next-token probabilities are from the full cache's, along the full cache's own answer.

Teacher-forced: every cell reads the same question and the same answer, in one forward pass over all of a sample's
cells. So differences do not add up along the answer, no reference is needed, and each token says something.
Shapes: R rows, n tokens read (the question and the answer but its last token, padded on the left), m answer tokens,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from indexmem.engine.decode import DecodeRow
from indexmem.engine.forced import forced_batches, forced_row
from indexmem.models.backbone import Backbone


@dataclass(frozen=True)
class Fidelity:
    """Of one cell, means over the answer's tokens."""

    kl: float  # KL(full cache || cell) of the next-token distributions, in nats
    top1: float  # share of tokens where both find the same one likeliest

    @classmethod
    def of(cls, full_mV: Tensor, cell_mV: Tensor) -> Fidelity:
        """From the logits of both caches."""
        full_mV, cell_mV = full_mV.float().log_softmax(-1), cell_mV.float().log_softmax(-1)
        kl_m = (full_mV.exp() * (full_mV - cell_mV)).sum(-1)
        same_m = full_mV.argmax(-1) == cell_mV.argmax(-1)
        return cls(max(0.0, float(kl_m.double().mean())), float(same_m.double().mean()))  # rounding: never below 0


@torch.inference_mode()
def fidelity(
    backbone: Backbone,
    full: DecodeRow,
    rows: Sequence[DecodeRow],
    answer_ids: Sequence[int],
    batch_bytes: int | None = None,
) -> list[Fidelity]:
    """Of each row; `full` holds the whole context, and `answer_ids` are what it answered, one token at least.

    A cache that is compressed while decoding is taken as it is before that. `batch_bytes` as in `decode`.
    """
    forced = [forced_row(row, answer_ids) for row in (full, *rows)]
    found: list[Fidelity] = []
    full_mV: Tensor | None = None
    for _, logits_RmV in forced_batches(backbone, forced, len(answer_ids), batch_bytes):
        if full_mV is None:
            full_mV = logits_RmV[0].clone()
        found += [Fidelity.of(full_mV, cell_mV) for cell_mV in logits_RmV]
    return found[1:]
