"""What a row cost, from its columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def extra_bytes(rows: pa.Table) -> pa.ChunkedArray:
    """Bytes beside keys and values that decoding needs: indexer keys and latent memory."""
    return pc.add(rows["indexer_bytes"], rows["memory_bytes"])


def held_bytes(rows: pa.Table) -> pa.ChunkedArray:
    """All bytes that decoding needs."""
    return pc.add(rows["kv_bytes"], extra_bytes(rows))


def answer_seconds(rows: pa.Table) -> pa.ChunkedArray:
    """Decoding time of one answer: the batch's time, divided by its rows."""
    return pc.divide(rows["decode_seconds"], pc.cast(rows["decode_batch"], pa.float64()))
