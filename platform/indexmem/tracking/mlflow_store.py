"""How an MLflow store is reached: addresses, and a SQLite file that appears complete or not at all."""

from __future__ import annotations

import os
import re
import sqlite3
import uuid
from contextlib import suppress
from pathlib import Path

from mlflow import MlflowClient
from sqlalchemy import make_url

SQLITE = "sqlite:///"
# Set unless the user set them. With MLflow's own defaults a dead server blocks for many minutes, and each finished run
# prints a line with the credentials of the address.
MLFLOW_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def sqlite_uri(path: Path) -> str:
    """Address of a database file, whatever characters its path has.

    Only "%" and "?" are quoted: for a path that is quoted further, MLflow makes an empty folder of the quoted name.
    """
    return SQLITE + str(path).replace("%", "%25").replace("?", "%3F")


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://", "databricks"))


def public(text: str) -> str:
    """`text` without the credentials of any address in it."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def open_store(uri: str, artifact_root: Path) -> MlflowClient:
    """Client of the store at `uri`; a SQLite file that does not exist is created first.

    HTTP timeouts become short unless the environment already sets them. MLflow's global state (active run, tracking
    URI) belongs to the caller's own script and is not touched. Raises what MLflow raises.
    """
    if uri.startswith(SQLITE):
        _create_sqlite(Path(make_url(uri).database or ""), artifact_root)
    for name, value in MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)
    return MlflowClient(tracking_uri=uri)


def _create_sqlite(path: Path, artifact_root: Path) -> None:
    """Make the database beside its final name and link it into place.

    MLflow's migrations break a new file for good when two processes run them at once, or one is killed in them.
    """
    if path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # a second to import, of no use with a server

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        SqlAlchemyStore(sqlite_uri(temporary), artifact_root.as_uri())._dispose_engine()
        connection = sqlite3.connect(temporary)
        connection.execute("PRAGMA journal_mode=wal")  # persists; readers no longer block the writer
        connection.close()
        with suppress(FileExistsError):  # another process was faster
            os.link(temporary, path)
    finally:
        for leftover in path.parent.glob(f"{temporary.name}*"):
            leftover.unlink(missing_ok=True)
