"""Training texts of any size: documents by number, out of a file that is mapped into memory.

A built-in text is small and stays a list. Everything else is copied once, document by document, into an Arrow file
under the cache folder and read from there through a memory map. That was chosen over streaming because training needs
any document at any time: epochs are shuffled over the whole corpus, and a resumed run goes on at its place without
reading what came before. The price is the corpus a second time on disk. (`datasets` would make the same file, but reads
a text's rows by other rules than haystacks are read by, and under names that follow its own version.)

The copy is named after paths, sizes and times of what it was made from; one that is out of date is never read again.
The folder may be deleted at any time.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import overload

import pyarrow as pa

from indexmem.config.spec import cache_folder, content_hash
from indexmem.config.text import TextConfig
from indexmem.errors import UserError
from indexmem.locks.building import exclusive, publish, scratch
from indexmem.texts.documents import documents_hash, read_documents, text_state

LAYOUT = 1  # of the copy; raise when the same files give other documents
BATCH_CHARACTERS = 2**22  # written at a time
DOCUMENTS, SUMMARY = "documents.arrow", "corpus.json"
SCHEMA = pa.schema([("text", pa.large_string())])


@dataclass(frozen=True)
class TextCorpus:
    """The documents of one text, and the hash of their content (texts/documents.py)."""

    documents: Sequence[str]
    fingerprint: str


class MappedTexts(Sequence[str]):
    """Documents of an Arrow file; one that is asked for is read then."""

    def __init__(self, path: Path) -> None:
        with pa.memory_map(str(path)) as file:
            self._texts = pa.ipc.open_file(file).read_all().column(0)  # maps; reads nothing

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._texts[index].as_py() if isinstance(index, int) else self._texts[index].to_pylist()


class JoinedTexts(Sequence[str]):
    """Several texts as one."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self._texts = texts
        self._ends = list(accumulate(map(len, texts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def ranges(self) -> list[range]:
        """The numbers of each text's documents."""
        return [range(end - len(text), end) for text, end in zip(self._texts, self._ends)]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        text = bisect_right(self._ends, number)
        return self._texts[text][number - (self._ends[text - 1] if text else 0)]


def open_corpus(text: TextConfig) -> TextCorpus:
    """The documents of a text, copied into the cache first if need be.

    Raises UserError as `read_documents`: only the first time after a text has changed is all of it read.
    """
    origin = text_state(text)
    if origin is None:
        built_in = list(read_documents(text))
        return TextCorpus(built_in, documents_hash(built_in))
    folder = cache_folder() / "texts" / content_hash([LAYOUT, origin])
    if not folder.exists():
        with exclusive(folder):
            if not folder.exists():
                with scratch(folder) as work:
                    _copy(text, work / "copy")
                    publish(work / "copy", folder)
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    return TextCorpus(MappedTexts(folder / DOCUMENTS), summary["fingerprint"])


def open_corpora(texts: Iterable[TextConfig]) -> JoinedTexts:
    """All documents of several texts, in their order. Errors as in `open_corpus`."""
    return JoinedTexts([open_corpus(text).documents for text in texts])


def _copy(text: TextConfig, folder: Path) -> None:
    folder.mkdir()
    with pa.OSFile(str(folder / DOCUMENTS), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        try:
            found = documents_hash(_written(read_documents(text), writer))
        except UnicodeEncodeError as error:  # JSON can spell half a character
            raise UserError(f"A document of '{text}' is not text: {error}. Remove or repair it.") from error
    (folder / SUMMARY).write_text(json.dumps({"text": str(text), "fingerprint": found}), encoding="utf-8")


def _written(documents: Iterable[str], writer: pa.RecordBatchWriter) -> Iterator[str]:
    """The documents, each on its way into the file."""
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= BATCH_CHARACTERS:
            writer.write_batch(pa.record_batch([pa.array(batch, pa.large_string())], schema=SCHEMA))
            batch, characters = [], 0
        yield document
    writer.write_batch(pa.record_batch([pa.array(batch, pa.large_string())], schema=SCHEMA))
