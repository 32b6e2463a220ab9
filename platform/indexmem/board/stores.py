"""Rows of a result store of ours as rows of the board. Failed rows are left out: a cell then lacks these samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.board.format import BOARD_SCHEMA, BOARD_VERSION
from indexmem.results.schema import OK, alone_seconds, held_bytes
from indexmem.results.store import RowStore

SAID_ALWAYS = ("dtype", "seed", "sinks", "max_new_tokens", "decoding")  # of a row's settings
LOOK_ALIKE = ("model_fingerprint", "method", "checkpoint", "budget", "benchmark", "benchmark_build")
SAME = {
    "model": "model", "model_revision": "model_fingerprint", "method": "method", "checkpoint": "checkpoint",
    "budget": "budget", "benchmark": "benchmark", "build": "benchmark_build", "prompts": "protocol",
    "length": "length", "sample": "sample_id", "repeat": "repeat", "group": "group", "score": "score",
    "evicted": "measured_ratio", "full_bytes": "full_kv_bytes", "commit": "git_commit", "versions": "versions",
    "device": "device", "host": "host",
}  # fmt: skip


def read_store(folder: Path) -> pa.Table:
    """All finished rows under `folder`, which holds rows/."""
    places = sorted({str(part.parent.relative_to(folder / "rows")) for part in (folder / "rows").rglob("*.parquet")})
    rows = RowStore(folder).read(places)
    rows = rows.filter(pc.equal(rows["status"], OK))
    known = pc.if_else(pc.is_valid(rows["code"]), rows["settings"], pa.scalar(None, pa.string()))  # both, or neither
    rows = rows.set_column(rows.schema.get_field_index("settings"), "settings", known)
    columns: dict[str, Any] = {ours: rows[theirs] for ours, theirs in SAME.items() if theirs in rows.column_names}
    columns |= {name: _mapped(rows["settings"], part) for name, part in PARTS.items()}
    columns |= {
        "board_version": pa.repeat(BOARD_VERSION, rows.num_rows),
        "engine": _engines(rows),
        "code": _codes(rows),
        "prompts": pc.coalesce(rows["protocol"], pa.scalar("not recorded")),
        "question": pc.if_else(rows["question_aware"], "before", "after"),
        "held_bytes": held_bytes(rows),
        "prefill_ms": pc.multiply(rows["prefill_seconds"], 1000.0),
        "score_ms": pc.multiply(rows["score_seconds"], 1000.0),
        "decode_ms": pc.multiply(alone_seconds(rows), 1000.0),
        "date": pc.strftime(rows["created_at"], "%Y-%m-%dT%H:%M:%S+00:00"),
    }
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows.num_rows, field.type)
        for field in BOARD_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=BOARD_SCHEMA)


def _engines(rows: pa.Table) -> pa.Array:
    """'indexmem, engine 2': the first part of what computed a row, which older rows do not say."""
    code = pc.coalesce(rows["code"], pa.scalar("engine not recorded"))
    engine = pc.list_element(pc.split_pattern(code, ","), 0)
    return pc.binary_join_element_wise(pa.scalar("indexmem"), engine, ", ")


def _codes(rows: pa.Table) -> pa.Array:
    """What computed a row. Of rows that do not say their settings, several cells may look like one: their ids tell."""
    cells = rows.filter(pc.is_null(rows["settings"])).group_by(["cell_id", *LOOK_ALIKE]).aggregate([])
    several = cells.group_by(list(LOOK_ALIKE)).aggregate([("cell_id", "count"), ("cell_id", "list")])
    mixed = several.filter(pc.greater(several["cell_id_count"], 1))["cell_id_list"]
    ids = pa.array([cell for group in mixed.to_pylist() for cell in group], pa.string())
    named = pc.binary_join_element_wise(pa.scalar("cell"), rows["cell_id"], " ")
    return pc.if_else(pc.is_in(rows["cell_id"], ids), named, rows["code"])


def _decoding(settings: Mapping[str, Any] | None) -> str | None:
    if settings is None:
        return None
    limit = {"max_new_tokens": settings["max_new_tokens"]} if "max_new_tokens" in settings else {}
    chosen = {**settings.get("decoding", {}), **limit}
    return " ".join(["greedy"] * ("temperature" not in chosen) + [f"{name}={chosen[name]}" for name in sorted(chosen)])


def _others(settings: Mapping[str, Any] | None) -> str | None:
    rest = {name: value for name, value in (settings or {}).items() if name not in SAID_ALWAYS}
    return None if settings is None else json.dumps(rest, sort_keys=True)[1:-1]


PARTS: Mapping[str, Callable[[Mapping[str, Any] | None], Any]] = {
    "sinks": lambda settings: None if settings is None else settings["sinks"],
    "dtype": lambda settings: None if settings is None else settings["dtype"],
    "seed": lambda settings: None if settings is None else settings["seed"],
    "decoding": _decoding,
    "settings": _others,
}


def _mapped(texts: pa.ChunkedArray, part: Callable[[Mapping[str, Any] | None], Any]) -> pa.Array:
    """`part` of what each JSON text says; there are few different ones among many rows."""
    different = texts.unique().to_pylist()
    values = [part(None if text is None else json.loads(text)) for text in different]
    kind = pa.int64() if any(isinstance(value, int) for value in values) else pa.string()
    return pa.array(values, kind).take(pc.index_in(texts, pa.array(different, pa.string()), skip_nulls=False))
