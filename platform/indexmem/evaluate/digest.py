"""What a worker says about a unit's rows, so that the driver need not read them.

Shape: C cells of the unit's benchmark, in the plan's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexmem.evaluate.cells import Cell
from indexmem.evaluate.rows import Row
from indexmem.progress.status import FailureNote
from indexmem.results.schema import OK

KEPT_FAILURES = 5  # of one unit, and of a whole run


@dataclass(frozen=True)
class Digest:
    """Sums over rows: small however many rows there are."""

    benchmark: str
    score_C: NDArray[np.float64]  # sum of the finished rows' scores
    finished_C: NDArray[np.int64]
    failed_C: NDArray[np.int64]
    prefilled_tokens: int = 0  # each sample's context counts once
    decoded_tokens: int = 0
    batch_rows: int = 0  # the largest decode batch
    cache_bytes: int = 0  # what that batch held, at the rows' mean size
    failures: tuple[FailureNote, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Row], benchmark: str, cells: Sequence[Cell]) -> Digest:
        """Of rows of one benchmark; `cells` are all of its cells."""
        index = {cell.id: number for number, cell in enumerate(cells)}
        finished = [row for row in rows if row["status"] == OK]
        failed = [row for row in rows if row["status"] != OK]
        at_finished = np.array([index[row["cell_id"]] for row in finished], np.int64)
        at_failed = np.array([index[row["cell_id"]] for row in failed], np.int64)
        scores = np.array([row["score"] for row in finished], np.float64)
        contexts = {(row["sample_id"], row["repeat"]): row["context_tokens"] or 0 for row in finished}
        batch_rows = max((row["decode_batch"] or 0 for row in finished), default=0)
        held = sum(_cache_bytes(row) for row in finished)
        return cls(
            benchmark,
            np.bincount(at_finished, scores, len(cells)).astype(np.float64),
            np.bincount(at_finished, minlength=len(cells)),
            np.bincount(at_failed, minlength=len(cells)),
            sum(contexts.values()),
            sum(row["new_tokens"] or 0 for row in finished),
            batch_rows,
            held * batch_rows // max(len(finished), 1),
            tuple(map(_failure, failed[-KEPT_FAILURES:])),
        )

    @property
    def done(self) -> int:
        """Rows, failed ones included."""
        return int(self.finished_C.sum()) + self.failed

    @property
    def failed(self) -> int:
        return int(self.failed_C.sum())

    @property
    def tokens(self) -> int:
        """What the model read and wrote."""
        return self.prefilled_tokens + self.decoded_tokens


def _cache_bytes(row: Row) -> int:
    return sum(row[name] or 0 for name in ("kv_bytes", "indexer_bytes", "memory_bytes"))


def _failure(row: Row) -> FailureNote:
    return FailureNote.of(
        f"{row['method']} {row['budget']} {row['sample_id']}", f"{row['error_class']}: {row['error_message']}"
    )
