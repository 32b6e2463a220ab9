"""The documents that a model is pre-trained on, as text: what its indexers and memories are distilled on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from indexmem.config.pretrain import PretrainConfig
from indexmem.files import write_whole
from indexmem.models.texts import load_texts
from indexmem.pretrain.documents import DocumentMaker
from indexmem.pretrain.stream import TEXT_TASK
from indexmem.pretrain.tokenizer import load


def documents(config: PretrainConfig, count: int, length: int) -> Iterator[str]:
    """`count` contexts with their questions and answers, at most `length` tokens each; seeds are their own."""
    tokenizer = load()
    maker = DocumentMaker(tokenizer, "\n\n".join(load_texts(config.texts)))
    mixture = {task: weight for task, weight in config.mixture.items() if task != TEXT_TASK}
    made = 0
    for number in range(10 * count):
        rng = random.Random(f"corpus/{config.seed}/{number}")
        (task,) = rng.choices(list(mixture), list(mixture.values()))
        document = maker.make(task, length, rng)
        if document is not None:
            yield str(tokenizer.decode(document.ids.tolist()))
            made += 1
        if made == count:
            return


def write_documents(config: PretrainConfig, count: int, length: int, path: Path) -> Path:
    """As JSONL with a field `text`, which `distill.texts` reads; returns `path`."""
    lines = (json.dumps({"text": text}) for text in documents(config, count, length))
    write_whole(path, "\n".join(lines) + "\n")
    return path
