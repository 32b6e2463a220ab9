"""Libraries that only some commands need, by the extra that brings them: `pip install 'indexmem[EXTRA]'`."""

from __future__ import annotations

from importlib.util import find_spec

from indexmem.errors import UserError


class MissingExtra(UserError, ImportError):
    """A library that is not installed. The message says what to type."""


def need(extra: str, *libraries: str) -> None:
    """Called by a module before it imports `libraries`. Raises MissingExtra that names the extra, if one is absent."""
    absent = [library for library in libraries if find_spec(library) is None]
    if absent:
        raise MissingExtra(f"{' and '.join(absent)} cannot be imported. Type: pip install 'indexmem[{extra}]'")
