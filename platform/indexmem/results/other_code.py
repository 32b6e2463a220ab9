"""Rows that other code left under a method's name: never mixed with those of today's code, but said.

The sentence must come with the rows wherever these are summarised, so it travels as metadata of their table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

COLUMNS = ("method", "code")
NOTE = b"rows of other code"


def with_note(rows: pa.Table, stored: pa.Table) -> pa.Table:
    """`rows` of a grid's cells, noting for each of their methods how many of `stored` come from other code.

    Rows older than the column `code` do not say.
    """
    ours = {method: code for method, code in _pairs(rows) if code is not None}
    counted = stored.select(COLUMNS).group_by(COLUMNS).aggregate([([], "count_all")]).to_pylist()
    others: dict[str, int] = {}
    for each in counted:
        method, code = each["method"], each["code"]
        if method in ours and code not in (None, ours[method]):
            others[method] = others.get(method, 0) + each["count_all"]
    if not others:
        return rows
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), NOTE: json.dumps(others)})


def other_code_sentences(rows: pa.Table) -> Iterator[str]:
    """What `with_note` has noted."""
    for method, count in json.loads((rows.schema.metadata or {}).get(NOTE, b"{}")).items():
        yield (
            f"{method}: {count:,} more rows are stored under this name, of other code (an edited source, or another "
            "engine version). They are not shown here."
        )


def _pairs(rows: pa.Table) -> list[tuple[str, str | None]]:
    found = rows.select(COLUMNS).group_by(COLUMNS).aggregate([])
    return [(each["method"], each["code"]) for each in found.to_pylist()]
