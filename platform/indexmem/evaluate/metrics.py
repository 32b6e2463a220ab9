"""A running grid as metrics that Ray exports."""

from __future__ import annotations

from indexmem.evaluate.digest import Digest
from indexmem.evaluate.progress import Progress
from indexmem.live.ray_metrics import counter, gauge, histogram


class GridMetrics:
    """Set by the driver. `run` is the experiment's name, the label that dashboards choose by."""

    def __init__(self, run: str) -> None:
        self._run = {"run": run}
        self._rows, self._tokens = counter("indexmem_grid_rows"), counter("indexmem_grid_tokens")
        self._lost, self._seconds = counter("indexmem_grid_lost_units"), histogram("indexmem_grid_unit_seconds")
        self._wanted, self._stored = gauge("indexmem_grid_rows_wanted"), gauge("indexmem_grid_rows_stored")
        self._cells, self._queued = gauge("indexmem_grid_cells"), gauge("indexmem_grid_queued_rows")
        self._actors, self._batch = gauge("indexmem_grid_actors"), gauge("indexmem_grid_batch_rows")
        self._cache = gauge("indexmem_grid_cache_bytes")
        self._latest: Digest | None = None

    def unit(self, digest: Digest, seconds: float) -> None:
        """A unit was stored; `seconds` is what its actor took."""
        self._count(digest)
        self._seconds.observe(seconds, self._run)
        self._latest = digest

    def given_up(self, digest: Digest) -> None:
        """Rows were stored as failed, because every actor died on them."""
        self._count(digest)

    def lost(self) -> None:
        """An actor died with a unit."""
        self._lost.inc(1, self._run)

    def moment(self, progress: Progress, queued_rows: int) -> None:
        """How things stand."""
        self._wanted.set(progress.total, self._run)
        self._stored.set(progress.done, self._run)
        self._queued.set(queued_rows, self._run)
        self._actors.set(progress.actors, self._run)
        if self._latest is not None:
            self._batch.set(self._latest.batch_rows, self._run)
            self._cache.set(self._latest.cache_bytes, self._run)
        if (scores := progress.scores) is not None:
            for state, cells in (("done", scores.cells_done), ("failing", scores.cells_failing), ("all", scores.cells)):
                self._cells.set(cells, self._run | {"state": state})

    def _count(self, digest: Digest) -> None:
        for status, rows in (("ok", digest.done - digest.failed), ("failed", digest.failed)):
            if rows:
                self._rows.inc(rows, self._run | {"benchmark": digest.benchmark, "status": status})
        for stage, tokens in (("prefill", digest.prefilled_tokens), ("decode", digest.decoded_tokens)):
            if tokens:
                self._tokens.inc(tokens, self._run | {"stage": stage})
