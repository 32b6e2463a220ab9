"""Addresses that lead to what is published: from a grid's report to its run, from a submitted job to its runs."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import quote, urlsplit

import pyarrow as pa
from mlflow.exceptions import MlflowException

from indexmem.config.schema import Experiment
from indexmem.tracking.cells import began_at
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.mlflow_store import is_server, open_store, public
from indexmem.tracking.run_tags import job_links

LOCAL_UI = "http://127.0.0.1:5000"  # where `make ui` and `indexmem ui` serve a run root
REACH_SECONDS = 2.0  # MLflow's own client tries for much longer


def grid_links(experiment: Experiment, rows: pa.Table) -> dict[str, str]:
    """Text -> address, for a report of `rows` that is written before its run is published; makes the run if need be.

    Empty where there is nothing to link: tracking is off or does not answer, and no submitted job runs this process.
    """
    links = {}
    sink = MlflowSink.open(experiment)
    page = sink.grid_page(experiment, began_at(rows)) if sink else None
    if sink is not None and page is not None:
        server = public(sink.uri).rstrip("/") if is_server(sink.uri) else LOCAL_UI
        links["MLflow run"] = f"{server}/{page}"
    return links | job_links()


def job_page(uri: str, experiment: str, submission: str) -> str | None:
    """Address of the runs that a submitted job publishes; of all experiments where it is not known. None: no server.

    The runs need not exist yet: the page is a search for the tag that they will carry.
    """
    if not is_server(uri):
        return None
    pages = f"{public(uri).rstrip('/')}/#/experiments"
    try:
        found = open_store(uri, Path()).get_experiment_by_name(experiment) if _answers(uri) else None
    except MlflowException:  # the page is only a convenience
        found = None
    search = quote(f"tags.`ray.submission_id` = '{submission}'")
    return f"{pages}/{found.experiment_id}?searchFilter={search}" if found else pages


def _answers(uri: str) -> bool:
    """Whether something listens there; a server inside a cluster may be out of reach from here."""
    address = urlsplit(uri)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=REACH_SECONDS).close()
    except OSError:
        return False
    return True
