"""An item as a prompt: official, as LongBench's `pred.py` makes it, or as kvpress cuts it.

official: the published prompt, all of it in the user's turn; only its context part is compressed. Where it is longer
    than the limit, the middle is left out: the first and the last half of the limit's tokens stay.
kvpress: the instruction after the context is compressed with it, the answer's opening follows the chat template; where
    it is too long, the context loses its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from indexmem.benchmarks.longbench.sets import Template
from indexmem.models.prompt import PromptFormat, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Protocol = Literal["official", "kvpress"]


@dataclass(frozen=True)
class Parts:
    """The three parts of a sample."""

    context: str
    question: str
    answer_prefix: str

    def tokens(self, tokenizer: PreTrainedTokenizerBase, prompt: PromptFormat) -> int:
        """Of the rendered prompt."""
        after = prompt.question(self.question, self.answer_prefix)
        return len(encode(tokenizer, prompt.context(self.context))) + len(encode(tokenizer, after))


def official(template: Template, context: str, asked: str) -> Parts:
    """The published prompt, cut behind the context."""
    after = template.rest + template.question.replace("{input}", asked) + template.answer_prefix
    return Parts(template.head + context, after, "")


def kvpress(template: Template, context: str, asked: str) -> Parts:
    """The published prompt, cut where kvpress cuts it."""
    question = template.question.replace("{input}", asked.removesuffix(template.cue))
    return Parts(template.head + context + template.rest, question, template.cue or template.answer_prefix)


def without_middle(parts: Parts, tokenizer: PreTrainedTokenizerBase, prompt: PromptFormat, limit: int) -> Parts:
    """`parts` as long as they take `limit` tokens at most, else with the middle of the text left out.

    Halves are cut as tokens and joined as text, which may take a token more at the seam; then they give way.
    """
    if parts.tokens(tokenizer, prompt) <= limit:
        return parts
    ids = encode(tokenizer, parts.context + parts.question)
    room = limit - Parts("", "", "").tokens(tokenizer, prompt)
    while room > 1:
        half = room // 2
        first = str(tokenizer.decode(ids[:half], skip_special_tokens=True))
        last = str(tokenizer.decode(ids[-half:], skip_special_tokens=True))
        if last.endswith(parts.question):
            cut = Parts(first + last.removesuffix(parts.question), parts.question, "")
        else:  # the question alone is longer than that half
            cut = Parts(first, last, "")
        excess = cut.tokens(tokenizer, prompt) - limit
        if excess <= 0:
            return cut
        room -= excess
    return Parts("", "", "")


def without_end(parts: Parts, tokenizer: PreTrainedTokenizerBase, prompt: PromptFormat, limit: int) -> Parts:
    """`parts` with as much of the context, from its start, as `limit` tokens hold."""
    excess = parts.tokens(tokenizer, prompt) - limit
    ids = encode(tokenizer, parts.context) if excess > 0 else []
    while excess > 0 and ids:
        ids = ids[: max(0, len(ids) - excess)]
        parts = Parts(str(tokenizer.decode(ids)), parts.question, parts.answer_prefix)
        excess = parts.tokens(tokenizer, prompt) - limit
    return parts
