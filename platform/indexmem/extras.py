"""Libraries that only some of the package needs, by the extra that brings them: `pip install 'indexmem[EXTRA]'`."""

from __future__ import annotations

from importlib.util import find_spec

from indexmem.errors import UserError


class MissingExtra(UserError, ImportError):
    """A library is not installed. The message says what to type."""


def need(extra: str, *libraries: str) -> None:
    """Raises MissingExtra, which names the extra, if one of the libraries is not installed. Imports none of them."""
    if absent := [library for library in libraries if find_spec(library) is None]:
        raise missing(extra, ", ".join(absent))


def missing(extra: str, library: str) -> MissingExtra:
    """The error for a library that could not be imported."""
    return MissingExtra(f"Not installed: {library}. Type: pip install 'indexmem[{extra}]'")
