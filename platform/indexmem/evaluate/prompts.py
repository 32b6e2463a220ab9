"""A sample's text as token ids: what is evicted from, and what is read and written behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from indexmem.benchmarks.base import Sample
from indexmem.engine.answers import FollowUp
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, between_turns, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompt:
    """A sample as the model reads it: evicted from, and asked afterwards."""

    format: PromptFormat
    context_ids: list[int]
    question_ids: list[int]
    follow_ups: tuple[FollowUp, ...] = ()
    options: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, sample: Sample, tokenizer: PreTrainedTokenizerBase) -> Prompt:
        """Raises UserError for a part without tokens."""
        prompt = PromptFormat.of(tokenizer, chat=sample.chat)
        context_ids = encode(tokenizer, prompt.context(sample.context))
        question_ids = encode(tokenizer, prompt.question(sample.question, sample.answer_prefix))
        options = tuple(tuple(encode(tokenizer, option)) for option in sample.options)
        options_read = [(f"option {option!r}", ids) for option, ids in zip(sample.options, options)]
        for part, ids in (("context", context_ids), ("question", question_ids), *options_read):
            if not ids:
                raise UserError(f"The {part} of {sample.id} has no tokens, so there is nothing to read.")
        if sample.question_aware:  # all but the token whose logits the answer begins with
            context_ids, question_ids = [*context_ids, *question_ids[:-1]], question_ids[-1:]
        between = between_turns(tokenizer) if sample.turns else ""
        later = [(between + prompt.question(turn.question, turn.answer_prefix), turn) for turn in sample.turns]
        follow_ups = tuple(FollowUp(encode(tokenizer, text), turn.max_new_tokens) for text, turn in later)
        return cls(prompt, context_ids, question_ids, follow_ups, options)
