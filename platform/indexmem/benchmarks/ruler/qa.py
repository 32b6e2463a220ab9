"""RULER's question answering (qa_1 from one document, qa_2 from two) among documents that are beside the point.

Documents are added in the order gold, those of the same article or question, then any others; where each one stands
is drawn beforehand. The questions of a data set come in an order that the seed decides, each one once.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from indexmem.benchmarks.base import BuildContext, Sample
from indexmem.benchmarks.ruler.corpora import Corpus, Question, read_hotpotqa, read_squad
from indexmem.benchmarks.ruler.fit import tokens_of_each
from indexmem.benchmarks.ruler.invented import one_document, two_documents
from indexmem.benchmarks.ruler.task import Asked, Draft, DrawText, RulerTask
from indexmem.benchmarks.scorers import string_match_part
from indexmem.config.spec import content_hash
from indexmem.errors import UserError

INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
)
INTRO = INSTRUCTION + "The following are given documents.\n\n"
HEADING = "Document {number}:\n"

DOCUMENT_TOKENS = 16  # fewer than any document's: bounds how many a budget can hold
INVENTED = 2000  # people at least, in generated documents


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(RulerTask):
    """An answer counts when it contains any of the accepted ones."""

    max_new_tokens: int = 32

    @abstractmethod
    def corpus(self, build: BuildContext) -> Corpus:
        """Documents and questions. Raises UserError when their file cannot be used."""

    def drawing(self, build: BuildContext) -> DrawText:
        """The question of a sample and the documents around it."""
        corpus = self.corpus(build)
        headed = [HEADING.format(number=100) + document + "\n\n" for document in corpus.documents]
        tokens = tokens_of_each(headed, build.tokenizer)
        order = random.Random(f"{build.seed}/{self.name}").sample(range(len(corpus.questions)), len(corpus.questions))

        def draw(index: int) -> Draft:
            if index >= len(order):
                raise UserError(
                    f"Benchmark '{self.name}' has {len(order)} questions. Set grid.samples={len(order)} or less."
                )
            return _draft(corpus, corpus.questions[order[index]], tokens, self.rng(index, build), build.length)

        return draw

    def score(self, prediction: str, sample: Sample) -> float:
        """Whether the answer contains any accepted one."""
        return string_match_part(prediction, sample.references)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """All documents and questions."""
        return {"corpus": self.corpus(build).fingerprint()}


@dataclass(frozen=True, kw_only=True)
class FileQuestions(QuestionAnswering):
    """Questions of a published data set in a local file."""

    path: str
    read: Callable[[str], Corpus]

    @cached_property
    def _corpus(self) -> Corpus:
        return self.read(self.path)

    def corpus(self, build: BuildContext) -> Corpus:
        """What the file holds."""
        return self._corpus


@dataclass(frozen=True, kw_only=True)
class GeneratedQuestions(QuestionAnswering):
    """Questions about invented people: not RULER's data, and named so in every row."""

    documents: Literal[1, 2]
    protocol: str = "ruler-generated-qa"

    def corpus(self, build: BuildContext) -> Corpus:
        """A world of the size that the length needs."""
        make = one_document if self.documents == 1 else two_documents
        return make(max(INVENTED, build.length // DOCUMENT_TOKENS), build.seed)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The recipe and a piece of what it makes, since word lists change between releases of `wonderwords`."""
        make = one_document if self.documents == 1 else two_documents
        return {"documents": self.documents, "piece": content_hash(list(make(100, build.seed).documents))}


def qa_1(*, squad: str | None = None) -> Sequence[QuestionAnswering]:
    """SQuAD v2.0 from the file `squad`; without one, generated questions from one document each."""
    if squad is None:
        return (GeneratedQuestions(name="qa_1", documents=1),)
    return (FileQuestions(name="qa_1", path=squad, read=read_squad),)


def qa_2(*, hotpotqa: str | None = None) -> Sequence[QuestionAnswering]:
    """HotpotQA from the file `hotpotqa`; without one, generated questions from two documents each."""
    if hotpotqa is None:
        return (GeneratedQuestions(name="qa_2", documents=2),)
    return (FileQuestions(name="qa_2", path=hotpotqa, read=read_hotpotqa),)


def _draft(corpus: Corpus, question: Question, tokens: Sequence[int], rng: random.Random, length: int) -> Draft:
    first = (*question.gold, *question.near)
    total = len(corpus.documents)
    others = rng.sample(range(total), min(total, len(first) + length // DOCUMENT_TOKENS))
    order = list(dict.fromkeys((*first, *others)))
    places = [rng.random() for _ in order]

    def context(units: int) -> str:
        shown = [number for _, number in sorted(zip(places[:units], order))]
        documents = [
            HEADING.format(number=position) + corpus.documents[number] for position, number in enumerate(shown, start=1)
        ]
        return INTRO + "\n\n".join(documents) + "\n\n"

    return Draft(
        context=context,
        unit_tokens=[tokens[number] for number in order],
        asked=(Asked(f"{INSTRUCTION}Question: {question.text}", "Answer:", question.answers),),
        least=len(question.gold),
        most=len(order),
    )
