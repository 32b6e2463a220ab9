"""Nights in MLflow: one run each in the experiment <prefix>/nightly, with the verdict as tags, note and pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

from indexmem.config.schema import Experiment
from indexmem.config.spec import content_hash
from indexmem.tracking.mlflow_runs import Runs
from indexmem.tracking.mlflow_sink import FINGERPRINT_TAG, FINISHED, NOTE_TAG, MlflowSink
from indexmem.tracking.naming import labels

NIGHT_TAG = "indexmem.night"


class NightlySink(MlflowSink):
    """Where nights are mirrored: the store of the nightly spec."""

    def publish_night(
        self,
        place: Experiment,
        date: dt.date,
        *,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        note: str,
        artifacts: Mapping[str, Path],
    ) -> str | None:
        """Mirror one night of the nightly spec `place.name`. Publishing it again changes nothing.

        `metrics` are named for charts over nights; `artifacts` maps paths inside the run to files. Returns the run's
        URL on a server, else its id; None, with a warning, when MLflow does not take it.
        """
        name = f"{place.name} {date.isoformat()}"
        with self._mirroring(), self._turn(name):
            runs = Runs.of(self._client(), f"{place.tracking.experiment}/nightly", self._artifact_root)
            run = runs.find_or_create(NIGHT_TAG, name, name)
            shown = {**tags, "nightly": place.name, "date": date.isoformat(), NOTE_TAG: note}
            fingerprint = content_hash([dict(metrics), shown])
            if run.data.tags.get(FINGERPRINT_TAG) != fingerprint or run.info.status != FINISHED:
                runs.attach(run.info.run_id, artifacts)
                runs.log(run, metrics, {}, shown | {FINGERPRINT_TAG: fingerprint})
                runs.client.set_terminated(run.info.run_id, FINISHED)
            return runs.url(run.info.run_id)
        return None


def score_metrics(scores: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """(suite, method) -> mean score, as metrics 'score/<suite>/<method>'."""
    suites, methods = labels(suite for suite, _ in scores), labels(method for _, method in scores)
    return {f"score/{suites[suite]}/{methods[method]}": value for (suite, method), value in scores.items()}
