"""Documents of a data set on the Hugging Face hub, streamed: nothing is kept here but what is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from indexmem.config.text import TextConfig
from indexmem.errors import UserError


def read_hub(text: TextConfig, fields: Sequence[str]) -> Iterator[str]:
    """The text of each row, in the first of `fields` that it has.

    Raises UserError for a data set, subset, split or column that cannot be had.
    """
    from datasets import load_dataset  # imported here: it takes a second, and texts of other kinds do without it

    assert text.hub is not None
    try:
        rows = load_dataset(text.hub, text.subset, split=text.split, revision=text.revision, streaming=True)
        for row in rows:
            yield _text_of(row, fields, text.hub)
    except UserError:
        raise
    except (ValueError, OSError) as error:
        raise UserError(
            f"The data set '{text.hub}' cannot be read: {error}\n"
            "Check name, subset, split and revision, log in with `hf auth login` if it is not public, or download it "
            "and name the folder: distill.texts='[FOLDER]'"
        ) from error


def _text_of(row: Mapping[str, Any], fields: Sequence[str], hub: str) -> str:
    value = next((row[name] for name in fields if name in row), None)
    if not isinstance(value, str):
        raise UserError(
            f"A row of '{hub}' has no text in {' or '.join(fields)}; columns: {sorted(row)}. "
            "Name the one that has it, {hub: ..., column: COLUMN}."
        )
    return value
