"""Publishes results to MLflow. Results live on disk; MLflow is a mirror that can be brought up to date at any time.

Each thing that is published has a tag by which it is found again. Processes that publish the same take turns: each
looks for what there is before it creates what is not.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.errors import UserError
from indexmem.locks.leases import Lease, Leases, WorkTaken, hold
from indexmem.results.summary import summarise
from indexmem.results.sweeps import Sweep
from indexmem.tracking import distill_runs, grid_runs, sweep_runs
from indexmem.tracking.cells import summarise_cells
from indexmem.tracking.distill_runs import Checkpoint
from indexmem.tracking.mlflow_runs import NOTE_TAG, Runs
from indexmem.tracking.mlflow_store import open_store, public, sqlite_uri

PAUSE_SECONDS = 300.0  # after a failure a training run does not wait for the server again before this
NIGHT_TAG = "indexmem.night"


class Paused(Exception):
    """MLflow failed a moment ago; who does not wait for it does not ask again yet."""


class MlflowSink:
    """Where results are mirrored. No method raises because MLflow is down: it warns and returns None."""

    def __init__(self, uri: str, root: Path) -> None:
        self.uri = uri
        self._artifact_root, self._leases = root / "artifacts", root / "leases"
        self._paused_until = -math.inf

    @classmethod
    def open(cls, experiment: Experiment) -> Self | None:
        """The spec's store: `tracking.uri`, else MLFLOW_TRACKING_URI, else SQLite in the run root. None when disabled.

        Connects only when something is published. Raises UserError for a folder, which MLflow 3 no longer supports.
        """
        if not experiment.tracking.enabled:
            return None
        root = run_root(experiment)
        uri = experiment.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(root / "mlflow.db")
        if (uri.startswith("file:") or ":" not in uri) and not os.environ.get("MLFLOW_ALLOW_FILE_STORE"):
            raise UserError(
                f"MLflow 3 cannot track into the folder '{uri}'. Use a database or a server, for example "
                "tracking.uri=sqlite:////data/mlflow.db or tracking.uri=http://localhost:5000"
            )
        return cls(uri, root)

    def grid_page(self, experiment: Experiment, began: int | None = None) -> str | None:
        """Where the UI shows the run that `publish_grid` fills, from the UI's root; made if there is none yet, as one
        whose work began then (ms since 1970).
        """
        with self._mirroring(), self._turn(grid_runs.spec_id(experiment)):
            runs = self._runs(experiment, "eval", grid_runs.GRID_NOTE)
            return runs.page(grid_runs.open_grid(runs, experiment, began))
        return None

    def publish_grid(
        self,
        experiment: Experiment,
        rows: pa.Table,
        artifacts: Mapping[str, Path] | None = None,
        *,
        verdict: str = "",
    ) -> str | None:
        """Mirror a grid: one run per spec, with one child run per cell of `rows` (ROW_SCHEMA, one row per key).

        `artifacts` maps paths inside the run to files or folders; `verdict` is Markdown that opens the run's note,
        above the scores. Cells that have not changed cost nothing. Returns the run's URL on a server, else its id.
        Raises UserError for rows of different experiments.
        """
        summary, cells = summarise(rows), summarise_cells(rows)
        with self._mirroring(), self._turn(grid_runs.spec_id(experiment)):
            runs = self._runs(experiment, "eval", grid_runs.GRID_NOTE)
            trainings = Runs.existing(runs.client, f"{experiment.tracking.experiment}/distill")
            run = grid_runs.publish_grid(runs, trainings, experiment, summary, cells, artifacts or {}, verdict)
            return runs.url(run)
        return None

    def publish_distill(
        self,
        experiment: Experiment,
        distill_id: str,
        history: Sequence[Mapping[str, float]],
        *,
        checkpoint: Checkpoint | None = None,
        finished: bool = False,
        wait: bool = False,
        params: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Mirror a training run, as often as wanted: `history` holds mappings of 'step' and metrics, of all steps.

        Steps that MLflow has are not sent again. Values that are not finite are not plotted but listed in the tag
        indexmem.non_finite. The checkpoint of a finished run becomes its logged model.

        Unless `finished` or told to `wait`, a call returns None at once while another process publishes the same, and
        for a few minutes after one that failed: a training does not stand still for its mirror.
        """
        with self._mirroring(), self._turn(distill_id, wait=wait or finished):
            runs = self._runs(experiment, "distill", distill_runs.DISTILL_NOTE)
            run = distill_runs.send_training(runs, experiment, distill_id, history, params or {})
            if finished and checkpoint is not None:
                distill_runs.publish_checkpoint(runs, run.info.run_id, experiment, distill_id, checkpoint)
            if finished:
                ended = run.info.start_time + distill_runs.work_ms(experiment, history)
                runs.client.set_terminated(run.info.run_id, end_time=ended)
            return runs.url(run)
        return None

    def publish_sweep(
        self, experiment: Experiment, sweep: Sweep, artifacts: Mapping[str, Path] | None = None, *, last: bool = True
    ) -> str | None:
        """Mirror a sweep and its trials that have ended, as often as wanted; what has not changed is not sent again.

        With `last=False`, as while it runs, the sweep's run stays open, and calls return at once while another process
        publishes the same, and for a few minutes after one that failed. Returns the URL of the sweep's run on a server,
        else its id.
        """
        with self._mirroring(), self._turn(sweep.id, wait=last):
            runs = self._runs(experiment, "sweep")
            run = sweep_runs.publish_sweep(runs, experiment, sweep, artifacts or {})
            (runs.end if last else runs.go_on)(run)
            return runs.url(run)
        return None

    def publish_night(
        self,
        nightly: Experiment,
        date: dt.date,
        *,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        note: str,
        artifacts: Mapping[str, Path],
    ) -> str | None:
        """Mirror one night of the nightly spec `nightly.name`. Publishing it again changes nothing.

        `metrics` are named for charts over nights; `artifacts` maps paths inside the run to files. Returns the run's
        URL on a server, else its id; None, with a warning, when MLflow does not take it.
        """
        name = f"{nightly.name} {date.isoformat()}"
        with self._mirroring(), self._turn(name):
            runs = self._runs(nightly, "nightly")
            run = runs.find_or_create(NIGHT_TAG, name, name)
            shown = {**tags, "nightly": nightly.name, "date": date.isoformat(), NOTE_TAG: note}
            runs.publish(run, [dict(metrics), shown], metrics, {}, shown, lambda: runs.attach(run, artifacts))
            runs.end(run)
            return runs.url(run)
        return None

    def _runs(self, experiment: Experiment, kind: str, note: str = "") -> Runs:
        client = open_store(self.uri, self._artifact_root)
        return Runs.of(client, f"{experiment.tracking.experiment}/{kind}", self._artifact_root, note)

    @contextmanager
    def _mirroring(self) -> Iterator[None]:
        try:
            yield
        except (Paused, WorkTaken):
            pass  # the next call sends what this one leaves
        except Exception as error:  # whatever goes wrong in the mirror, the results are on disk
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            cause = public(" ".join(str(error).split()))[:300]
            warnings.warn(
                f"MLflow at {public(self.uri)} did not take the results ({type(error).__name__}: {cause}). "
                "Nothing is lost: they are on disk, and `indexmem sync SPEC` publishes them later.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _turn(self, identity: str, *, wait: bool = True) -> AbstractContextManager[Leases]:
        """Publish what has this identity, which no other process of the run root does at the same time.

        With `wait`, after whoever does it now, who is named in a warning. Else raises WorkTaken, and Paused for a few
        minutes after a failure.
        """
        if not wait and time.monotonic() < self._paused_until:
            raise Paused
        return hold(self._leases, f"mlflow-{identity}", _tell_who_publishes if wait else None)


def _tell_who_publishes(lease: Lease) -> None:
    warnings.warn(f"{lease.owner} publishes the same to MLflow; waiting.", RuntimeWarning, stacklevel=2)
