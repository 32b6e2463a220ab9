"""A sample's text -> context tokens and question tokens, cut where kvpress cuts.

The chat template is rendered around the context; the part after it (end of turn, assistant header) goes to the
question side. Context and question are tokenised apart, so that what is compressed never depends on the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import jinja2

from indexmem.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


PANGRAM = "The quick brown fox jumps over the lazy dog."
FEWEST_TOKENS = 4  # of these nine words: what stands in for a missing tokenizer knows special tokens alone

SWITCH = "enable_thinking"  # of chat templates, see `models.thinking`
# Invisible separators: no template or text contains this. A capital and small letters: a change of case shows.
MARKER = "\u2063Context\u2063"


@dataclass(frozen=True)
class PromptFormat:
    """Text that the model's chat template puts before the context and after the question."""

    prefix: str
    suffix: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, *, chat: bool = True) -> PromptFormat:
        """The tokenizer's format; without `chat` only what the tokenizer itself puts before any text, such as <s>.

        Raises UserError for a chat template that does not show a text once and as it is: what comes before the text and
        what after it could not be told.
        """
        if not chat:
            return cls(prefix=_leading_specials(tokenizer), suffix="")
        if tokenizer.chat_template is None:
            return cls(prefix=tokenizer.bos_token or "", suffix="\n")
        as_text = _rendered(tokenizer, MARKER)
        as_parts = _rendered(tokenizer, [{"type": "text", "text": MARKER}])  # which some templates want
        for rendered in (as_text, as_parts):
            if rendered.count(MARKER) == 1:
                prefix, _, suffix = rendered.partition(MARKER)
                return cls(prefix=prefix, suffix=suffix)
        raise UserError(
            "The tokenizer's chat template does not show a user's text once and unchanged, so what it puts before and "
            f"after the text cannot be told. Of 'Context' it makes {as_text.replace(MARKER, 'Context')!r}. Expected a "
            "template that puts message['content'] in one place; without any chat_template, models are asked plainly."
        )

    def context(self, text: str) -> str:
        return self.prefix + text

    def question(self, question: str, answer_prefix: str) -> str:
        return question + self.suffix + answer_prefix


BARE = PromptFormat(prefix="", suffix="")  # of a context that is nothing but its text


def between_turns(tokenizer: PreTrainedTokenizerBase) -> str:
    """What the chat template puts between an answer and the user's next message; an empty line where there is none.

    Raises UserError for a template that does not show three messages in their order.
    """
    if tokenizer.chat_template is None:
        return "\n\n"
    rendered = _rendered(tokenizer, MARKER, MARKER, MARKER)
    parts = rendered.split(MARKER)
    if len(parts) != 4:
        raise UserError(
            "The tokenizer's chat template does not show a question, an answer and a question in their order and "
            f"unchanged, so turns cannot be rendered with it. Of three messages it makes {rendered!r:.300}."
        )
    return parts[2]


def _rendered(tokenizer: PreTrainedTokenizerBase, *contents: Any) -> str:
    """What the chat template makes of messages of user and assistant in turn; what it raises instead of that."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    switched: dict[str, Any] = {SWITCH: False}
    try:
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **switched)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return str(rendered)


def _leading_specials(tokenizer: PreTrainedTokenizerBase) -> str:
    """Tokens that the tokenizer puts before a text by itself, as text; an end mark behind it is none of them."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    added = takewhile(itemgetter(1), zip(encoded["input_ids"], encoded["special_tokens_mask"]))
    return str(tokenizer.decode([token for token, _ in added]))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of `text` as it stands: no special tokens added, none dropped."""
    # verbose=False: documents longer than the model are cut into windows later, and need no warning.
    return tokenizer.encode(text, add_special_tokens=False, verbose=False)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: str, vocabulary: int) -> None:
    """Raises UserError for a tokenizer that loses text, or has ids beyond the model's `vocabulary` of embeddings.

    transformers makes a tokenizer of a few special tokens for a folder that has none: every text is then empty.
    """
    if len(encode(tokenizer, PANGRAM)) < FEWEST_TOKENS:
        raise UserError(
            f"Model '{model}' has no tokenizer: of its {len(tokenizer)} tokens {PANGRAM!r} leaves "
            f"{encode(tokenizer, PANGRAM)}. Expected the files that it was saved with, such as tokenizer.json and "
            "tokenizer_config.json, beside its weights."
        )
    prompt = PromptFormat.of(tokenizer)
    used = [tokenizer.vocab_size - 1, *encode(tokenizer, prompt.context(PANGRAM) + prompt.question(PANGRAM, ""))]
    if max(used) >= vocabulary:
        raise UserError(
            f"Model '{model}' has embeddings for {vocabulary} tokens, and its tokenizer has ids up to {max(used)}: it "
            "is another model's. Expected the tokenizer that the weights were trained with."
        )
