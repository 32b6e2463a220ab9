"""The benchmark `fidelity`: how a compressed cache goes on with passages of any text, next to the full cache.

No question and no reference. A passage is read and evicted from, the text behind it is read, and the model goes on.
Each cell is held to the full cache along the full cache's own continuation: the score is the share of its tokens that
the cell finds likeliest, too (engine/fidelity.py). So every token says something, where a question says yes or no.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import PositiveInt

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode
from indexmem.texts.documents import documents_of

READ_BEHIND = 32  # tokens that follow the passage, read when it is compressed


@dataclass(frozen=True, kw_only=True)
class Continuation(Benchmark):
    """Passages that share no token, in an order that the seed draws; as many as the text has."""

    name: str = "fidelity"
    path: str | None  # None: the grid's haystack
    max_new_tokens: int
    protocol: str = "own"
    by_fidelity: bool = True

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`. Raises UserError for a text that is shorter than one passage."""
        tokenizer, limit = build.tokenizer, self.generation_limit(build)
        prompt = PromptFormat.of(tokenizer, chat=False)
        room = build.length - limit - READ_BEHIND
        text = self._text(build)
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        starts = [*(start for start, _ in offsets["offset_mapping"]), len(text)]
        passages = list(range(0, len(starts) - room - READ_BEHIND, room + READ_BEHIND)) if room > 0 else []
        if not passages:
            raise UserError(
                f"Benchmark '{self.name}': grid.length={build.length} with {limit} new tokens asks for passages of "
                f"{room} tokens, and {READ_BEHIND} behind each; the text has {len(starts) - 1}. Change grid.length, or "
                "name a longer text: {name: fidelity, params: {path: FILE_OR_FOLDER}}."
            )
        self.rng(0, build).shuffle(passages)
        for index, first in enumerate(passages[:count]):
            end = first + room
            while excess := max(0, len(encode(tokenizer, prompt.context(text[starts[first] : starts[end]]))) - room):
                end -= excess  # tokens at the seams, and those that the tokenizer puts before any text
            yield Sample(
                id=f"{self.name}/{index}",
                benchmark=self.name,
                context=text[starts[first] : starts[end]],
                question=text[starts[end] : starts[end + READ_BEHIND]],
                answer_prefix="",
                references=(),
                max_new_tokens=limit,
                chat=False,
            )

    def score(self, prediction: str, sample: Sample) -> float:
        """By no text: see `by_fidelity`."""
        return 0.0

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The text, and how it is cut."""
        return {"text": content_hash(self._text(build)), "behind": READ_BEHIND}

    def _text(self, build: BuildContext) -> str:
        return build.haystack if self.path is None else "\n\n".join(documents_of(self.path))


def continuation(*, path: str | None = None, max_new_tokens: PositiveInt = 64) -> Sequence[Benchmark]:
    """Passages of a built-in text, a file or a folder (default: grid.haystack), each continued by `max_new_tokens`."""
    return (Continuation(path=path, max_new_tokens=max_new_tokens),)
