"""A grid on Ray: which actor gets which unit of work, and how its result is stored.

Units go to actors that are free, so fast ones take more; the last units are small, so that all actors end together.
The driver, which runs this, is the only writer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from indexmem.config.schema import Experiment
from indexmem.evaluate.crew import Crew, CrewReport, shares
from indexmem.evaluate.driver import assignment_of, drive, store_outcome
from indexmem.evaluate.grid import GridPlan
from indexmem.evaluate.progress import Progress
from indexmem.evaluate.rows import failed_rows
from indexmem.evaluate.work import Assignment, Backlog, Mask
from indexmem.evaluate.worker import Digest, Load, load_evaluator
from indexmem.locks.leases import Leases
from indexmem.progress.ray_metrics import counter, gauge, histogram
from indexmem.signals import StopSignals

IN_FLIGHT = 2  # units at an actor, so that none waits for the driver; bounds what is computed and not yet stored
SHARE_DIVISOR = 2  # an actor takes at most its share of what is left, divided by this
POLL_SECONDS = 0.5


def evaluate_on_ray(
    experiment: Experiment,
    plan: GridPlan,
    provenance: Mapping[str, Any],
    on_progress: Callable[[Progress], None] = lambda progress: None,
    load: Load = load_evaluator,
) -> Progress:
    """Evaluate what the store lacks on actors; needs a connection to Ray.

    Returns when every cell has a row for every sample, failed rows included, or once a signal has stopped it
    (`Progress.stopped_by`); see `drive`. `on_progress` is called about twice a second. Raises UserError when no actor
    fits or can load, or when another driver takes over.
    """
    with StopSignals() as stop:

        def work(missing: Mapping[str, Mask], progress: Progress, leases: Leases) -> Iterator[Progress]:
            dispatch = Dispatch(plan, assignment_of(experiment, plan, provenance), missing, progress)
            yield from dispatch.run(load, stop, leases.check)

        with closing(drive(experiment, plan, work, stop)) as steps:
            for progress in steps:
                on_progress(progress)
    return progress


class Dispatch:
    """Missing rows on their way through a crew into the store."""

    def __init__(
        self,
        plan: GridPlan,
        assignment: Assignment,
        missing: Mapping[str, Mask],
        progress: Progress,
    ) -> None:
        self._grid, self._plan, self._assignment = assignment.experiment.grid, plan, assignment
        self._backlog = Backlog(missing, plan.contexts)
        self._full_unit = self._grid.unit_samples * plan.context_rows
        self._progress = progress
        self._metrics = GridMetrics(assignment.experiment.name)

    def run(self, load: Load, stop: StopSignals, check: Callable[[], None]) -> Iterator[Progress]:
        """Work until nothing is left, or until a signal; yields about twice a second. `check` may raise to end it."""
        with Crew(self._grid, self._assignment, load) as crew:
            while (self._backlog.rows or crew.running) and stop.received is None:
                check()
                crew.resize(self._backlog.samples + len(crew.running))
                self._feed(crew)
                self._receive(crew.wait(POLL_SECONDS))
                yield self._told(crew, crew.note())
            if stop.received is not None:
                yield from self._drain(crew)

    def _feed(self, crew: Crew) -> None:
        members = crew.ready
        for member, share in zip(members, shares(members)):
            while self._backlog.rows:
                rows = math.ceil(self._backlog.rows * share / SHARE_DIVISOR)
                # Near the end nothing is queued at an actor that another might do sooner.
                if len(member.units) >= (IN_FLIGHT if rows >= self._full_unit else 1):
                    break
                crew.submit(member, self._backlog.take(self._grid.unit_samples, rows))

    def _receive(self, report: CrewReport | None) -> None:
        if report is None:
            return
        if report.outcome is None:
            self._metrics.lost()
        for unit in report.untouched:
            self._backlog.put_back(unit)
        assert report.unit is not None
        if report.outcome is not None:
            store_outcome(self._plan, report.unit, report.outcome, self._progress)
            self._metrics.unit(report.outcome.digest, report.outcome.seconds)
        elif not self._backlog.retry(report.unit, self._grid.max_attempts):
            assert report.error is not None
            rows = failed_rows(self._assignment, self._assignment.tasks(report.unit), report.error)
            self._plan.store.append(rows, self._plan.partition(report.unit.benchmark))
            digest = Digest.of(rows, report.unit.benchmark, self._plan.cells_of[report.unit.benchmark])
            self._progress.add(digest)
            self._metrics.given_up(digest)

    def _drain(self, crew: Crew) -> Iterator[Progress]:
        """Store what is being worked on, if it ends soon enough."""
        running = crew.running
        deadline = time.monotonic() + self._grid.drain_seconds
        while (left := running & crew.running) and (wait := deadline - time.monotonic()) > 0:
            yield self._told(
                crew, f"stopping in {wait:.0f} s or after {len(left)} units under way; once more to stop now"
            )
            self._receive(crew.wait(min(wait, POLL_SECONDS)))

    def _told(self, crew: Crew, note: str) -> Progress:
        self._progress.actors, self._progress.note = len(crew.ready), note
        self._metrics.state(self._progress, self._backlog.rows)
        return self._progress


class GridMetrics:
    """A running grid as metrics that Ray exports. `run` is the experiment's name, by which dashboards choose."""

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

    def state(self, progress: Progress, queued_rows: int) -> None:
        """How far the grid is, how many actors it has and how many rows wait."""
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
