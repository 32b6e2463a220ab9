"""How far a compressed cache's next-token probabilities are from the full cache's, along the full cache's own answer.

Teacher-forced: every cell reads the same question and the same answer, in one forward pass over all of a sample's
cells. So differences do not add up along the answer, no reference is needed, and each token says something.
Shapes: R rows, n tokens read (the question and the answer but its last token, padded on the left), m answer tokens,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from indexmem.engine.cache import RaggedCache
from indexmem.engine.decode import DecodeRow, free_for_batches, plan_batches
from indexmem.engine.steps import read
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
    forced = [
        replace(
            row, question_ids=[*row.question_ids, *answer_ids[:-1]], max_new_tokens=1, compression=None, follow_ups=()
        )
        for row in (full, *rows)
    ]
    logits_bytes = len(answer_ids) * backbone.model.config.get_text_config().vocab_size * backbone.model.dtype.itemsize
    limit = free_for_batches(backbone.device) if batch_bytes is None else batch_bytes
    found: list[Fidelity] = []
    full_mV: Tensor | None = None
    for batch in plan_batches([row.bytes_at_end + logits_bytes for row in forced], limit):
        logits_RmV = _forced_logits(backbone, [forced[i] for i in batch], len(answer_ids))
        if full_mV is None:
            full_mV = logits_RmV[0].clone()
        found += [Fidelity.of(full_mV, cell_mV) for cell_mV in logits_RmV]
    return found[1:]


def _forced_logits(backbone: Backbone, rows: Sequence[DecodeRow], keep: int) -> Tensor:
    """Logits before each of the last `keep` tokens, [R, m, V]: all rows read as many tokens."""
    ids_Rn = torch.tensor([row.question_ids for row in rows], device=backbone.device)
    count = ids_Rn.shape[1]
    cache = RaggedCache([row.cache for row in rows], count)
    start_R1 = torch.tensor([[row.context_tokens] for row in rows], device=backbone.device)
    positions_Rn = start_R1 + torch.arange(count, device=backbone.device)
    return read(backbone, cache, ids_Rn, positions_Rn, torch.ones_like(ids_Rn, dtype=torch.bool), keep)
