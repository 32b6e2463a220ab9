"""Teacher forcing: what the model makes of given tokens behind a compressed context, all rows in one forward pass.

Shapes: R rows, n tokens read (padded on the left), m of them whose logits are kept, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from indexmem.engine.cache import RaggedCache
from indexmem.engine.decode import DecodeRow, free_for_batches, padded_questions, plan_batches
from indexmem.engine.steps import read
from indexmem.models.backbone import Backbone


def forced_row(row: DecodeRow, ids: Sequence[int]) -> DecodeRow:
    """The row with `ids` behind its question, but for the last, which is only predicted. A cache that is compressed
    while decoding is taken as it is before that."""
    question_ids = [*row.question_ids, *ids[:-1]]
    return replace(row, question_ids=question_ids, max_new_tokens=1, compression=None, follow_ups=())


def forced_batches(
    backbone: Backbone, rows: Sequence[DecodeRow], keep: int, batch_bytes: int | None = None
) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of rows, and the logits [R, m, V] behind the last `keep` tokens of each; the rows are in order.
    `batch_bytes` as in `decode`."""
    logits_bytes = keep * backbone.model.config.get_text_config().vocab_size * backbone.model.dtype.itemsize
    limit = free_for_batches(backbone.device) if batch_bytes is None else batch_bytes
    for batch in plan_batches([row.bytes_at_end + logits_bytes for row in rows], limit):
        yield batch, forced_logits(backbone, [rows[i] for i in batch], keep)


def forced_logits(backbone: Backbone, rows: Sequence[DecodeRow], keep: int) -> Tensor:
    """Logits behind each of the last `keep` tokens of the rows' questions, [R, m, V]."""
    ids_Rn, positions_Rn, valid_Rn = padded_questions(rows, backbone.device)
    cache = RaggedCache([row.cache for row in rows], ids_Rn.shape[1])
    return read(backbone, cache, ids_Rn, positions_Rn.clamp(min=0), valid_Rn, keep)
