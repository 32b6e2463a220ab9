"""Addresses that lead from a grid's report to its run in MLflow and to its Ray job."""

from __future__ import annotations

from indexmem.config.schema import Experiment
from indexmem.tracking.mlflow_runs import is_server, public
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.published import JOB_PAGE_TAG, SUBMISSION_TAG, job_tags

LOCAL_UI = "http://127.0.0.1:5000"  # where `make ui` and `indexmem ui` serve a run root


def grid_links(experiment: Experiment) -> dict[str, str]:
    """Text -> address, for a report that is written before its run is published. Makes the run if there is none.

    Empty where there is nothing to link: tracking is off or does not answer, and no submitted job runs this process.
    """
    links = {}
    sink = MlflowSink.open(experiment)
    place = sink.grid_place(experiment) if sink else None
    if sink is not None and place is not None:
        server = public(sink.uri).rstrip("/") if is_server(sink.uri) else LOCAL_UI
        links["MLflow run"] = f"{server}/{place}"
    tags = job_tags()
    if JOB_PAGE_TAG in tags:
        links[f"Ray job {tags[SUBMISSION_TAG]}"] = tags[JOB_PAGE_TAG]
    return links
