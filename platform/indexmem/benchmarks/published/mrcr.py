"""OpenAI's MRCR: a long conversation with several equal requests, of which one answer is to be repeated.

Rows are those of the hub data set openai/mrcr (MIT), after Vodrahalli et al. 2024 (arXiv 2409.12640). All messages but
the last are compressed, as the model's chat template shows them. The score is its `grade`: the ratio of difflib's
SequenceMatcher, 0 unless the answer begins with the random text that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from pydantic import PositiveInt

from indexmem.benchmarks.base import BuildContext, Sample
from indexmem.benchmarks.published.suite import PublishedBenchmark, RowQuestion, TooLong
from indexmem.benchmarks.rows import BenchmarkRow, PublishedRows
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, between_turns, encode

HUB = "openai/mrcr"
FIELDS = {"prompt": str, "answer": str, "random_string_to_prepend": str, "n_needles": int}
SHORTEST = 4096  # tokens; each bin's end is twice its beginning


def check_conversation(row: BenchmarkRow, where: str) -> None:
    """Raises UserError unless `prompt` is the JSON of messages of user and assistant in turn, the user's last."""
    try:
        messages = json.loads(row["prompt"])
        roles = [message["role"] for message in messages]
        good = len(roles) > 1 and all(isinstance(message["content"], str) for message in messages)
    except (ValueError, TypeError, KeyError):
        good, roles = False, []
    if not good or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        raise UserError(
            f"{where}: 'prompt' must be JSON of messages with 'role' and 'content', user and assistant in turn, the "
            f"user's last; got {row['prompt']:.80}."
        )


@dataclass(frozen=True, kw_only=True)
class MRCR(PublishedBenchmark):
    """Conversations that fit into `grid.length`; longer ones are left out, as each bin of lengths is scored alone."""

    too_long: TooLong = "leave out"

    def context_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> str:
        """All messages but the last."""
        *earlier, _ = (message["content"] for message in json.loads(row["prompt"]))
        between = between_turns(build.tokenizer)
        pairs = zip(earlier[::2], earlier[1::2])
        return "".join(f"{asked}{prompt.suffix}{answered}{between}" for asked, answered in pairs)

    def questions_of(self, row: BenchmarkRow, prompt: PromptFormat, build: BuildContext) -> Sequence[RowQuestion]:
        """The last message."""
        tokens = len(encode(build.tokenizer, row["prompt"]))
        upper = SHORTEST
        while upper < tokens:
            upper *= 2
        labels = {"needles": row["n_needles"], "bucket": f"{upper // 2048}-{upper // 1024}k"}
        last = json.loads(row["prompt"])[-1]["content"]
        return (RowQuestion(last, (row["answer"],), labels, {"prefix": row["random_string_to_prepend"]}),)

    def score(self, prediction: str, sample: Sample) -> float:
        """As its `grade`."""
        prefix = sample.extra["prefix"]
        if not prediction.startswith(prefix):
            return 0.0
        said, right = (text.removeprefix(prefix) for text in (prediction, sample.references[0]))
        return SequenceMatcher(None, said, right).ratio()


def mrcr(
    *, path: str = HUB, needles: tuple[int, ...] = (2, 4, 8), max_new_tokens: PositiveInt = 1000
) -> Sequence[PublishedBenchmark]:
    """A task for each number of `needles`; `path`: a hub id, a .parquet or .jsonl file, or a folder of its files."""
    return tuple(
        MRCR(
            name=f"mrcr_{count}needle",
            rows=PublishedRows(path, FIELDS, f"**/{count}needle*", HUB, split="train", check=check_conversation),
            where=("n_needles", count),
            max_new_tokens=max_new_tokens,
        )
        for count in needles
    )
