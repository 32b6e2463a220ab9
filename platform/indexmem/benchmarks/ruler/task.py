"""What all generated RULER tasks share: a drawn sample grows by units of filler until its token budget is full.

Tasks and wording follow RULER (Hsieh et al. 2024, arXiv 2404.06654; github.com/NVIDIA/RULER, Apache-2.0); the cut into
context, question and answer prefix is that of kvpress's RULER data set. Samples are equal in distribution to those of
RULER, not byte for byte.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample, Turn
from indexmem.benchmarks.ruler.fit import largest_fit
from indexmem.benchmarks.scorers import string_match_all
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, between_turns, encode


@dataclass(frozen=True)
class Asked:
    """A question about a drawn text."""

    question: str
    answer_prefix: str
    references: tuple[str, ...]
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """One drawn text and what is asked about it, before its length is settled."""

    context: Callable[[int], str]  # units of filler -> the text to be compressed
    unit_tokens: Sequence[int]  # estimate for each unit; see `largest_fit`
    asked: tuple[Asked, ...]  # each is a sample of its own, unless
    conversation: bool = False  # they are turns of one
    least: int = 1  # units below which the sample means nothing
    most: int | None = None  # units that there are; None: they repeat


DrawText = Callable[[int], Draft]  # index of a text -> the text


@dataclass(frozen=True, kw_only=True)
class RulerTask(Benchmark):
    """A task whose samples are exactly as long as whole units of filler allow, for any tokenizer and length."""

    protocol: str = "ruler"

    @abstractmethod
    def drawing(self, build: BuildContext) -> DrawText:
        """Prepare what all samples share, such as tokenised filler; returns what draws a sample."""

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`."""
        prompt = PromptFormat.of(build.tokenizer)
        draw = self.drawing(build)
        made = chain.from_iterable(self._fitted(draw(index), index, build, prompt) for index in itertools.count())
        yield from islice(made, count)

    def score(self, prediction: str, sample: Sample) -> float:
        """Share of the references that the answer contains."""
        return string_match_all(prediction, sample.references)

    def _fitted(self, draft: Draft, index: int, build: BuildContext, prompt: PromptFormat) -> Iterator[Sample]:
        """The questions about `draft`, which holds as much filler as fits with the longest of them. Raises UserError
        when the least that it needs does not."""
        limit = self.generation_limit(build)
        tokens = [
            limit + len(encode(build.tokenizer, prompt.question(x.question, x.answer_prefix))) for x in draft.asked
        ]
        reserved = max(tokens)
        if draft.conversation:
            reserved = sum(tokens) + len(tokens) * len(encode(build.tokenizer, between_turns(build.tokenizer)))

        def cost(units: int) -> int:
            return len(encode(build.tokenizer, prompt.context(draft.context(units))))

        units = largest_fit(draft.unit_tokens, cost, build.length - reserved, draft.most)
        if units < draft.least:
            least = cost(draft.least)
            raise UserError(
                f"Benchmark '{self.name}' does not fit into {build.length} tokens: with the shortest text, text "
                f"{index} takes {least} tokens of context and {reserved} of question and answer. "
                f"Set grid.length to at least {least + reserved}, or lower grid.max_new_tokens (now {limit})."
            )
        context = draft.context(units)
        samples = [
            Sample(
                id=f"{self.name}/{index * len(draft.asked) + number}",
                benchmark=self.name,
                context=context,
                question=asked.question,
                answer_prefix=asked.answer_prefix,
                references=asked.references,
                max_new_tokens=limit,
                labels=asked.labels,
            )
            for number, asked in enumerate(draft.asked)
        ]
        if not draft.conversation:
            yield from samples
            return
        turns = tuple(Turn(x.question, x.answer_prefix, x.references, x.max_new_tokens) for x in samples[1:])
        yield replace(samples[0], id=f"{self.name}/{index}", turns=turns)
