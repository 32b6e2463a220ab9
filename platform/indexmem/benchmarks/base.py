"""What a benchmark is: a recipe that turns a seed into samples, and a score for an answer to one of them.

A sample is cut in three, as in the kvpress pipeline: `context` is what gets compressed, `question` and `answer_prefix`
are read only after that. Sample i depends on the recipe, the seed and i alone, so a longer list extends a shorter one.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from indexmem.config.spec import content_hash
from indexmem.plugins.load import Found

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Turn:
    """A question that follows the answer to the one before, which the model keeps in its cache."""

    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int


@dataclass(frozen=True)
class Sample:
    """One question about one text, ready to be rendered by `PromptFormat`; with `turns`, a conversation about it.

    `labels` are facets that a report may group by, such as depth or category; `extra` is what the scorer needs beyond
    references. Both hold JSON-like values. Samples of one `group` are easy or hard together, and statistics take them
    as one.
    """

    id: str  # "<benchmark>/<index>"
    benchmark: str
    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int
    chat: bool = True  # False: the text goes to the model as it is, without its chat template
    stop: tuple[str, ...] = ()  # texts that end an answer, of which they stay a part
    min_new_tokens: int = 0  # nothing ends an answer before
    group: str = ""  # by default all samples with this context, in any benchmark
    repeat: int = 0  # which of several sampled answers to the same prompt
    options: tuple[str, ...] = ()  # continuations, of which the likeliest is the answer: nothing is generated
    question_aware: bool = False  # its question is compressed with the context: `grid.protocol`
    turns: tuple[Turn, ...] = ()  # what is asked after that; the score is the mean over all answers
    labels: Mapping[str, Any] = field(default_factory=dict, hash=False)
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def asked(self) -> tuple[Sample, ...]:
        """A sample for each of its questions, which is how they are scored."""
        first = replace(self, turns=())
        return (first, *(replace(first, **vars(turn)) for turn in self.turns))

    @property
    def read_first(self) -> tuple[bool | str, ...]:
        """What the model reads before it evicts: samples that agree in it share one prefill."""
        asked = (self.question, self.answer_prefix) if self.question_aware else ()
        return self.chat, self.context, *asked

    @property
    def own_group(self) -> str:
        """`group`, or what names the context; without a context the sample is a group of its own."""
        return self.group or (content_hash(self.context) if self.context else self.id)


@dataclass(frozen=True)
class BuildContext:
    """Everything outside a benchmark that its samples may depend on."""

    tokenizer: PreTrainedTokenizerBase
    length: int  # tokens of the rendered prompt plus the generation allowance
    seed: int
    haystack: str  # the loaded text, not its name; read only by benchmarks that hide things in text
    max_new_tokens: int | None = None  # overrides the benchmark's own generation limit


@dataclass(frozen=True, kw_only=True)
class Benchmark(ABC):
    """A named, versioned recipe. `version` goes up whenever the same build would give other samples."""

    name: str
    version: int = 1
    max_new_tokens: int
    protocol: str  # whose prompts and scores these are, named in every row: "ruler", "official", "kvpress", ...
    by_fidelity: bool = False  # scored by agreement with the full cache, not by `score`: needs grid.fidelity
    code: str = ""  # hash of its source where that is not ours, set by the registry; part of a cell's identity

    @property
    def size(self) -> int | None:
        """Samples that there are at most; None: without end."""
        return None

    @abstractmethod
    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """The first `count` samples, in order. Raises UserError when `build` leaves no room for one."""

    @abstractmethod
    def score(self, prediction: str, sample: Sample) -> float:
        """How right a generated answer is, in [0, 1]. `prediction` excludes the answer prefix."""

    def other_scores(self, prediction: str, sample: Sample) -> Mapping[str, float]:
        """Further scores in [0, 1] by name, stored beside the first; none by default."""
        return {}

    @abstractmethod
    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """JSON-like content, beyond what every benchmark depends on, that decides the samples."""

    def named_by_rows(self) -> Iterable[Found]:
        """Somebody's own code that rows of data name, which a job has to bring along; none by default."""
        return ()

    def generation_limit(self, build: BuildContext) -> int:
        """New tokens that an answer may take."""
        return self.max_new_tokens if build.max_new_tokens is None else build.max_new_tokens

    def rng(self, index: int, build: BuildContext) -> random.Random:
        """Generator of sample `index`, a function of (seed, benchmark, index) and nothing else."""
        return random.Random(f"{build.seed}/{self.name}/{index}")


def build_hash(benchmark: Benchmark, build: BuildContext) -> str:
    """Content hash of the recipe: equal hashes, equal samples. How many samples are asked for plays no part."""
    tokenizer = build.tokenizer
    recipe = {
        "benchmark": [benchmark.name, benchmark.version],
        "length": build.length,
        "seed": build.seed,
        "max_new_tokens": benchmark.generation_limit(build),
        "tokenizer": {
            "vocabulary": content_hash(tokenizer.get_vocab()),
            "chat_template": json.dumps(tokenizer.chat_template, sort_keys=True),  # some tokenizers hold several
            "bos_token": tokenizer.bos_token,
        },
        "ingredients": dict(benchmark.ingredients(build)),
    }
    return content_hash(recipe | ({"code": benchmark.code} if benchmark.code else {}))
