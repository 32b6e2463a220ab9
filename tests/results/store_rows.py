"""Rows that fit the schemas, for the tests of RowStore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from indexmem.results.schema import OK, RETENTION_SCHEMA, ROW_SCHEMA, SCHEMA_VERSION
from indexmem.results.store import RowStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def example(field: pa.Field) -> Any:
    if pa.types.is_string(field.type):
        return ""
    if pa.types.is_list(field.type):
        return []
    if pa.types.is_boolean(field.type):
        return False
    return NOON if pa.types.is_timestamp(field.type) else 0


def row(cell: str = "c", sample: str = "s/0", repeat: int = 0, **values: Any) -> dict[str, Any]:
    base = {field.name: example(field) for field in ROW_SCHEMA}
    key = {"schema_version": SCHEMA_VERSION, "cell_id": cell, "sample_id": sample, "repeat": repeat, "status": OK}
    return base | key | values


def retention(sample: str, values: list[float]) -> dict[str, Any]:
    base = {field.name: example(field) for field in RETENTION_SCHEMA}
    key = {"schema_version": SCHEMA_VERSION, "cell_id": "c", "sample_id": sample, "repeat": 0}
    return base | key | {"tokens": ["t"] * len(values), "retention": values}


def done(store: RowStore, partitions: Sequence[str], *asked: Any, **options: Any) -> NDArray[np.bool_]:
    """done_CS: which (cell, sample) pairs have an OK row. Arguments as of `RowStore.scores`."""
    return ~np.isnan(store.scores(partitions, *asked, **options))


def done_keys(
    store: RowStore, cells: Iterable[str], samples: Iterable[str], repeats: int = 1
) -> set[tuple[str, str, int]]:
    """Keys of partition "p" that count as finished, among these."""
    cells, samples = list(cells), list(samples)
    return {
        (cells[c], samples[s], repeat)
        for repeat in range(repeats)
        for c, s in np.argwhere(done(store, ["p"], cells, samples, repeat))
    }


def part_files(root: Path) -> list[Path]:
    return sorted(root.rglob("part-*.parquet"))
