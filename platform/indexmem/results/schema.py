"""The results record: one row is one sample in one cell. Versioned; written as parquet, read by report and tracking.

A cell is (model, method, budget, benchmark, decoding); its `cell_id` is a hash of everything that can change the
answer, so equal ids mean comparable rows. Lengths are tokens, sizes bytes, times seconds.
"""

from __future__ import annotations

from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget

# 2: budget; 3: protocol, labels, other scores, truncation, kept while decoding; 4: group; 5: settings, code;
# 6: fidelity; 7: question_aware; 8: kept tokens by head
SCHEMA_VERSION = 8

OK, FAILED = "ok", "failed"
FULL_LABEL = "full"  # the method that evicts nothing

ROW_SCHEMA = pa.schema(
    [
        # identity: (cell_id, sample_id, repeat) is the key
        ("schema_version", pa.int16()),
        ("cell_id", pa.string()),
        ("sample_id", pa.string()),  # "<benchmark>/<index>", the same sample for every cell of a benchmark
        ("repeat", pa.int32()),
        ("group", pa.string()),  # samples that depend on each other, as questions on one text; null: of its own
        # what was asked
        ("model", pa.string()),
        ("model_fingerprint", pa.string()),
        ("method", pa.string()),  # label: name and non-default parameters
        ("method_params", pa.string()),  # JSON
        ("checkpoint", pa.string()),  # content hash of a learned method's weights, "" for training-free methods
        ("code", pa.string()),  # what computed it: "engine 2", and a hash of a method's source that is not ours
        ("budget", pa.string()),  # requested: "75%" evicted, "512 tokens", "8 MiB"; "0%" for the full cache
        ("ratio", pa.float64()),  # the same as a number; null for budgets in tokens or bytes
        ("benchmark", pa.string()),
        ("benchmark_build", pa.string()),  # content hash of the generated samples' recipe
        ("protocol", pa.string()),  # whose prompts and scores: "ruler", "official", "kvpress", ...
        ("question_aware", pa.bool_()),  # the cache was compressed with the question in it, see `grid.protocol`
        ("labels", pa.string()),  # JSON: facets of the sample, such as depth or category
        ("length", pa.int32()),  # requested prompt length
        ("settings", pa.string()),  # JSON: what else of the spec decides an answer, see `evaluate.rows.settings_of`
        # what came out
        ("prediction", pa.string()),
        ("references", pa.list_(pa.string())),
        ("score", pa.float64()),  # in [0, 1]; null when the sample failed
        ("other_scores", pa.string()),  # JSON: name -> score in [0, 1]
        (
            "fidelity_kl",
            pa.float64(),
        ),  # KL from the full cache's next-token probabilities, nats a token; null: not asked
        ("fidelity_top1", pa.float64()),  # share of tokens where the full cache's likeliest token is this cell's
        ("truncated", pa.bool_()),  # the answer was cut at its limit
        ("status", pa.string()),  # OK | FAILED
        ("error_class", pa.string()),
        ("error_message", pa.string()),
        # what was measured, from tensor sizes and clocks
        ("context_tokens", pa.int32()),
        ("question_tokens", pa.int32()),
        ("new_tokens", pa.int32()),
        ("kept_min", pa.int32()),  # kept tokens per head, over layers and heads
        ("kept_mean", pa.float64()),
        ("kept_max", pa.int32()),
        ("decode_kept_mean", pa.float64()),  # tokens a head held while decoding, over steps, layers and heads
        ("decode_kept_max", pa.int32()),
        ("measured_ratio", pa.float64()),  # 1 - kv_bytes / full_kv_bytes, both without sliding-window layers
        ("kv_bytes", pa.int64()),  # context K and V that the cell keeps, all layers
        ("indexer_bytes", pa.int64()),  # indexer keys that decoding would need
        ("memory_bytes", pa.int64()),  # latent memory state
        ("full_kv_bytes", pa.int64()),
        ("prefill_seconds", pa.float64()),  # of the context: shared by cells and questions, unless eviction comes first
        ("score_seconds", pa.float64()),  # this method's scoring, shared by its ratios
        ("decode_seconds", pa.float64()),  # the decode batch that the row was in
        ("decode_batch", pa.int32()),  # rows in that batch
        # provenance
        ("git_commit", pa.string()),
        ("versions", pa.string()),  # JSON: python, torch, transformers, kvpress, indexmem
        ("device", pa.string()),
        ("host", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)

KEY = ("cell_id", "sample_id", "repeat")

DERIVED = MappingProxyType({"budget": "ratio"})  # columns that rows of version 1 lack -> what tells them


def upgraded(rows: pa.Table) -> pa.Table:
    """`rows` with what their version lacks and what tells it: `budget`, of the column `ratio`, and `question_aware`."""
    if "question_aware" not in rows.column_names:
        rows = rows.append_column("question_aware", pa.repeat(pa.scalar(False), rows.num_rows))
    if "budget" in rows.column_names or "ratio" not in rows.column_names:
        return rows
    ratios = rows["ratio"].to_pylist()
    texts = {ratio: None if ratio is None else str(Budget.of_ratio(ratio)) for ratio in set(ratios)}
    return rows.append_column("budget", pa.array([texts[ratio] for ratio in ratios], pa.string()))


def extra_bytes(rows: pa.Table) -> pa.ChunkedArray:
    """Bytes beside keys and values that decoding needs: indexer keys and latent memory."""
    return pc.add(rows["indexer_bytes"], rows["memory_bytes"])


def held_bytes(rows: pa.Table) -> pa.ChunkedArray:
    """All bytes that decoding needs."""
    return pc.add(rows["kv_bytes"], extra_bytes(rows))


def answer_seconds(rows: pa.Table) -> pa.ChunkedArray:
    """Decoding time of one answer: the batch's time, divided by its rows."""
    return pc.divide(rows["decode_seconds"], pc.cast(rows["decode_batch"], pa.float64()))


def alone_seconds(rows: pa.Table) -> pa.ChunkedArray:
    """Decoding time of answers that had a batch of their own; null for rows of a (method, budget) that shared batches
    with others, whose time is theirs as well.
    """
    cells = rows.group_by(["method", "budget"]).aggregate([("decode_batch", "max")])
    own = {(cell["method"], cell["budget"]) for cell in cells.to_pylist() if cell["decode_batch_max"] == 1}
    alone = [pair in own for pair in zip(rows["method"].to_pylist(), rows["budget"].to_pylist())]
    return pc.if_else(pa.array(alone, pa.bool_()), rows["decode_seconds"], pa.scalar(None, pa.float64()))


# For the kept-token viewer: what share of (layer, head) pairs kept each context token, for a few example samples.
RETENTION_SCHEMA = pa.schema(
    [
        ("schema_version", pa.int16()),
        ("cell_id", pa.string()),
        ("sample_id", pa.string()),
        ("repeat", pa.int32()),
        ("question", pa.string()),
        ("tokens", pa.list_(pa.string())),  # context tokens as text, in order
        ("retention", pa.list_(pa.float32())),  # one value in [0, 1] per context token
        ("kept_heads", pa.list_(pa.binary())),  # by layer, see results/head_bits.py
        ("kv_heads", pa.int16()),
    ]
)
