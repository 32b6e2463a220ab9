"""The documents that a model is pre-trained on, as text: what its indexers and memories are distilled on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from indexmem.errors import UserError
from indexmem.files import write_whole
from indexmem.texts.documents import load_texts
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.documents import DocumentMaker
from indexmem_testbed.stream import TEXT_TASK
from indexmem_testbed.tokenizer import load_tokenizer

ATTEMPTS = 10  # for each document: some tasks do not fit into few tokens


def documents(config: PretrainConfig, count: int, length: int) -> Iterator[str]:
    """`count` contexts with their questions and answers, at most `length` tokens each; seeds are their own.

    Raises UserError when there is no task in the mixture, or hardly any document fits the length.
    """
    tokenizer = load_tokenizer()
    maker = DocumentMaker(tokenizer, "\n\n".join(load_texts(config.texts)))
    mixture = {task: weight for task, weight in config.mixture.items() if task != TEXT_TASK}
    if not mixture:
        raise UserError("pretrain.mixture has no task, only text. Example: pretrain.mixture='{vt: 1.0}'")
    made = 0
    for number in range(ATTEMPTS * count):
        rng = random.Random(f"corpus/{config.seed}/{number}")
        (task,) = rng.choices(list(mixture), list(mixture.values()))
        document = maker.make(task, length, rng)
        if document is not None:
            yield str(tokenizer.decode(document.ids.tolist()))
            made += 1
        if made == count:
            return
    raise UserError(f"Only {made} of {count} documents fit into {length} tokens. Give them more: --length 2048.")


def write_documents(config: PretrainConfig, count: int, length: int, path: Path) -> Path:
    """As JSONL with a field `text`, which `distill.texts` reads; returns `path`."""
    lines = (json.dumps({"text": text}) for text in documents(config, count, length))
    write_whole(path, "\n".join(lines) + "\n")
    return path
