"""Whether a tokenizer is one that the model can read with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORDS = "The quick brown fox jumps over the lazy dog."
FEWEST_TOKENS = 4  # of these nine words: what stands in for a missing tokenizer knows special tokens alone


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: str, vocabulary: int) -> None:
    """Raises UserError for a tokenizer that loses text, or has ids beyond the model's `vocabulary` of embeddings.

    transformers makes a tokenizer of a few special tokens for a folder that has none: every text is then empty.
    """
    if len(encode(tokenizer, WORDS)) < FEWEST_TOKENS:
        raise UserError(
            f"Model '{model}' has no tokenizer: of its {len(tokenizer)} tokens {WORDS!r} leaves "
            f"{encode(tokenizer, WORDS)}. Expected the files that it was saved with, such as tokenizer.json and "
            "tokenizer_config.json, beside its weights."
        )
    prompt = PromptFormat.of(tokenizer)
    used = [tokenizer.vocab_size - 1, *encode(tokenizer, prompt.context(WORDS) + prompt.question(WORDS, ""))]
    if max(used) >= vocabulary:
        raise UserError(
            f"Model '{model}' has embeddings for {vocabulary} tokens, and its tokenizer has ids up to {max(used)}: it "
            "is another model's. Expected the tokenizer that the weights were trained with."
        )
