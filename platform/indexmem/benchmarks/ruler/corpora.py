"""Documents and questions for RULER's question answering: SQuAD and HotpotQA files, or generated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.texts.rows import parse_json


@dataclass(frozen=True)
class Question:
    """`gold` documents hold the answer; `near` ones are about the same thing and are read next."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Different documents, and questions about them by their numbers."""

    documents: Sequence[str]
    questions: Sequence[Question]

    def fingerprint(self) -> str:
        """Equal content, equal fingerprint."""
        questions = [[q.text, q.answers, q.gold, q.near] for q in self.questions]
        return content_hash([list(self.documents), questions])


def read_squad(path: str) -> Corpus:
    """The answerable questions of a SQuAD v2.0 file (`dev-v2.0.json`), with the paragraphs of their article.

    Raises UserError when the file does not exist or has another layout.
    """
    return _read(path, "SQuAD v2.0 (dev-v2.0.json)", _squad)


def read_hotpotqa(path: str) -> Corpus:
    """The questions of a HotpotQA file (`hotpot_dev_distractor_v1.json`), with the paragraphs that come with them.

    Raises UserError when the file does not exist or has another layout.
    """
    return _read(path, "HotpotQA (hotpot_dev_distractor_v1.json)", _hotpotqa)


class _Documents:
    """Numbers for different texts, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def _read(path: str, layout: str, parse: Callable[[Any], Corpus]) -> Corpus:
    file = expanded(path)
    if not file.is_file():
        raise UserError(f"There is no file {file}. Expected a local copy of {layout}.")
    try:
        corpus = parse(parse_json(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{file} is not laid out as {layout}: {problem}.") from None
    if not corpus.questions:
        raise UserError(f"{file} has no answerable question. Expected a local copy of {layout}.")
    return corpus


def _squad(content: Mapping[str, Any]) -> Corpus:
    documents, questions = _Documents(), []
    for article in content["data"]:
        numbers = [documents.number(paragraph["context"]) for paragraph in article["paragraphs"]]
        for number, paragraph in zip(numbers, article["paragraphs"]):
            near = tuple(other for other in dict.fromkeys(numbers) if other != number)
            for entry in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in entry["answers"]))
                if answers and not entry.get("is_impossible", False):
                    questions.append(Question(entry["question"], answers, (number,), near))
    return Corpus(documents.texts(), questions)


def _hotpotqa(content: Sequence[Mapping[str, Any]]) -> Corpus:
    documents, questions = _Documents(), []
    for entry in content:
        numbers = {title: documents.number(f"{title}\n{''.join(lines)}") for title, lines in entry["context"]}
        gold = tuple(dict.fromkeys(numbers[title] for title, _ in entry["supporting_facts"]))
        near = tuple(number for number in numbers.values() if number not in gold)
        questions.append(Question(entry["question"], (entry["answer"],), gold, near))
    return Corpus(documents.texts(), questions)
