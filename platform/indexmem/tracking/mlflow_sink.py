"""Publishes results to MLflow. Results live on disk; MLflow is a mirror that can be brought up to date at any time.

Each thing that is published has a tag by which it is found again, and a fingerprint tag that is written last. So
publishing twice changes nothing, and publishing after an interruption completes what was begun. Processes that publish
the same take turns: each looks for what there is before it creates what is not.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

import plotly.graph_objects as go
import pyarrow as pa
from mlflow import MlflowClient

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.errors import UserError
from indexmem.results.summary import summarise
from indexmem.tracking import distill_runs, grid_runs
from indexmem.tracking.distill_runs import OpenTraining
from indexmem.tracking.grid_runs import GridStory
from indexmem.tracking.mlflow_runs import FINGERPRINT_TAG, FINISHED, NOTE_TAG, Runs, connect, public, sqlite_uri
from indexmem.tracking.models import Checkpoint
from indexmem.tracking.summary import summarise_cells
from indexmem.tracking.turns import Busy, turn

__all__ = ["FINGERPRINT_TAG", "FINISHED", "NOTE_TAG", "MlflowSink"]

PAUSE_SECONDS = 300.0  # after a failure a training run does not wait for the server again before this


class MlflowSink:
    """Where a spec's results are mirrored. No method raises because MLflow is down: it warns and returns None."""

    def __init__(self, uri: str, root: Path) -> None:
        self.uri = uri
        self._artifact_root, self._leases = root / "artifacts", root / "leases"
        self._trainings: dict[str, OpenTraining] = {}
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

    def grid_place(self, experiment: Experiment) -> str | None:
        """Where the UI shows the run that `publish_grid` fills, from the UI's root; made if there is none yet."""
        with self._mirroring(), self._turn(grid_runs.spec_id(experiment)):
            runs = self._grids(experiment)
            return runs.place(grid_runs.open_grid(runs, experiment).info.run_id)
        return None

    def publish_grid(
        self,
        experiment: Experiment,
        rows: pa.Table,
        artifacts: Mapping[str, Path] | None = None,
        *,
        verdict: str = "",
        figures: Mapping[str, go.Figure] | None = None,
    ) -> str | None:
        """Mirror a grid: one run per spec, with one child run per cell of `rows` (ROW_SCHEMA, one row per key).

        `artifacts` maps paths inside the run to files or folders; `verdict` is Markdown that opens the run's note,
        above the scores; `figures` (heading -> figure) become one page of charts. Cells that have not changed cost
        nothing. Returns the run's URL on a server, else its id. Raises UserError for rows of different experiments.
        """
        summary, cells = summarise(rows), summarise_cells(rows)
        story = GridStory(artifacts or {}, verdict, figures or {})
        with self._mirroring(), self._turn(grid_runs.spec_id(experiment)):
            trainings = Runs.existing(self._client(), f"{experiment.tracking.experiment}/distill")
            return grid_runs.publish_grid(self._grids(experiment), trainings, experiment, summary, cells, story)
        return None

    def publish_distill(
        self,
        experiment: Experiment,
        distill_id: str,
        history: Sequence[Mapping[str, float]],
        *,
        checkpoint: Checkpoint | None = None,
        artifacts: Mapping[str, Path] | None = None,
        finished: bool = False,
        wait: bool = False,
        params: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Mirror a training run, as often as wanted: `history` holds mappings of 'step' and metrics.

        Steps that MLflow has are not sent again, so the whole history, its tail, or the overlap of a resumed run all
        give each step once. Values that are not finite are not plotted but listed in the tag indexmem.non_finite. The
        checkpoint of a finished run becomes its logged model.

        Unless `finished` or told to `wait`, a call returns None at once while another process publishes the same, and
        for a few minutes after one that failed: a training does not stand still for its mirror.
        """
        wait = wait or finished
        if time.monotonic() < self._paused_until and not wait:
            return None
        points = distill_runs.points_of(history)
        with self._mirroring(), self._turn(distill_id, wait=wait):
            name = f"{experiment.tracking.experiment}/distill"
            runs = Runs.of(self._client(), name, self._artifact_root, distill_runs.DISTILL_NOTE)
            # Taken out while sending: after an interruption, or when another process sent steps meanwhile, MLflow is
            # asked again what it has.
            known = self._trainings.pop(distill_id, None)
            if known is None or not distill_runs.sent_last(runs, known):
                known = distill_runs.open_training(runs, experiment, distill_id, params or {})
            distill_runs.send_points(runs, known, points)
            if artifacts:
                runs.attach(known.run_id, artifacts)
            if finished:
                distill_runs.finish_training(runs, known, experiment, distill_id, checkpoint)
            self._trainings[distill_id] = known
            return runs.url(known.run_id)
        return None

    def _grids(self, experiment: Experiment) -> Runs:
        name = f"{experiment.tracking.experiment}/eval"
        return Runs.of(self._client(), name, self._artifact_root, grid_runs.GRID_NOTE)

    def _turn(self, identity: str, *, wait: bool = True) -> AbstractContextManager[None]:
        """Publish what has this identity, which no other process of the run root does at the same time."""
        return turn(self._leases, f"mlflow-{identity}", wait=wait)

    def _client(self) -> MlflowClient:
        return connect(self.uri, self._artifact_root)

    @contextmanager
    def _mirroring(self) -> Iterator[None]:
        try:
            yield
        except Busy:
            pass  # the next call sends what that one leaves
        except Exception as error:  # whatever goes wrong in the mirror, the results are on disk
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            cause = public(" ".join(str(error).split()))[:300]
            warnings.warn(
                f"MLflow at {public(self.uri)} did not take the results ({type(error).__name__}: {cause}). "
                "Nothing is lost: they are on disk, and `indexmem sync SPEC` publishes them later.",
                RuntimeWarning,
                stacklevel=4,
            )
