"""A sample's text -> context tokens and question tokens, cut where kvpress cuts.

The chat template is rendered around the context; the part after it (end of turn, assistant header) goes to the
question side. Context and question are tokenised apart, so that what is compressed never depends on the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PromptFormat:
    """Text that the model's chat template puts before the context and after the question."""

    prefix: str
    suffix: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, *, chat: bool = True) -> PromptFormat:
        """The tokenizer's format; without `chat` only what the tokenizer itself puts before any text, such as <s>."""
        if not chat:
            return cls(prefix=str(tokenizer.decode(tokenizer.encode(""))), suffix="")
        if tokenizer.chat_template is None:
            return cls(prefix=tokenizer.bos_token or "", suffix="\n")
        marker = "\u2063context\u2063"  # invisible separators: no template or text contains this
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": marker}], add_generation_prompt=True, tokenize=False, enable_thinking=False
        )
        prefix, _, suffix = str(rendered).partition(marker)
        return cls(prefix=prefix, suffix=suffix)

    def context(self, text: str) -> str:
        return self.prefix + text

    def question(self, question: str, answer_prefix: str) -> str:
        return question + self.suffix + answer_prefix


BARE = PromptFormat(prefix="", suffix="")  # of a context that is nothing but its text


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of `text` as it stands: no special tokens added, none dropped."""
    # verbose=False: documents longer than the model are cut into windows later, and need no warning.
    return tokenizer.encode(text, add_special_tokens=False, verbose=False)
