"""The needle-in-a-haystack heat map: one sentence hidden at many depths of texts of many lengths.

After Kamradt's test (github.com/gkamradt/LLMTest_NeedleInAHaystack, MIT), with its needle and question and without its
judge. Differences: a place is asked at several offsets of the haystack, because one answer says yes or no only; scores
are rules; a length counts the whole prompt and the generation allowance, as in all benchmarks here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt, PositiveInt

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.longbench.metrics import rouge_of
from indexmem.benchmarks.ruler.haystack import FULL_WIDTH_END, MAX_CHARACTERS, UNSPACED, is_spaced
from indexmem.benchmarks.scorers import string_match_all
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
QUESTION = "What is the best thing to do in San Francisco?"
KEYWORDS = ("sandwich", "Dolores Park")
INSTRUCTION = "\n\nAnswer from the text above alone, in one sentence, and do not repeat the question.\n"

LENGTHS = tuple(1_000 + round(11_500 * step / 9) for step in range(10))
DEPTHS = tuple(range(15, 100, 10))
GOLDEN = 0.6180339887498949  # its multiples modulo 1 fill an interval evenly, however many are taken

_SENTENCE_END = re.compile(rf"""[.!?]["')\]\u201d\u2019]?(?=\s)|{FULL_WIDTH_END}""")


@dataclass(frozen=True, kw_only=True)
class NeedleMap(Benchmark):
    """All places (length, depth) at all offsets. Samples begin with the whole map at the first offset.

    A smaller number of samples than the map has is spread evenly over it.
    """

    lengths: tuple[int, ...]
    depths: tuple[int, ...]  # percent of the haystack before the needle; 100: at the end
    offsets: int
    needle: str
    question: str
    keywords: tuple[str, ...]
    to_the_limit: bool = False  # answers have exactly max_new_tokens, for measurements of time
    max_new_tokens: int = 64
    protocol: str = "niah"

    @property
    def size(self) -> int:
        """Places times offsets."""
        return len(self.lengths) * len(self.depths) * self.offsets

    def places(self) -> list[tuple[int, int, int]]:
        """(length, depth, offset) of every sample, in order."""
        places = list(product(self.lengths, self.depths))
        spread = sorted(range(len(places)), key=lambda number: number * GOLDEN % 1)
        return [(*places[number], offset) for offset in range(self.offsets) for number in spread]

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; `size` at most. Raises UserError for a length above `build.length` or below the needle's."""
        if max(self.lengths) > build.length:
            raise UserError(
                f"Benchmark '{self.name}' has prompts of {max(self.lengths)} tokens, and grid.length={build.length} is "
                f"less. Set grid.length={max(self.lengths)}, or give the benchmark smaller lengths."
            )
        fillers = [self._filler(offset, build) for offset in range(self.offsets)]
        for index, (length, depth, offset) in enumerate(self.places()[:count]):
            yield self._sample(index, length, depth, offset, fillers[offset], build)

    def score(self, prediction: str, sample: Sample) -> float:
        """1.0 when the answer holds every keyword."""
        return float(string_match_all(prediction, sample.references) == 1)

    def other_scores(self, prediction: str, sample: Sample) -> Mapping[str, float]:
        """Share of the needle's words that the answer repeats (ROUGE-1 recall)."""
        return {"rouge1_recall": rouge_of(prediction, self.needle, "rouge-1", "r")}

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The map, the text and what is hidden in it."""
        unspaced = {} if is_spaced(build.haystack) else {"unspaced": UNSPACED}
        return {
            "map": [self.lengths, self.depths, self.offsets],
            "haystack": content_hash(build.haystack),
            "needle": [self.needle, self.question, self.keywords],
            **unspaced,
            **({"to_the_limit": True} if self.to_the_limit else {}),
        }

    def _filler(self, offset: int, build: BuildContext) -> Filler:
        """The text from a sentence on that the offset draws, to its end and on from its start."""
        text = " ".join(build.haystack.split())
        if not text:
            raise UserError("The haystack text is empty. Set grid.haystack to a built-in text, a file or a folder.")
        starts = [0, *(match.end() for match in _SENTENCE_END.finditer(text))]
        seamless = len(starts) == 1 and not is_spaced(text)
        if seamless:
            starts = list(range(0, len(text), MAX_CHARACTERS))
        start = self.rng(offset, build).choice(starts)
        return Filler.of(f"{text[start:]} {text[:start]}".strip(), max(self.lengths), build.tokenizer, seamless)

    def _sample(self, index: int, length: int, depth: int, offset: int, filler: Filler, build: BuildContext) -> Sample:
        limit = self.generation_limit(build)
        prompt = PromptFormat.of(build.tokenizer)
        after = len(encode(build.tokenizer, prompt.question(self.question, "")))
        context = self._context(depth, filler, build.tokenizer, prompt, length - limit - after)
        if context is None:
            raise UserError(
                f"Benchmark '{self.name}': a length of {length} tokens has no room for the needle beside {after} "
                f"tokens of question and {limit} of answer. Give it larger lengths, or lower grid.max_new_tokens."
            )
        return Sample(
            id=f"{self.name}/{index}",
            benchmark=self.name,
            context=context,
            question=self.question,
            answer_prefix="",
            references=self.keywords,
            max_new_tokens=limit,
            min_new_tokens=limit if self.to_the_limit else 0,
            labels={"length": length, "depth": depth, "offset": offset},
        )

    def _context(
        self, depth: int, filler: Filler, tokenizer: PreTrainedTokenizerBase, prompt: PromptFormat, room: int
    ) -> str | None:
        """As much filler as `room` tokens hold, with the needle at `depth`; None when the needle does not fit."""
        wanted = room - len(encode(tokenizer, prompt.context(self.needle + INSTRUCTION)))
        while wanted >= 0:
            context = filler.hiding(self.needle, wanted, depth) + INSTRUCTION
            excess = len(encode(tokenizer, prompt.context(context))) - room
            if excess <= 0:
                return context
            wanted -= excess  # tokens at the needle's seams
        return None


@dataclass(frozen=True)
class Filler:
    """A text, and where each of its tokens ends, in characters."""

    text: str
    ends: Sequence[int]
    seamless: bool  # it has neither spaces nor ends of sentences

    @classmethod
    def of(cls, text: str, tokens: int, tokenizer: PreTrainedTokenizerBase, seamless: bool) -> Filler:
        """`text`, repeated as often as `tokens` tokens need."""
        encoded = tokenizer(f"{text} ", add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        once = [end for _, end in encoded["offset_mapping"]]
        times = -(-tokens // len(once))
        step = len(text) + 1
        return cls(" ".join([text] * times), [time * step + end for time in range(times) for end in once], seamless)

    def hiding(self, needle: str, tokens: int, depth: int) -> str:
        """The first `tokens` tokens with the needle behind `depth` percent of them, moved back to a sentence's end.

        At the start of the text where no sentence has ended by then, just at its depth in a seamless one; at 100 behind
        everything.
        """
        text, before = self._first(tokens), self._first(tokens * depth // 100)
        found = (match.end() for match in _SENTENCE_END.finditer(text, 0, len(before) + 1))
        ended = [end for end in found if end <= len(before)]
        cut = len(text) if depth == 100 else ended[-1] if ended else len(before) if self.seamless else 0
        return " ".join(part for part in (text[:cut].strip(), needle, text[cut:].strip()) if part)

    def _first(self, tokens: int) -> str:
        return self.text[: self.ends[tokens - 1]] if tokens else ""


def niah(
    *,
    lengths: tuple[PositiveInt, ...] = LENGTHS,
    depths: tuple[NonNegativeInt, ...] = DEPTHS,
    offsets: PositiveInt = 3,
    needle: str = NEEDLE,
    question: str = QUESTION,
    keywords: tuple[str, ...] = KEYWORDS,
    to_the_limit: bool = False,
) -> Sequence[Benchmark]:
    """The map. Raises UserError for a depth above 100, a value that comes twice, or keywords that the needle lacks."""
    if max(depths, default=0) > 100:
        raise UserError(f"niah: depths are percent of the haystack, 0 to 100; got {max(depths)}.")
    for name, values in (("lengths", lengths), ("depths", depths), ("keywords", keywords)):
        if not values or len(set(values)) < len(values):
            raise UserError(f"niah: {name} must be different values, one at least; got {list(values)}.")
    missing = [word for word in keywords if word.lower() not in needle.lower()]
    if missing:
        raise UserError(
            f"niah: the needle does not hold the keyword '{missing[0]}'. Give keywords=[...] that it holds."
        )
    return (
        NeedleMap(
            name="niah",
            lengths=lengths,
            depths=depths,
            offsets=offsets,
            needle=needle,
            question=question,
            keywords=keywords,
            to_the_limit=to_the_limit,
        ),
    )
