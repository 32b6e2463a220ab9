"""Who publishes what: what is looked for and then created in MLflow is published by one process at a time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indexmem.lease import Leases

WAIT_SECONDS = 0.5  # between looks at another publisher's lease


class Busy(Exception):
    """Another process publishes the same just now."""


@contextmanager
def turn(folder: Path, name: str, *, wait: bool) -> Iterator[None]:
    """Hold the lease `name` in `folder`, which is one for all processes of a run root.

    With `wait`, after whoever holds it now, who is named in a warning. Else raises Busy.
    """
    with Leases(folder) as leases:
        mine, held = leases.claim({name})
        if not mine and not wait:
            raise Busy
        if not mine:
            warnings.warn(f"{held[0].owner} publishes the same to MLflow; waiting.", RuntimeWarning, stacklevel=2)
        while not mine:
            time.sleep(WAIT_SECONDS)
            mine, _ = leases.claim({name})
        yield
