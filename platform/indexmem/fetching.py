"""Whether what is not on this machine may be fetched. A dry run takes nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from indexmem.errors import UserError

OFFLINE = "HF_HUB_OFFLINE"  # the libraries of the hub read it when they are imported
_MAY_FETCH: ContextVar[bool] = ContextVar("may_fetch", default=True)


class NotAtHand(UserError):
    """Something is not on this machine, and a dry run does not fetch it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not on this machine, and a dry run fetches nothing")


def about_to_fetch(what: str) -> None:
    """To be called where something is missing and would be fetched. Raises NotAtHand within `nothing_fetched`."""
    if not _MAY_FETCH.get():
        raise NotAtHand(what)


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """Until it ends, NotAtHand is raised where something would be fetched."""
    token, before = _MAY_FETCH.set(False), os.environ.get(OFFLINE)
    os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        _MAY_FETCH.reset(token)
        if before is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = before


@contextmanager
def noted(lacking: list[str]) -> Iterator[None]:
    """Goes on after NotAtHand: what is lacking becomes a sentence of the list, once."""
    try:
        yield
    except NotAtHand as error:
        if str(error) not in lacking:
            lacking.append(str(error))
