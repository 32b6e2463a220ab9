"""Where MLflow's UI shows something."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import quote, urlsplit

from mlflow.exceptions import MlflowException

from indexmem.tracking.mlflow_runs import connect, is_server, public

REACH_SECONDS = 2.0  # MLflow's own client tries for much longer


def job_page(uri: str, experiment: str, submission: str) -> str | None:
    """Address of the runs that a submitted job publishes; of all experiments where it cannot be told. None: no server.

    The runs need not exist yet: the page is a search for the tag that they will carry.
    """
    if not is_server(uri):
        return None
    pages = f"{public(uri).rstrip('/')}/#/experiments"
    try:
        found = connect(uri, Path()).get_experiment_by_name(experiment) if _answers(uri) else None
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
