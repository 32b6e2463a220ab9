"""One crew at work on one backlog: who gets which unit, and what becomes of it.

Units go to whoever is free, so fast actors take more; the last ones are small, so that nobody waits long for anybody.
The driver, which runs this, is the only writer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from indexmem.evaluate.crew import Crew, Report, shares
from indexmem.evaluate.digest import Digest
from indexmem.evaluate.grid import GridPlan
from indexmem.evaluate.metrics import GridMetrics
from indexmem.evaluate.progress import Progress
from indexmem.evaluate.units import Backlog, Mask
from indexmem.evaluate.worker import Assignment, Load
from indexmem.signals import StopSignals

IN_FLIGHT = 2  # units at an actor, so that none waits for the driver; bounds what is computed and not yet stored
GUIDE = 2  # an actor takes at most this part of its share of what is left
POLL_SECONDS = 0.5

OnProgress = Callable[[Progress], None]


class Dispatch:
    """Missing rows on their way through a crew into the store."""

    def __init__(
        self,
        plan: GridPlan,
        assignment: Assignment,
        missing: Mapping[str, Mask],
        progress: Progress,
        on_progress: OnProgress,
    ) -> None:
        self._grid, self._plan, self._assignment = assignment.experiment.grid, plan, assignment
        self._backlog = Backlog(missing)
        self._full_unit = self._grid.unit_samples * max(map(len, plan.cells_of.values()))
        self._progress, self._on_progress = progress, on_progress
        self._metrics = GridMetrics(assignment.experiment.name)

    def run(self, load: Load, stop: StopSignals, check: Callable[[], None]) -> None:
        """Work until nothing is left, or until a signal. `check` may raise to end it, every now and then."""
        with Crew(self._grid, self._assignment, load) as crew:
            while (self._backlog.rows or crew.running) and stop.received is None:
                check()
                crew.resize(self._backlog.samples + len(crew.running))
                self._feed(crew)
                self._receive(crew.wait(POLL_SECONDS))
                self._tell(crew, crew.note())
            if stop.received is not None:
                self._drain(crew)

    def _feed(self, crew: Crew) -> None:
        members = crew.ready
        for member, share in zip(members, shares(members)):
            while self._backlog.rows:
                rows = math.ceil(self._backlog.rows * share / GUIDE)
                # Near the end nothing is queued at an actor that another might do sooner.
                if len(member.units) >= (IN_FLIGHT if rows >= self._full_unit else 1):
                    break
                crew.submit(member, self._backlog.take(self._grid.unit_samples, rows))

    def _receive(self, report: Report | None) -> None:
        if report is None:
            return
        if report.outcome is None:
            self._metrics.lost()
        for unit in report.untouched:
            self._backlog.put_back(unit)
        assert report.unit is not None
        if report.outcome is not None:
            partition = self._plan.partition(report.unit.benchmark)
            if report.outcome.retention is not None:
                self._plan.store.append_encoded(report.outcome.retention, partition, "retention")
            self._plan.store.append_encoded(report.outcome.rows, partition)
            self._progress.add(report.outcome.digest)
            self._metrics.unit(report.outcome.digest, report.outcome.seconds)
        elif not self._backlog.retry(report.unit, self._grid.max_attempts):
            assert report.error is not None
            rows = self._assignment.failed_rows(self._assignment.tasks(report.unit), report.error)
            self._plan.store.append(rows, self._plan.partition(report.unit.benchmark))
            digest = Digest.of(rows, report.unit.benchmark, self._plan.cells_of[report.unit.benchmark])
            self._progress.add(digest)
            self._metrics.given_up(digest)

    def _drain(self, crew: Crew) -> None:
        """Store what is being worked on, if it ends soon enough."""
        running = crew.running
        deadline = time.monotonic() + self._grid.drain_seconds
        while (left := running & crew.running) and (wait := deadline - time.monotonic()) > 0:
            self._tell(crew, f"stopping in {wait:.0f} s or after {len(left)} units under way; once more to stop now")
            self._receive(crew.wait(min(wait, POLL_SECONDS)))

    def _tell(self, crew: Crew, note: str) -> None:
        self._progress.actors, self._progress.note = len(crew.ready), note
        self._metrics.moment(self._progress, self._backlog.rows)
        self._on_progress(self._progress)
