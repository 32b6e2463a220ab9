"""A long call that is watched, and asked by a signal to end early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from indexmem.signals import StopSignals

T = TypeVar("T")


def watched(call: Callable[[], T], stop: Path, look: Callable[[], None], seconds: float) -> tuple[T, int | None]:
    """What `call` returns, and the signal that came, if any. `look` is called every so many seconds, and at the end.

    A first SIGINT or SIGTERM makes the file `stop`, upon which the call is to end. It runs in a thread, since Ray Train
    takes SIGINT for itself where it is called in the main one; a daemon, so that a second signal does not wait for it.
    """
    stop.parent.mkdir(parents=True, exist_ok=True)
    stop.unlink(missing_ok=True)
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    with StopSignals() as signals:
        threading.Thread(target=run, daemon=True).start()
        while not wait([future], timeout=seconds).done:
            if signals.received is not None:
                stop.touch()
            look()
        result = future.result()
    look()
    return result, signals.received
