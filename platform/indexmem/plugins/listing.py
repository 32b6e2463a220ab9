"""What there is by name, and where each comes from, as a table for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from indexmem.config.reference import PluginKind, Reference, entry_points_of
from indexmem.errors import UserError
from indexmem.plugins.load import find, origin_of

Listed = tuple[str, ...]  # name, what it is, where it comes from
OURS = "indexmem"


def offered(kind: PluginKind, taken: Sequence[str]) -> Iterator[Listed]:
    """The entry points of installed packages, but for names that are `taken`."""
    for name, point in sorted(entry_points_of(kind).items()):
        reference = Reference.parse(point.value)
        if name in taken or reference is None:
            continue
        try:
            found = find(kind, name)
            said = found.said if found else ""
        except UserError as error:
            said = f"broken: {error}"
        yield name, said, f"{origin_of(reference)} ({point.value})"


def table(rows: Sequence[Listed]) -> str:
    """One line for each, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ("  ".join(text.ljust(width) for text, width in zip(row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in padded)
